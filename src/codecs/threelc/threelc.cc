// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/threelc/threelc.h"

#include "codecs/threelc/threelc_layout.h"
#include "codecs/threelc/threelc_work.h"
#include "kernels/threelc/zero_run.h"

namespace laconic::codecs {
namespace {

using namespace threelc;

uint64_t bound(const ThreeLc::Params& params, uint64_t count) {
  if (count == 0) return 0;
  const uint64_t header =
      params.scale == ThreeLc::Scale::unit ? kScaleBytes : chunks_of(count).header_bytes();
  return header + rows_of(count).columns;  // run coding never lengthens
}

// Finite and not negative (nor −0), as bits.
bool is_scale(const uint8_t* p) { return load<uint32_t>(p) < 0x7F800000U; }

bool are_digits(bool zre, uint64_t columns, Bytes coded) {
  const kernels::ZeroRunKernels& k = kernels::zero_run_kernels(best_isa());
  if (coded.size() > columns) return false;
  if (zre) return k.expanded_size(coded.data(), coded.size()) == columns;
  return coded.size() == columns && k.no_run_codes(coded.data(), coded.size());
}

bool is_unit_payload(bool zre, uint64_t count, Bytes payload) {
  return payload.size() >= kScaleBytes && is_scale(payload.data()) &&
         are_digits(zre, rows_of(count).columns, payload.subspan(kScaleBytes));
}

bool is_chunked_payload(bool zre, uint64_t count, Bytes payload) {
  const Chunks chunks = chunks_of(count);
  if (payload.size() < chunks.header_bytes()) return false;
  Bytes rest = payload.subspan(chunks.header_bytes());
  for (uint64_t c = 0; c < chunks.count; ++c) {
    const uint64_t length = load<uint16_t>(payload.data() + chunks.length_at(c));
    if (!is_scale(payload.data() + chunks.scale_at(c)) || length > rest.size() ||
        !are_digits(zre, chunks.rows(c).columns, rest.first(length))) {
      return false;
    }
    rest = rest.subspan(length);
  }
  return rest.empty();
}

}  // namespace

Contract ThreeLc::contract(const Params& params) {
  Contract c;
  c.zero_stays_zero = true;
  c.merge = Merge::none;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.fused = true;
  c.checks_finite = true;
  c.exact_size = !params.zre;
  // A cut at a multiple of five vectors keeps the rows aligned; one at a chunk changes no byte.
  c.granule = params.scale == Scale::unit ? kDigits * 64 : static_cast<uint32_t>(kChunkElements);
  // No contraction: |x − Q(x)|² ≤ (1 − s(2 − s)/n)|x|², whose delta depends on the count n, and
  // nothing at all is sent of values below the smallest normal number.
  c.contraction = 0;
  return c;
}

Plan ThreeLc::plan(const Params& params, const Unit& unit, uint32_t /*world*/) {
  Plan plan;
  plan.rounds = 1;
  plan.round[0].kind = RoundKind::frame;
  plan.round[0].bytes = bound(params, unit.count);
  plan.round[0].expected = std::min(plan.round[0].bytes, expected_bytes(params, unit.count));
  const uint64_t columns = rows_of(unit.count).columns;
  plan.scratch_bytes = std::max(encode_scratch(columns), decode_scratch(columns));
  plan.largest_input = kLargestInput;
  return plan;
}

Encoded ThreeLc::encode(const Call<Params>& call, Source source, MutBytes out) {
  if (call.unit.count == 0) return {};
  return call.params->scale == Scale::unit
             ? encode_unit(*call.params, call.unit.count, source, call.work, out)
             : encode_chunks(*call.params, call.unit.count, source, call.work, out);
}

Errc ThreeLc::check(const Params& params, const Unit& unit, uint32_t /*round*/, Bytes payload) {
  const auto is_payload = params.scale == Scale::unit ? is_unit_payload : is_chunked_payload;
  const bool good = unit.count == 0 ? payload.empty() : is_payload(params.zre, unit.count, payload);
  return good ? Errc::ok : Errc::payload_malformed;
}

void ThreeLc::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (call.unit.count == 0) return;
  if (terms.empty()) {
    if (!target.add) std::fill_n(target.values, call.unit.count, 0.0F);
    return;
  }
  while (!terms.empty()) {
    const uint64_t together = std::min<uint64_t>(terms.size(), kernels::kMaxUnpackTerms);
    decode_terms(*call.params, call.unit.count, terms.first(together), call.work, target);
    terms = terms.subspan(together);
    target.add = true;
  }
}

}  // namespace laconic::codecs

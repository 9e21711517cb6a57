// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/efsignsgd/efsignsgd.h"

#include "codecs/dense/signs.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kBitsAt = EfSignSgd::kFormat.group_bytes();

}  // namespace

Contract EfSignSgd::contract(const Params&) {
  Contract c;
  c.feedback = Feedback::own;
  c.memory_default = MemoryKind::residual;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.fused = true;
  c.checks_finite = true;
  c.granule = 64;
  // |x − Q(x)|² = (1 − |x|₁²/(n·|x|₂²))·|x|²: 1 − 1/n where one element is not zero, so no delta
  // above 0 holds for every n.
  c.contraction = 0;
  return c;
}

Plan EfSignSgd::plan(const Params&, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = kFormat.bytes(unit.count);
  plan.scratch_bytes = sign_scratch(unit.count);
  plan.largest_input = kLargestForSums;
  return plan;
}

Encoded EfSignSgd::encode(const Call<Params>& call, Source source, MutBytes out) {
  if (call.unit.count == 0) return {};
  const SignSums sums = pack_signs(call.unit.count, source, call.work, out.data() + kBitsAt);
  if (!finite(sums)) return {0, false};
  const kernels::BitsValues values = kFormat.values(sums, call.unit.count);
  store(out.data(), values.one);
  if (source.residual != nullptr) keep_rest(call.unit.count, source, values, call.work);
  return {kFormat.bytes(call.unit.count), true};
}

Errc EfSignSgd::check(const Params&, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != kFormat.bytes(unit.count)) return Errc::payload_malformed;
  const bool good = unit.count == 0 || (kFormat.valid(0, load<uint32_t>(payload.data())) &&
                                        clean_padding(payload.data() + kBitsAt, unit.count));
  return good ? Errc::ok : Errc::payload_malformed;
}

void EfSignSgd::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  decode_signs(terms, call.work, target, call.unit.count, kBitsAt, kDenseChunk,
               [](const uint8_t* payload, uint64_t) {
                 return kernels::MeansFormat::both_signs(load<float>(payload));
               });
}

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/terngrad/terngrad.h"

#include <cmath>
#include <cstring>

#include "codecs/dense/dense_decode.h"
#include "kernels/levels/levels.h"
#include "kernels/threelc/threelc.h"
#include "kernels/threelc/zero_run.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

using kernels::kDigits;
using kernels::LevelMoments;

static_assert(kDenseTerms <= kernels::kLevelTerms);

constexpr uint64_t kScaleBytes = sizeof(float);  // s, then the codes

// Five rows of this number of columns, a byte each, as in 3lc.
constexpr uint64_t kTaskColumns = 4096;

uint64_t columns_of(uint64_t count) { return ceil_div(count, uint64_t{kDigits}); }

uint64_t code_bytes(const TernGrad::Params& params, uint64_t count) {
  return params.pack == TernGrad::Pack::quartic ? columns_of(count) : ceil_div(count, uint64_t{4});
}

uint64_t payload_bytes(const TernGrad::Params& params, uint64_t count) {
  return count == 0 ? 0 : kScaleBytes + code_bytes(params, count);
}

// ---- the scale ----

LevelMoments moments_of(const float* x, uint64_t count, Work& work) {
  const auto& kernels = kernels::levels_kernels(work.isa);
  auto* const part = reinterpret_cast<LevelMoments*>(work.scratch.data());
  // Backward, so that rounding, which starts at the beginning, finds it in the cache.
  for_slices(
      work.pool, count, kDenseChunk,
      [&](uint64_t begin, uint64_t end) {
        part[begin / kDenseChunk] = kernels.moments(x + begin, end - begin);
      },
      Pass::backward);
  LevelMoments all = part[0];
  for (uint64_t c = 1; c < ceil_div(count, kDenseChunk); ++c) {
    all.sum += part[c].sum;
    all.squares += part[c].squares;
    all.max_bits = std::max(all.max_bits, part[c].max_bits);
  }
  return all;
}

// Largest magnitude after clipping. A standard deviation below 2^-16 of the root mean square is
// what rounding leaves of zero: such a unit is constant, and is not clipped.
float clipped_max(const LevelMoments& m, uint64_t count, float clip) {
  const float most = bits_float(m.max_bits);
  const auto n = static_cast<double>(count);
  const double mean = m.sum / n, square = m.squares / n;
  const double variance = square - mean * mean;
  if (clip == 0 || variance < 0x1p-32 * square) return most;
  const double limit = static_cast<double>(clip) * std::sqrt(variance);
  return limit < static_cast<double>(most) ? static_cast<float>(limit) : most;
}

// ---- codes ----

void encode_pairs(const float* x, uint64_t count, const kernels::TernaryRounding& rounding,
                  Work& work, uint8_t* out) {
  const auto& kernels = kernels::levels_kernels(work.isa);
  for_slices(work.pool, count, kDenseChunk, [&](uint64_t begin, uint64_t end) {
    kernels::TernaryRounding r = rounding;
    r.first += begin;
    kernels.ternary_pairs(x + begin, end - begin, r, out + begin / 4);
  });
}

void encode_quartic(const float* x, uint64_t count, const kernels::TernaryRounding& rounding,
                    Work& work, uint8_t* out) {
  const auto& kernels = kernels::levels_kernels(work.isa);
  const uint64_t columns = columns_of(count);
  for_slices(work.pool, columns, kTaskColumns, [&](uint64_t begin, uint64_t end) {
    alignas(64) int8_t rows[kDigits * kTaskColumns];
    const uint64_t n = end - begin;
    for (uint64_t i = 0; i < kDigits; ++i) {
      const uint64_t from = std::min(i * columns + begin, count);
      const uint64_t to = std::min({i * columns + end, count});
      kernels::TernaryRounding r = rounding;
      r.first += from;
      kernels.ternary(x + from, to - from, r, rows + i * kTaskColumns);
      std::memset(rows + i * kTaskColumns + (to - from), 0, n - (to - from));
    }
    kernels.pack_digits(rows, kTaskColumns, n, out + begin);
  });
}

// ---- decoding ----

void decode_pairs(std::span<const Term> terms, uint64_t count, Work& work, Target target) {
  const auto& kernels = kernels::levels_kernels(work.isa);
  decode_dense(terms, target, count, kDenseChunk, work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t operand_count, uint64_t begin, uint64_t end) {
                 std::array<kernels::PairTerm, kDenseTerms> pairs;
                 for (uint32_t t = 0; t < operand_count; ++t) {
                   const auto* payload = static_cast<const uint8_t*>(operands[t].data);
                   const auto s = load<float>(payload);
                   const float w = operands[t].weight;
                   pairs[t] = {payload + kScaleBytes, {w * 0.0F, w * s, 0.0F, w * -s}};
                 }
                 kernels.decode_pairs(out, output, pairs.data(), operand_count, begin, end);
               });
}

// Column `column`, which reaches beyond the unit.
void decode_partial(const kernels::ThreeLcTerm* terms, uint32_t term_count, uint64_t count,
                    uint64_t column, bool add, float* out) {
  for (uint32_t i = 0; i < kDigits; ++i) {
    const uint64_t at = i * columns_of(count) + column;
    if (at >= count) return;
    float sum = add ? out[at] : 0.0F;
    for (uint32_t t = 0; t < term_count; ++t) {
      sum += terms[t].value[kernels::digit_of(terms[t].bytes[column], kernels::kDigitWeight[i])];
    }
    out[at] = sum;
  }
}

// One to kMaxUnpackTerms terms.
void decode_quartic(std::span<const Term> terms, uint64_t count, Work& work, Target target) {
  const auto& kernels = kernels::threelc_kernels(work.isa);
  const auto output = kernels::choose_output(target.add, count * sizeof(float));
  const uint64_t columns = columns_of(count);
  const uint64_t complete = count - std::min(count, (kDigits - 1) * columns);
  std::array<kernels::ThreeLcTerm, kernels::kMaxUnpackTerms> all;
  const auto term_count = static_cast<uint32_t>(terms.size());
  for (uint32_t t = 0; t < term_count; ++t) {
    const auto s = load<float>(terms[t].payload.data());
    const float w = terms[t].weight;
    all[t] = {terms[t].payload.data() + kScaleBytes, {w * -s, w * 0.0F, w * s}};
  }
  for_slices(work.pool, columns, kTaskColumns, [&](uint64_t begin, uint64_t end) {
    auto part = all;
    for (uint32_t t = 0; t < term_count; ++t) part[t].bytes += begin;
    const uint64_t whole = std::clamp(complete, begin, end);
    if (output == kernels::Output::stream) {
      kernels.unpack_stream(part.data(), term_count, whole - begin, 0, true, target.values + begin,
                            columns);
    } else {
      kernels.unpack(part.data(), term_count, whole - begin, target.values + begin, columns,
                     target.add);
    }
    for (uint64_t j = whole; j < end; ++j) {
      decode_partial(all.data(), term_count, count, j, target.add, target.values);
    }
  });
}

// ---- checking ----

// Digits without an element are zero.
bool valid_digits(Bytes digits, uint64_t count) {
  if (!kernels::zero_run_kernels(best_isa()).no_run_codes(digits.data(), digits.size())) {
    return false;
  }
  for (uint64_t at = count; at < kDigits * digits.size(); ++at) {
    const uint64_t row = at / digits.size(), column = at % digits.size();
    if (kernels::digit_of(digits[column], kernels::kDigitWeight[row]) != 1) return false;
  }
  return true;
}

bool valid_pairs(Bytes pairs, uint64_t count) {
  const uint64_t used = 2 * (count % 4);
  return (used == 0 || pairs.back() >> used == 0) &&
         kernels::levels_kernels(best_isa()).codes_valid(pairs.data(), count, 2, 1);
}

}  // namespace

Contract TernGrad::contract(const Params& params) {
  Contract c;
  c.zero_stays_zero = true;
  c.memories = memory_set(MemoryKind::ema);
  c.checks_finite = true;
  c.stochastic = true;
  c.unbiased = params.clip == 0;
  // Cuts where rows of quartic packing and groups of random numbers begin.
  c.granule = params.pack == Pack::quartic ? kDigits * 64 : 64;
  return c;
}

Plan TernGrad::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(params, unit.count);
  plan.scratch_bytes = ceil_div(unit.count, kDenseChunk) * sizeof(LevelMoments);
  return plan;
}

Encoded TernGrad::encode(const Call<Params>& call, Source source, MutBytes out) {
  if (call.unit.count == 0) return {};
  const LevelMoments moments = moments_of(source.values, call.unit.count, call.work);
  if (moments.max_bits >= 0x7F800000U) return {0, false};
  const float most = clipped_max(moments, call.unit.count, call.params->clip);
  const kernels::TernaryRounding rounding{
      most < kernels::kTinyTernaryStep ? 0.0F : most,
      own_key(call.place.seed, call.place.step, call.unit.parameter, call.place.rank,
              call.place.hop),
      call.unit.offset};
  store(out.data(), rounding.step);
  const auto code = call.params->pack == Pack::quartic ? encode_quartic : encode_pairs;
  code(source.values, call.unit.count, rounding, call.work, out.data() + kScaleBytes);
  return {payload_bytes(*call.params, call.unit.count), true};
}

Errc TernGrad::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != payload_bytes(params, unit.count)) return Errc::payload_malformed;
  if (unit.count == 0) return Errc::ok;
  const auto valid = params.pack == Pack::quartic ? valid_digits : valid_pairs;
  const bool good = load<uint32_t>(payload.data()) < 0x7F800000U &&  // finite, no sign
                    valid(payload.subspan(kScaleBytes), unit.count);
  return good ? Errc::ok : Errc::payload_malformed;
}

void TernGrad::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  if (call.unit.count == 0) return;
  if (call.params->pack == Pack::two_bits || terms.empty()) {
    return decode_pairs(terms, call.unit.count, call.work, target);
  }
  while (!terms.empty()) {
    const uint64_t together = std::min<uint64_t>(terms.size(), kernels::kMaxUnpackTerms);
    decode_quartic(terms.first(together), call.unit.count, call.work, target);
    terms = terms.subspan(together);
    target.add = true;
  }
}

}  // namespace laconic::codecs

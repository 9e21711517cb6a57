// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/int8/int8.h"

#include <atomic>

#include "codecs/dense/dense_decode.h"
#include "kernels/int8/int8.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

static_assert(kDenseTerms <= kernels::kInt8Terms);

// Payload: ceil(count / block) scales (f32), then count codes (int8).
uint64_t scale_bytes(const Int8::Params& params, const Unit& unit) {
  return ceil_div(unit.count, params.block) * sizeof(float);
}

uint64_t payload_bytes(const Int8::Params& params, const Unit& unit) {
  return scale_bytes(params, unit) + unit.count;
}

/// A task's share: whole blocks.
uint64_t chunk_of(const Int8::Params& params) { return round_up(kDenseChunk, params.block); }

// Compares bits, so that NaN and all negative values are larger.
bool valid_scale(const uint8_t* at) {
  return load<uint32_t>(at) <= float_bits(kernels::kInt8LargestScale);
}

}  // namespace

Contract Int8::contract(const Params& params) {
  Contract c;
  c.zero_stays_zero = true;
  c.feedback = Feedback::own;
  c.memories = memory_set(MemoryKind::residual, MemoryKind::ema);
  c.checks_finite = true;
  c.stochastic = params.round == Round::stochastic;
  c.unbiased = c.stochastic;
  c.granule = params.block;
  return c;
}

Plan Int8::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(params, unit);
  return plan;
}

Encoded Int8::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernels = kernels::int8_kernels(call.work.isa);
  const RandomKey key = own_key(call.place.seed, call.place.step, call.unit.parameter,
                                call.place.rank, call.place.hop);
  uint8_t* codes = out.data() + scale_bytes(*call.params, call.unit);
  std::atomic<bool> finite{true};
  for_slices(
      call.work.pool, call.unit.count, chunk_of(*call.params), [&](uint64_t begin, uint64_t end) {
        const float* x = source.values + begin;
        uint8_t* scales = out.data() + begin / call.params->block * sizeof(float);
        const bool ok =
            call.params->round == Round::nearest
                ? kernels.encode_nearest(x, end - begin, call.params->block, scales, codes + begin)
                : kernels.encode_stochastic(x, end - begin, call.params->block, scales,
                                            codes + begin, key, call.unit.offset + begin);
        if (!ok) finite.store(false, std::memory_order_relaxed);
      });
  return {payload_bytes(*call.params, call.unit), finite.load(std::memory_order_relaxed)};
}

Errc Int8::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  if (payload.size() != payload_bytes(params, unit)) return Errc::payload_malformed;
  const uint64_t codes_at = scale_bytes(params, unit);
  for (uint64_t i = 0; i < codes_at; i += sizeof(float)) {
    if (!valid_scale(payload.data() + i)) return Errc::payload_malformed;
  }
  const bool bad =
      kernels::int8_kernels(best_isa()).any_minus_128(payload.data() + codes_at, unit.count);
  return bad ? Errc::payload_malformed : Errc::ok;
}

void Int8::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const auto& kernels = kernels::int8_kernels(call.work.isa);
  const kernels::Int8Layout layout{call.params->block, scale_bytes(*call.params, call.unit)};
  decode_dense(terms, target, call.unit.count, chunk_of(*call.params), call.work.pool,
               [&](float* out, kernels::Output output, const kernels::Weighted* operands,
                   uint32_t count, uint64_t begin, uint64_t end) {
                 kernels.decode(out, output, operands, count, layout, begin, end);
               });
}

}  // namespace laconic::codecs

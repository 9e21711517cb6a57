// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/qsgd/qsgd.h"

#include <atomic>
#include <bit>
#include <cmath>
#include <numeric>

#include "codecs/dense/dense_decode.h"
#include "kernels/int8/int8.h"
#include "kernels/levels/levels.h"
#include "laconic/random.h"

namespace laconic::codecs {
namespace {

static_assert(kDenseTerms <= kernels::kLevelTerms && kDenseTerms <= kernels::kInt8Terms);

// Payload: ceil(count / bucket) steps (f32), then count values of code_bits bits.
uint32_t code_bits(const Qsgd::Params& params) {
  return static_cast<uint32_t>(std::bit_width(2 * params.levels));
}

kernels::BucketLayout layout_of(const Qsgd::Params& params, const Unit& unit) {
  const auto norm =
      params.norm == Qsgd::Norm::l2 ? kernels::LevelNorm::l2 : kernels::LevelNorm::max;
  return {params.levels, code_bits(params), params.bucket, norm,
          ceil_div(unit.count, params.bucket) * sizeof(float)};
}

uint64_t payload_bytes(const kernels::BucketLayout& layout, const Unit& unit) {
  return layout.codes_at + ceil_div(unit.count * layout.bits, 8);
}

/// A task's share: whole buckets, and codes that start with a byte.
uint64_t chunk_of(const Qsgd::Params& params) {
  return round_up(kDenseChunk, std::lcm<uint64_t>(params.bucket, 8));
}

// Compares bits, so that NaN and all negative values are rejected.
bool valid_step(const uint8_t* at, uint32_t levels) {
  return load<uint32_t>(at) < 0x7F800000U &&
         std::isfinite(load<float>(at) * static_cast<float>(levels));
}

bool zero_padding(Bytes payload, uint64_t code_bits) {
  const uint64_t used = code_bits % 8;
  return used == 0 || payload.back() >> used == 0;
}

}  // namespace

Contract Qsgd::contract(const Params& params) {
  Contract c;
  c.zero_stays_zero = true;
  c.memories = memory_set(MemoryKind::ema);
  c.checks_finite = true;
  c.stochastic = true;
  c.unbiased = true;
  c.granule = params.bucket;
  return c;
}

Plan Qsgd::plan(const Params& params, const Unit& unit, uint32_t) {
  Plan plan;
  plan.round[0].bytes = payload_bytes(layout_of(params, unit), unit);
  if (params.norm == Norm::l2) {  // a norm is at most sqrt(bucket) times the largest magnitude
    const auto half = static_cast<int>(std::bit_width(params.bucket - 1) + 1) / 2;
    plan.largest_input = std::ldexp(plan.largest_input, -half);
  }
  return plan;
}

Encoded Qsgd::encode(const Call<Params>& call, Source source, MutBytes out) {
  const auto& kernels = kernels::levels_kernels(call.work.isa);
  const RandomKey key = own_key(call.place.seed, call.place.step, call.unit.parameter,
                                call.place.rank, call.place.hop);
  const kernels::BucketLayout layout = layout_of(*call.params, call.unit);
  std::atomic<bool> finite{true};
  for_slices(call.work.pool, call.unit.count, chunk_of(*call.params),
             [&](uint64_t begin, uint64_t end) {
               if (!kernels.encode_buckets(source.values + begin, end - begin, layout,
                                           out.data() + begin / call.params->bucket * sizeof(float),
                                           out.data() + layout.codes_at + begin / 8 * layout.bits,
                                           key, call.unit.offset + begin)) {
                 finite.store(false, std::memory_order_relaxed);
               }
             });
  return {payload_bytes(layout, call.unit), finite.load(std::memory_order_relaxed)};
}

Errc Qsgd::check(const Params& params, const Unit& unit, uint32_t, Bytes payload) {
  const kernels::BucketLayout layout = layout_of(params, unit);
  if (payload.size() != payload_bytes(layout, unit)) return Errc::payload_malformed;
  if (unit.count == 0) return Errc::ok;
  for (uint64_t i = 0; i < layout.codes_at; i += sizeof(float)) {
    if (!valid_step(payload.data() + i, params.levels)) return Errc::payload_malformed;
  }
  const bool good =
      zero_padding(payload, unit.count * layout.bits) &&
      kernels::levels_kernels(best_isa())
          .codes_valid(payload.data() + layout.codes_at, unit.count, layout.bits, params.levels);
  return good ? Errc::ok : Errc::payload_malformed;
}

void Qsgd::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  const auto& bytes = kernels::int8_kernels(call.work.isa);
  const auto& levels = kernels::levels_kernels(call.work.isa);
  const kernels::BucketLayout layout = layout_of(*call.params, call.unit);
  decode_dense(
      terms, target, call.unit.count, chunk_of(*call.params), call.work.pool,
      [&](float* out, kernels::Output output, const kernels::Weighted* operands, uint32_t count,
          uint64_t begin, uint64_t end) {
        if (layout.bits == 8) {  // a step and codes of a byte are a block of int8
          bytes.decode(out, output, operands, count, {layout.bucket, layout.codes_at}, begin, end);
        } else {
          levels.decode_buckets(out, output, operands, count, layout, begin, end);
        }
      });
}

}  // namespace laconic::codecs

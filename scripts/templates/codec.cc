// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/@NAME@/@NAME@.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/@NAME@/@NAME@_elements.h"

namespace laconic::codecs {
namespace {

using kernels::k@TYPE@Lanes;
using kernels::@NAME@_bytes;

constexpr uint64_t kScaleBytes = kernels::k@TYPE@ScaleBytes;

/// Position of a block's elements and bytes. Every block but the last is full.
struct Block {
  uint64_t begin;  ///< first element
  uint64_t count;
  uint64_t at;  ///< first byte of the payload: the scale, then the signs
};

uint64_t blocks_of(const Unit& unit, uint32_t block) { return ceil_div(unit.count, block); }

Block block_at(const Unit& unit, uint32_t block, uint64_t i) {
  const uint64_t begin = i * block;
  return {begin, std::min<uint64_t>(block, unit.count - begin),
          i * kernels::@NAME@_block_bytes(block)};
}

/// Added in lanes that are the same everywhere, in double, and then folded: the same bytes come
/// out on every machine, and a GPU's threads have a lane each.
float mean_abs(const float* x, uint64_t n) {
  std::array<double, k@TYPE@Lanes> lanes{};
  for (uint64_t i = 0; i < n; ++i)
    lanes[i % k@TYPE@Lanes] += std::fabs(static_cast<double>(x[i]));
  for (uint32_t d = k@TYPE@Lanes / 2; d > 0; d /= 2)
    for (uint32_t l = 0; l < d; ++l) lanes[l] += lanes[l + d];
  return kernels::@NAME@_scale(lanes[0], n);
}

/// Bit i is set where x[i] is negative; -0 is not.
void pack_signs(const float* x, uint64_t n, uint8_t* bits) {
  std::fill_n(bits, ceil_div(n, 8), uint8_t{0});
  for (uint64_t i = 0; i < n; ++i) {
    const unsigned negative = x[i] < 0 ? 1U : 0U;
    bits[i / 8] = static_cast<uint8_t>(bits[i / 8] | (negative << (i % 8)));
  }
}

void add_signs(const uint8_t* payload, uint64_t n, float weight, float* out) {
  const float magnitude = weight * load<float>(payload);
  const uint8_t* bits = payload + kScaleBytes;
  for (uint64_t i = 0; i < n; ++i) {
    out[i] += ((bits[i / 8] >> (i % 8)) & 1) != 0 ? -magnitude : magnitude;
  }
}

}  // namespace

Contract @TYPE@::contract(const Params& params) {
  Contract contract;
  contract.feedback = Feedback::own;
  contract.memory_default = MemoryKind::residual;
  contract.memories = memory_set(MemoryKind::residual);
  // |x − m·sign(x)|² = |x|² − |x|₁²/n, and |x|₁² ≥ |x|².
  contract.contraction = 1.0F / static_cast<float>(params.block);
  contract.granule = params.block;
  return contract;
}

Plan @TYPE@::plan(const Params& params, const Unit& unit, uint32_t /*world*/) {
  Plan plan;
  plan.round[0].bytes = @NAME@_bytes(unit.count, params.block);
  return plan;
}

Encoded @TYPE@::encode(const Call<Params>& call, Source source, MutBytes out) {
  parallel_for(call.work.pool, blocks_of(call.unit, call.params->block), [&](uint64_t i) {
    const Block block = block_at(call.unit, call.params->block, i);
    const float* x = source.values + block.begin;
    store(out.data() + block.at, mean_abs(x, block.count));
    pack_signs(x, block.count, out.data() + block.at + kScaleBytes);
  });
  return {@NAME@_bytes(call.unit.count, call.params->block), true};
}

Errc @TYPE@::check(const Params& params, const Unit& unit, uint32_t /*round*/, Bytes payload) {
  if (payload.size() != @NAME@_bytes(unit.count, params.block)) return Errc::payload_malformed;
  for (uint64_t i = 0; i < blocks_of(unit, params.block); ++i) {
    const float scale = load<float>(payload.data() + block_at(unit, params.block, i).at);
    if (!kernels::@NAME@_scale_is_valid(scale)) return Errc::payload_malformed;
  }
  return Errc::ok;
}

void @TYPE@::decode(const Call<Params>& call, std::span<const Term> terms, Target target) {
  parallel_for(call.work.pool, blocks_of(call.unit, call.params->block), [&](uint64_t i) {
    const Block block = block_at(call.unit, call.params->block, i);
    float* out = target.values + block.begin;
    if (!target.add) std::fill_n(out, block.count, 0.0F);
    for (const Term& term : terms) {
      add_signs(term.payload.data() + block.at, block.count, term.weight, out);
    }
  });
}

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One block's scale and one element's code: the reference, and the tails of the vector loops.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/int8/int8.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

struct Int8Scale {
  float scale = 0;
  float inverse = 0;
};

/// `max_bits`: the largest absolute bits of the block.
[[nodiscard]] LACONIC_HOST_DEVICE inline Int8Scale int8_scale(uint32_t max_bits) noexcept {
  const float max = bits_float(max_bits);
  if (max < kInt8Tiny || max_bits >= 0x7F800000U) return {};
  const auto step_down = [](float x) { return bits_float(float_bits(x) - 1); };
  const float scale = max / 127.0F;
  const float inverse = 127.0F / max;
  return {scale * 127.0F > bits_float(0x7F7FFFFFU) ? step_down(scale) : scale,
          max * inverse > 127.0F ? step_down(inverse) : inverse};
}

/// Adding it rounds a float of magnitude up to 2^22 to an integer, ties to even, which then stands
/// in the low bits.
inline constexpr float kRoundingMagic = 0x1.8p23F;

[[nodiscard]] LACONIC_HOST_DEVICE inline int8_t int8_nearest(float x, float inverse) noexcept {
  return static_cast<int8_t>(float_bits(x * inverse + kRoundingMagic) & 0xFFU);
}

/// `r`: 15 random bits.
[[nodiscard]] LACONIC_HOST_DEVICE inline int8_t int8_stochastic(float x, float inverse,
                                                                uint32_t r) noexcept {
  const uint32_t sum = float_bits(x * inverse * 32768.0F + kRoundingMagic) + r;
  return static_cast<int8_t>(((sum >> 15) ^ 0x80U) & 0xFFU);  // the magic's own bit 22 ends as 0x80
}

[[nodiscard]] LACONIC_HOST_DEVICE inline float int8_value(int8_t code, float scale) noexcept {
  return static_cast<float>(code) * scale;
}

/// A payload's view of one block, and its element i.
struct BlockCodes {
  const int8_t* codes = nullptr;
  float scale = 0;
};
[[nodiscard]] inline float block_element(const void* block, uint64_t i) noexcept {
  const auto& b = *static_cast<const BlockCodes*>(block);
  return int8_value(b.codes[i], b.scale);
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Constants and elements of rotations: the reference, and the ends of short blocks.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

#include "base/host_device.h"
#include "kernels/rotate/rotate.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

/// 1/√d, rounded to float32: exact where d is a power of four.
[[nodiscard]] constexpr float rotation_scale(uint32_t d) noexcept {
  const auto levels = static_cast<uint32_t>(std::countr_zero(d));
  const float root = 1.0F / static_cast<float>(1U << levels / 2);
  return levels % 2 == 0 ? root : root * 0x1.6A09E6p-1F;
}

/// The norm of a block with this sum of squares; infinite from kLargestNorm on, or if it is NaN.
[[nodiscard]] inline float block_norm(double squares) noexcept {
  const auto norm = static_cast<float>(std::sqrt(squares));
  return norm < kLargestNorm ? norm : std::numeric_limits<float>::infinity();
}

/// Virtual lanes of square_norm.
inline constexpr uint32_t kNormLanes = 32;

/// A lane with one more element.
[[nodiscard]] LACONIC_HOST_DEVICE inline double with_square(double lane, float x) noexcept {
  const auto a = static_cast<double>(x);
  return lane + a * a;
}

/// Elements whose signs one block of Philox holds.
inline constexpr uint32_t kSignBlock = 128;

/// Four words of a block's signs, from element kSignBlock·k on.
[[nodiscard]] constexpr RandomBlock sign_words(SignStream signs, uint64_t k) noexcept {
  return philox(signs.key, signs.first / kSignBlock + k);
}
/// Word w, of its elements 32·w to 32·w + 31.
[[nodiscard]] constexpr uint32_t sign_word(SignStream signs, uint64_t w) noexcept {
  return sign_words(signs, w / 4)[w % 4];
}

/// x, or -x if bit `i % 32` of the word is set.
[[nodiscard]] LACONIC_HOST_DEVICE inline float with_sign(float x, uint32_t word,
                                                         uint64_t i) noexcept {
  return bits_float(float_bits(x) ^ (word >> (i % 32) & 1U) << 31);
}

/// A level's step.
LACONIC_HOST_DEVICE inline void butterfly(float& a, float& b) noexcept {
  const float before = a;
  a = before + b;
  b = before - b;
}

}  // namespace laconic::kernels

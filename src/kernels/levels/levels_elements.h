// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Random levels element by element: the reference, and the tails of the vector loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "kernels/core/packed_codes.h"
#include "kernels/core/random_group.h"
#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/levels/levels.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

// ---- steps ----

struct LevelStep {
  float step = 0;
  float factor = 0;
  bool finite = true;
};

/// The step for a bucket with this norm. No |x| <= norm gets a value beyond `levels`, and
/// levels·step is finite.
[[nodiscard]] inline LevelStep level_step(float norm, uint32_t levels) noexcept {
  const auto step_down = [](float x) { return bits_float(float_bits(x) - 1); };
  constexpr uint32_t kInfinity = 0x7F800000U;
  if (float_bits(norm) >= kInfinity) return {0, 0, false};
  const auto most = static_cast<float>(levels);
  const float step = norm / most;
  if (step < kTinyStep) return {};
  const float limit = most * 32768.0F;
  const float factor = limit / norm;
  return {float_bits(step * most) >= kInfinity ? step_down(step) : step,
          norm * factor > limit ? step_down(factor) : factor, true};
}

/// Virtual lanes of a sum.
inline constexpr uint32_t kMomentLanes = 32;

/// Folds 8 lanes that are left of 32.
[[nodiscard]] inline double fold_eight(const double* lanes) noexcept {
  const double a = lanes[0] + lanes[4], b = lanes[1] + lanes[5];
  const double c = lanes[2] + lanes[6], d = lanes[3] + lanes[7];
  return (a + c) + (b + d);
}

/// The norm from the sum of squares: at least the largest magnitude, as every rounding on the way
/// keeps the order. Infinite when it is beyond FLT_MAX.
[[nodiscard]] inline float level_norm(double squares) noexcept {
  return static_cast<float>(std::sqrt(squares));
}

// ---- codes ----

/// Adding it rounds to an integer, ties to even, that stands in the low bits.
inline constexpr double kDoubleMagic = 0x1.8p52;

[[nodiscard]] inline int32_t nearest_integer(float f) noexcept {
  return static_cast<int32_t>((static_cast<double>(f) + kDoubleMagic) - kDoubleMagic);
}

/// `r`: 15 random bits. |x·factor| is at most 2^30.
[[nodiscard]] inline int32_t level_code(float x, float factor, uint32_t r) noexcept {
  return (nearest_integer(x * factor) + static_cast<int32_t>(r)) >> 15;
}

/// Bits of a ternary code's share of the step: more than a float has, and a product of up to 63
/// steps still fits 32 bits.
inline constexpr uint32_t kTernaryBits = 25;
inline constexpr float kTernaryOne = 0x1p25F;

/// `r`: random bits.
[[nodiscard]] inline int32_t ternary_code(float x, float factor, uint32_t r) noexcept {
  const float f = std::min(std::max(x * factor, -kTernaryOne), kTernaryOne);
  return (nearest_integer(f) + static_cast<int32_t>(r)) >> kTernaryBits;
}

/// The factor of a step, 0 of 0: the step itself is surely rounded to 1.
[[nodiscard]] inline float ternary_factor(float step) noexcept {
  if (step == 0) return 0;
  const float factor = kTernaryOne / step;
  return step * factor < kTernaryOne ? bits_float(float_bits(factor) + 1) : factor;
}

/// The random bits of element e of a parameter.
[[nodiscard]] inline uint32_t level_random(RandomKey key, uint64_t e) noexcept {
  return random_fifteen(random_word(key, e), e);
}
[[nodiscard]] inline uint32_t ternary_random(RandomKey key, uint64_t e) noexcept {
  const uint32_t word = random_word(key, e);
  return (e / 16 % 2 == 0 ? word << 16 | word >> 16 : word) >> (32 - kTernaryBits);
}

// ---- decoding ----

[[nodiscard]] inline float level_value(int32_t code, float step) noexcept {
  return static_cast<float>(code) * step;
}

/// The codes of one term in a part of a bucket, and its element i.
template <class Code>
struct BucketCodes {
  const Code* codes = nullptr;
  float step = 0;
};
template <class Code>
[[nodiscard]] inline float bucket_element(const void* part, uint64_t i) noexcept {
  const auto& p = *static_cast<const BucketCodes<Code>*>(part);
  return level_value(p.codes[i], p.step);
}

[[nodiscard]] inline uint32_t pair_at(const void* codes, uint64_t i) noexcept {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(codes)[i / 4]) >> (2 * (i % 4)) & 3U;
}

}  // namespace laconic::kernels

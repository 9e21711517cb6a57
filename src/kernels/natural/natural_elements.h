// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One element's code: the reference, and the tails of the vector loops.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/core/random_group.h"
#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/natural/natural.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

inline constexpr uint32_t kNaturalLowest = 18;    ///< biased exponent of code 0
inline constexpr uint32_t kNaturalHighest = 145;  ///< of code 127: 2^18

[[nodiscard]] constexpr uint8_t natural_code(uint32_t sum) noexcept {
  const uint32_t exponent = sum >> 23 & 0xFFU;
  const uint32_t clamped = std::clamp(exponent, kNaturalLowest, kNaturalHighest);
  return static_cast<uint8_t>((clamped - kNaturalLowest) | (sum >> 24 & 0x80U));
}

/// The random bits of element e of a parameter.
[[nodiscard]] constexpr uint32_t natural_random_bits(uint32_t word, uint64_t e) noexcept {
  return e / 16 % 2 == 0 ? (word << 7 | word >> 25) & 0x7FFFFFU : word >> 9;
}

/// The code of x = element e.
[[nodiscard]] inline uint8_t natural_element(float x, RandomKey key, uint64_t e) noexcept {
  return natural_code(float_bits(x) + natural_random_bits(random_word(key, e), e));
}

/// Codes are exponents as they are, but 18 too small.
inline constexpr float kNaturalScale = 0x1p18F;

[[nodiscard]] inline float natural_value(const void* codes, uint64_t i) noexcept {
  const uint32_t code = at<uint8_t>(codes, i);
  return bits_float((code & 0x7FU) << 23 | (code & 0x80U) << 24) * kNaturalScale;
}

}  // namespace laconic::kernels

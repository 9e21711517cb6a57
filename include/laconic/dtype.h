// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Element types, and the two 16-bit floats as integer operations (round to nearest, ties to even).
#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

namespace laconic {

/// Element types of inputs and of lanes that an engine can add. Numbers travel in frames.
enum class DType : uint8_t { f32 = 0, f16 = 1, bf16 = 2, u8 = 3, u16 = 4, i32 = 5 };

[[nodiscard]] constexpr uint64_t dtype_size(DType t) noexcept {
  return t == DType::f32 || t == DType::i32 ? 4U : t == DType::u8 ? 1U : 2U;
}
std::string_view dtype_name(DType t) noexcept;

[[nodiscard]] constexpr uint32_t float_bits(float x) noexcept { return std::bit_cast<uint32_t>(x); }
[[nodiscard]] constexpr float bits_float(uint32_t u) noexcept { return std::bit_cast<float>(u); }

/// float → bfloat16, ties to even. NaN stays a quiet NaN of the same sign; overflow gives infinity.
[[nodiscard]] constexpr uint16_t float_to_bf16(float x) noexcept {
  const uint32_t u = float_bits(x);
  if ((u & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<uint16_t>((u >> 16) | 0x0040U);
  return static_cast<uint16_t>((u + 0x7FFFU + ((u >> 16) & 1U)) >> 16);
}
[[nodiscard]] constexpr float bf16_to_float(uint16_t h) noexcept {
  return bits_float(static_cast<uint32_t>(h) << 16);
}

/// float → IEEE half, ties to even, denormals kept. NaN stays NaN; magnitudes that round above
/// 65504 give infinity.
[[nodiscard]] constexpr uint16_t float_to_f16(float x) noexcept {
  const uint32_t u = float_bits(x);
  const auto sign = static_cast<uint16_t>((u >> 16) & 0x8000U);
  const uint32_t a = u & 0x7FFFFFFFU;
  if (a > 0x7F800000U) return static_cast<uint16_t>(sign | 0x7E00U);
  if (a >= 0x477FF000U) return static_cast<uint16_t>(sign | 0x7C00U);
  if (a < 0x38800000U) {  // result is denormal or zero: let the float adder round
    const float magic = bits_float(0x3F000000U);  // 0.5 = 2^-24 · 2^23
    const float r = bits_float(a) + magic;
    return static_cast<uint16_t>(sign | (float_bits(r) - 0x3F000000U));
  }
  const uint32_t rounded = a + 0xFFFU + ((a >> 13) & 1U);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000U) >> 13));
}
[[nodiscard]] constexpr float f16_to_float(uint16_t h) noexcept {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000U) << 16;
  const uint32_t em = h & 0x7FFFU;
  if (em >= 0x7C00U) {
    return bits_float(sign | 0x7F800000U | ((em & 0x3FFU) << 13) |
                      ((em & 0x3FFU) != 0 ? 0x400000U : 0U));
  }
  if (em < 0x400U) {  // zero or denormal: em · 2^-24, exact
    const float magnitude = static_cast<float>(em) * bits_float(0x33800000U);
    return bits_float(sign | float_bits(magnitude));
  }
  return bits_float(sign | ((em << 13) + 0x38000000U));
}

/// Finite magnitudes above 65504, the largest half float, become 65504; infinities and NaN stay.
[[nodiscard]] constexpr float saturate_to_f16(float x) noexcept {
  const uint32_t u = float_bits(x);
  const uint32_t a = u & 0x7FFFFFFFU;
  return a > 0x477FE000U && a < 0x7F800000U ? bits_float((u & 0x80000000U) | 0x477FE000U) : x;
}

}  // namespace laconic

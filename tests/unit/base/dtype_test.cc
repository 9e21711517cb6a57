// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "laconic/random.h"

namespace laconic {
namespace {

// The value of 16 bits read as sign, exponent and fraction, in double: exact for both formats.
struct Format {
  int fraction_bits;
  int exponent_bits;
};
constexpr Format kF16{10, 5};
constexpr Format kBf16{7, 8};

double value_of(uint32_t bits, Format f) {
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  const int exponent = static_cast<int>(bits >> f.fraction_bits) & ((1 << f.exponent_bits) - 1);
  const double fraction = bits & ((1U << f.fraction_bits) - 1U);
  const double sign = (bits & 0x8000U) != 0 ? -1.0 : 1.0;
  const double unit = std::ldexp(1.0, -f.fraction_bits);
  if (exponent == 0) return sign * std::ldexp(fraction * unit, 1 - bias);
  return sign * std::ldexp(1.0 + fraction * unit, exponent - bias);
}

// Nearest, ties to even, by search: the oracle knows nothing of shifting bits. The pattern after
// the largest finite one is read as the next power of two, which is where IEEE 754 puts the border
// to infinity.
uint16_t nearest(float x, Format f) {
  const uint32_t sign = std::signbit(x) ? 0x8000U : 0;
  const double target = std::fabs(static_cast<double>(x));
  const auto infinity = static_cast<uint32_t>(((1 << f.exponent_bits) - 1) << f.fraction_bits);
  if (target >= value_of(infinity, f)) return static_cast<uint16_t>(sign | infinity);
  uint32_t low = 0;
  uint32_t high = infinity;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (value_of(middle, f) <= target ? low : high) = middle;
  }
  const double below = target - value_of(low, f);
  const double above = value_of(high, f) - target;
  const bool up = above < below || (above == below && (low & 1U) != 0);
  return static_cast<uint16_t>(sign | (up ? high : low));
}

bool is_nan(uint32_t bits, Format f) {
  return (bits & 0x7FFFU) > static_cast<uint32_t>(((1 << f.exponent_bits) - 1) << f.fraction_bits);
}

TEST(F16, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float x = f16_to_float(h);
    if (is_nan(bits, kF16)) {
      EXPECT_TRUE(std::isnan(x)) << bits;
      EXPECT_TRUE(is_nan(float_to_f16(x), kF16)) << bits;
      EXPECT_EQ(std::signbit(x), (bits & 0x8000U) != 0) << bits;
      continue;
    }
    if ((bits & 0x7FFFU) < 0x7C00U) {
      ASSERT_EQ(static_cast<double>(x), value_of(bits, kF16)) << bits;
    }
    ASSERT_EQ(float_to_f16(x), h);
  }
}

TEST(Bf16, EveryPatternRoundTrips) {
  for (uint32_t bits = 0; bits < 0x10000U; ++bits) {
    const auto h = static_cast<uint16_t>(bits);
    const float x = bf16_to_float(h);
    if (is_nan(bits, kBf16)) {
      EXPECT_TRUE(std::isnan(x));
      EXPECT_EQ(float_to_bf16(x), bits | 0x40U);
      continue;
    }
    if ((bits & 0x7FFFU) < 0x7F80U) {
      ASSERT_EQ(static_cast<double>(x), value_of(bits, kBf16)) << bits;
    }
    ASSERT_EQ(float_to_bf16(x), h);
  }
}

// Every border between two neighbours, and one float on each side of it; then random patterns.
std::vector<float> hard_values(Format f) {
  std::vector<float> values;
  const auto infinity = static_cast<uint32_t>(((1 << f.exponent_bits) - 1) << f.fraction_bits);
  for (uint32_t bits = 0; bits < infinity; ++bits) {
    const double border = (value_of(bits, f) + value_of(bits + 1, f)) / 2;
    const auto x = static_cast<float>(border);
    for (float y : {x, std::nextafter(x, 0.0F), std::nextafter(x, HUGE_VALF)}) {
      values.push_back(y);
      values.push_back(-y);
    }
  }
  for (uint64_t i = 0; i < 100000; ++i) {
    for (uint32_t word : philox({1, 2}, i)) {
      const float x = std::bit_cast<float>(word);
      if (!std::isnan(x)) values.push_back(x);
    }
  }
  for (float x : {0.0F, -0.0F, HUGE_VALF, -HUGE_VALF, std::numeric_limits<float>::max(),
                  std::numeric_limits<float>::denorm_min(), 65504.0F, 65519.996F, 65520.0F}) {
    values.push_back(x);
  }
  return values;
}

TEST(F16, RoundsLikeTheOracle) {
  for (float x : hard_values(kF16))
    ASSERT_EQ(float_to_f16(x), nearest(x, kF16)) << std::hexfloat << x;
}

TEST(Bf16, RoundsLikeTheOracle) {
  for (float x : hard_values(kBf16)) {
    ASSERT_EQ(float_to_bf16(x), nearest(x, kBf16)) << std::hexfloat << x;
  }
}

TEST(Nan, NanStaysNanWithItsSign) {
  for (uint32_t bits : {0x7F800001U, 0x7FC00000U, 0x7FFFFFFFU, 0xFF800001U, 0xFFFFFFFFU}) {
    const float x = std::bit_cast<float>(bits);
    EXPECT_TRUE(is_nan(float_to_f16(x), kF16)) << bits;
    EXPECT_TRUE(is_nan(float_to_bf16(x), kBf16)) << bits;
    EXPECT_EQ(float_to_f16(x) >> 15, bits >> 31);
    EXPECT_EQ(float_to_bf16(x) >> 15, bits >> 31);
  }
}

TEST(DType, NamesAndSizesMatch) {
  EXPECT_EQ(dtype_name(DType::f32), "f32");
  EXPECT_EQ(dtype_name(DType::f16), "f16");
  EXPECT_EQ(dtype_name(DType::bf16), "bf16");
  EXPECT_EQ(dtype_name(DType::u8), "u8");
  EXPECT_EQ(dtype_name(static_cast<DType>(9)), "unknown");
  EXPECT_EQ(dtype_size(DType::f32), 4U);
  EXPECT_EQ(dtype_size(DType::bf16), 2U);
  EXPECT_EQ(dtype_size(DType::u8), 1U);
}

}  // namespace
}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/int8/int8.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/int8/int8_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr RandomKey kKey{0x12345678U, 0x9ABCDEF0U};

class Int8KernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const Int8Kernels& simd_ = int8_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, Int8KernelsTest, testing::ValuesIn(isas()), isa_param_name);

uint64_t blocks(uint64_t n, uint32_t block) { return (n + block - 1) / block; }

struct Coded {
  std::vector<uint8_t> scales, codes;
  bool finite = true;
};

/// `first`: offset in the parameter for stochastic rounding; negative: nearest.
Coded encode(const Int8Kernels& k, const float* x, uint64_t n, uint32_t block, int64_t first) {
  Coded c;
  c.scales.assign(4 * blocks(n, block) + 7, 0xEE);
  c.codes.assign(n + 70, 0xEE);
  c.finite = first < 0 ? k.encode_nearest(x, n, block, c.scales.data() + 3, c.codes.data() + 1)
                       : k.encode_stochastic(x, n, block, c.scales.data() + 3, c.codes.data() + 1,
                                             kKey, static_cast<uint64_t>(first));
  return c;
}

TEST_P(Int8KernelsTest, EncodersEqualTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint32_t block : {16U, 17U, 64U, 100U, 256U, 4096U}) {
      if (n > 1000 && n % 2 == 0) continue;
      for (const int64_t first : {-1, 0, 64, 16, 4099}) {
        for (const std::vector<float>& x : {normal_values(n + 1, n), finite_specials(n + 1, n)}) {
          const Coded a = encode(kInt8Scalar, x.data() + 1, n, block, first);
          const Coded b = encode(simd_, x.data() + 1, n, block, first);
          expect_same(a.scales, b.scales, n);
          expect_same(a.codes, b.codes, n);
          EXPECT_TRUE(a.finite && b.finite);
        }
      }
    }
  }
}

// Counters of random blocks that exceed 32 bits, inside a call and beyond.
TEST_P(Int8KernelsTest, FarOffsetsEqualTheReference) {
  const std::vector<float> x = normal_values(700, 5);
  for (const int64_t groups : {-6, -5, -4, -3, -2, -1, 0, 1, 1 << 20}) {
    const int64_t first = (int64_t{1} << 35) + 64 * groups;
    const Coded a = encode(kInt8Scalar, x.data(), 700, 256, first);
    const Coded b = encode(simd_, x.data(), 700, 256, first);
    expect_same(a.codes, b.codes, 700);
  }
}

// Blocks whose 127 / max is up to where 2^15 times it overflows, and beyond.
TEST_P(Int8KernelsTest, TinyBlocksEqualTheReference) {
  for (int exponent = -122; exponent <= -100; ++exponent) {
    std::vector<float> x = normal_values(1025, 7);
    for (float& v : x) v = std::ldexp(v, exponent + 6);
    for (const int64_t first : {0, 16}) {
      const Coded a = encode(kInt8Scalar, x.data() + 1, 1024, 256, first);
      const Coded b = encode(simd_, x.data() + 1, 1024, 256, first);
      expect_same(a.scales, b.scales, 1024);
      expect_same(a.codes, b.codes, 1024);
    }
  }
}

TEST_P(Int8KernelsTest, NonFiniteBlocksAreReportedAndZero) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (const uint64_t where : {0U, 100U, 255U, 256U, 299U}) {
      std::vector<float> x = normal_values(300, 1);
      x[where] = bad;
      for (const int64_t first : {-1, 0}) {
        const Coded a = encode(kInt8Scalar, x.data(), 300, 256, first);
        const Coded b = encode(simd_, x.data(), 300, 256, first);
        EXPECT_FALSE(a.finite);
        EXPECT_FALSE(b.finite);
        expect_same(a.scales, b.scales, where);
        expect_same(a.codes, b.codes, where);
        EXPECT_EQ(b.codes[1 + where], 0);
      }
    }
  }
}

TEST_P(Int8KernelsTest, DecodersEqualTheReference) {
  std::mt19937_64 random(3);
  for (const uint64_t n : sizes()) {
    const std::vector<float> before = normal_values(n + 20, 5);
    for (const uint32_t block : {16U, 17U, 100U, 256U}) {
      const Int8Layout layout{block, 4 * blocks(n, block)};
      std::vector<std::vector<uint8_t>> payloads;
      std::vector<Weighted> terms;
      for (uint32_t t = 0; t < kInt8Terms; ++t) {
        payloads.emplace_back(layout.codes_at + n + 3);
        for (uint8_t& byte : payloads.back()) byte = static_cast<uint8_t>(random());
        for (uint64_t b = 0; b < blocks(n, block); ++b)
          payloads[t][t % 3 + 4 * b + 3] &= 0x3FU;  // finite
      }
      for (uint32_t t = 0; t < kInt8Terms; ++t)
        terms.push_back({payloads[t].data() + t % 3, 0.37F - 0.1F * static_cast<float>(t)});
      for (const uint32_t count : {0U, 1U, 3U, kInt8Terms}) {
        for (const Output output : {Output::set, Output::stream, Output::add}) {
          for (const uint64_t shift : {0U, 1U}) {
            const uint64_t begin = n / 2 / block * block;
            std::vector<float> a = before, b = a;
            const uint64_t align = (64 - reinterpret_cast<uintptr_t>(b.data()) % 64) % 64 / 4;
            kInt8Scalar.decode(a.data() + align + shift, output, terms.data(), count, layout, begin,
                               n);
            simd_.decode(b.data() + align + shift, output, terms.data(), count, layout, begin, n);
            expect_same(a, b, n);
          }
        }
      }
    }
  }
}

TEST_P(Int8KernelsTest, Minus128IsFoundAnywhere) {
  for (uint64_t n = 0; n < 200; ++n) {
    std::vector<uint8_t> codes(n + 2, 0x80);
    std::fill(codes.begin() + 1, codes.begin() + 1 + static_cast<int64_t>(n), uint8_t{0x81});
    EXPECT_FALSE(simd_.any_minus_128(codes.data() + 1, n)) << n;
    if (n == 0) continue;
    codes[1 + (n * 7) % n] = 0x80;
    EXPECT_TRUE(simd_.any_minus_128(codes.data() + 1, n)) << n;
    codes[1 + (n * 7) % n] = 0x7F;
    codes[n] = 0x80;
    EXPECT_TRUE(simd_.any_minus_128(codes.data() + 1, n)) << n;
  }
}

// The reference, held to its promises.

TEST(Int8Reference, ValuesStayBelow128AndDecodeStaysFinite) {
  std::mt19937_64 random(11);
  const auto check = [](float max) {
    const Int8Scale s = int8_scale(float_bits(max));
    ASSERT_EQ(int8_nearest(max, s.inverse), 127) << std::hexfloat << max;
    ASSERT_EQ(int8_nearest(-max, s.inverse), -127) << std::hexfloat << max;
    for (const uint32_t r : {0U, 1U, 0x7FFEU, 0x7FFFU}) {
      ASSERT_GE(int8_stochastic(-max, s.inverse, r), -127) << std::hexfloat << max;
      ASSERT_LE(int8_stochastic(max, s.inverse, r), 127) << std::hexfloat << max;
      ASSERT_GE(int8_stochastic(max, s.inverse, r), 126) << std::hexfloat << max;
    }
    ASSERT_TRUE(std::isfinite(int8_value(127, s.scale))) << std::hexfloat << max;
    ASSERT_NEAR(int8_value(127, s.scale) / max, 1.0F, 3e-7F) << std::hexfloat << max;
  };
  for (int i = 0; i < 1000000; ++i) {
    const float max = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFFU);
    if (std::isfinite(max) && max >= kInt8Tiny) check(max);
  }
  check(kInt8Tiny);
  for (uint32_t u = 0x7F7FFFFFU; u > 0x7F7FF000U; --u) check(std::bit_cast<float>(u));
}

TEST(Int8Reference, TinyBlocksBecomeZero) {
  const Int8Scale s = int8_scale(float_bits(kInt8Tiny) - 1);
  EXPECT_EQ(s.scale, 0.0F);
  EXPECT_EQ(s.inverse, 0.0F);
  EXPECT_GE(int8_scale(float_bits(kInt8Tiny)).scale, std::numeric_limits<float>::min());
}

TEST(Int8Reference, NearestIsWithinHalfAScale) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 200000; ++i) {
    const float max = std::bit_cast<float>(static_cast<uint32_t>(random()) & 0x7FFFFFFFU);
    if (!std::isfinite(max) || max < kInt8Tiny) continue;
    const float x = max * std::uniform_real_distribution<float>(-1, 1)(random);
    const Int8Scale s = int8_scale(float_bits(max));
    const double error =
        std::fabs(static_cast<double>(x) -
                  static_cast<double>(int8_value(int8_nearest(x, s.inverse), s.scale)));
    ASSERT_LE(error, static_cast<double>(s.scale) * (0.5 + 0x1p-14))
        << std::hexfloat << max << " " << x;
  }
}

}  // namespace
}  // namespace laconic::kernels

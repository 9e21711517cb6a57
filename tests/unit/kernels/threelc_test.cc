// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/threelc/threelc.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "unit/kernels/digit_inputs.h"

namespace laconic::kernels {
namespace {

class ThreeLcKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const ThreeLcKernels& simd = threelc_kernels(GetParam());
  const ThreeLcKernels& reference = kThreeLcScalar;
};

INSTANTIATE_TEST_SUITE_P(EveryIsa, ThreeLcKernelsTest,
                         testing::ValuesIn(available_isas().begin(), available_isas().end()),
                         [](const auto& test) { return std::string(isa_name(test.param)); });

std::vector<float> gaussian(uint64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

TEST_P(ThreeLcKernelsTest, MaximumOfBitsEqualsReference) {
  for (const uint64_t n : sizes()) {
    const std::vector<float> x = gaussian(n + 1, 1), e = gaussian(n + 1, 2);
    for (const float* residual : {static_cast<const float*>(nullptr), e.data()}) {
      const uint32_t expected = reference.max_abs_bits(x.data() + 1, residual, n, false);
      for (const bool prefetch : {false, true})
        EXPECT_EQ(simd.max_abs_bits(x.data() + 1, residual, n, prefetch), expected) << n;
    }
  }
}

TEST_P(ThreeLcKernelsTest, MaximumFindsNonFinite) {
  const float inf = std::numeric_limits<float>::infinity();
  const float big = std::numeric_limits<float>::max();
  for (uint64_t at = 0; at < 150; ++at) {
    const bool prefetch = at % 2 == 0;
    std::vector<float> x(150, -1.0F), e(150, 0.5F);
    for (const float bad : {inf, -inf, std::nanf(""), -std::nanf("")}) {
      x[at] = bad;
      EXPECT_GE(simd.max_abs_bits(x.data(), nullptr, 150, prefetch), 0x7F800000U);
      EXPECT_GE(simd.max_abs_bits(x.data(), e.data(), 150, prefetch), 0x7F800000U);
    }
    x[at] = -big;
    EXPECT_EQ(simd.max_abs_bits(x.data(), e.data(), 150, prefetch), std::bit_cast<uint32_t>(big));
    e[at] = -big;
    EXPECT_GE(simd.max_abs_bits(x.data(), e.data(), 150, prefetch), 0x7F800000U);
  }
}

TEST_P(ThreeLcKernelsTest, PackingEqualsTheReference) {
  for (const uint64_t columns : sizes()) {
    const uint64_t stride = columns + 3;
    const std::vector<float> x = gaussian(5 * stride, 3);
    const std::vector<float> e0 = gaussian(5 * stride, 4);
    for (const ThreeLcScale scale : {ThreeLcScale{3.0F, 1.5F}, ThreeLcScale{0.9F, 0.45F},
                                     ThreeLcScale{0, std::numeric_limits<float>::max()}}) {
      std::vector<float> e1 = e0, e2 = e0;
      std::vector<uint8_t> b1(columns + 64, kCanary), b2 = b1, b3 = b1, b4 = b1;
      simd.pack(x.data(), e1.data(), stride, columns, scale, true, b1.data());
      reference.pack(x.data(), e2.data(), stride, columns, scale, false, b2.data());
      EXPECT_EQ(b1, b2) << columns;
      EXPECT_TRUE(same_bits(e1, e2)) << columns;
      simd.pack(x.data(), nullptr, stride, columns, scale, true, b3.data());
      reference.pack(x.data(), nullptr, stride, columns, scale, false, b4.data());
      EXPECT_EQ(b3, b4) << columns;
    }
  }
}

TEST_P(ThreeLcKernelsTest, TiesAndSignedZerosPackToZero) {
  const std::vector<float> x{0.5F, -0.5F, 0.50000006F, -0.50000006F, -0.0F, 0.0F, 1e-45F, 1.0F};
  std::vector<float> row;
  for (int k = 0; k < 5 * 8; ++k) row.insert(row.end(), x.begin(), x.end());
  std::vector<float> e1(row.size(), -0.0F), e2 = e1;
  std::vector<uint8_t> b1(64), b2(64);
  simd.pack(row.data(), e1.data(), 64, 64, {1.0F, 0.5F}, false, b1.data());
  reference.pack(row.data(), e2.data(), 64, 64, {1.0F, 0.5F}, false, b2.data());
  EXPECT_EQ(b1, b2);
  EXPECT_TRUE(same_bits(e1, e2));
  EXPECT_EQ(b1[0], 121);
  EXPECT_EQ(b1[1], 121);
  EXPECT_EQ(b1[2], 242);
  EXPECT_EQ(b1[3], 0);
}

TEST_P(ThreeLcKernelsTest, UnpackingEqualsTheReference) {
  const float huge = std::numeric_limits<float>::max();
  for (const uint64_t columns : sizes()) {
    for (const uint32_t count : {1U, 2U, 8U}) {
      const uint64_t stride = columns + 1;
      std::vector<std::vector<uint8_t>> bytes;
      std::vector<ThreeLcTerm> terms;
      for (uint32_t t = 0; t < count; ++t) bytes.push_back(digit_bytes(columns, 0.3, 10 + t));
      for (uint32_t t = 0; t < count; ++t) {
        const float w = t % 2 == 0 ? -0.3F * static_cast<float>(t + 1) : 2.0F,
                    m = t == 5 ? huge : 0.7F;
        terms.push_back({bytes[t].data(), {w * -m, w * 0.0F, w * m}});
      }
      std::vector<float> base = gaussian(5 * stride + 1, 5);
      for (uint64_t i = 0; i < base.size(); i += 3) base[i] = -0.0F;
      for (const bool add : {false, true}) {
        std::vector<float> a = base, b = base, c = base;
        simd.unpack(terms.data(), count, columns, a.data() + 1, stride, add);
        reference.unpack(terms.data(), count, columns, b.data() + 1, stride, add);
        EXPECT_TRUE(same_bits(a, b)) << columns;
        if (add) continue;
        simd.unpack_stream(terms.data(), count, columns, 0, true, c.data() + 1, stride);
        EXPECT_TRUE(same_bits(c, b)) << columns;
      }
    }
  }
}

// Nearly nothing but zero bytes, at every alignment: nothing outside the rows is touched.
TEST_P(ThreeLcKernelsTest, UnpackingZerosEqualsTheReference) {
  for (const uint64_t columns : sizes()) {
    for (const double zeros : {0.9, 0.99, 1.0}) {
      const uint64_t shift = columns % 17;
      const uint64_t stride = columns + 3;
      const std::vector<uint8_t> bytes = digit_bytes(columns, zeros, 3);
      for (const float weight : {-1.5F, 1.0F, std::numeric_limits<float>::infinity()}) {
        const ThreeLcTerm term{bytes.data(), {weight * -2, weight * 0.0F, weight * 2}};
        std::vector<float> a(5 * stride + 17, 9.0F), b = a;
        simd.unpack(&term, 1, columns, a.data() + shift, stride, false);
        reference.unpack(&term, 1, columns, b.data() + shift, stride, false);
        ASSERT_TRUE(same_bits(a, b)) << columns << " " << zeros << " " << weight;
      }
    }
  }
}

// Two calls, cut anywhere, at every alignment: together they write what one does.
TEST_P(ThreeLcKernelsTest, StreamMayBeCutIntoPieces) {
  for (const uint64_t columns : {20U, 63U, 1500U, 2500U}) {
    for (uint64_t cut = 0; cut <= columns; cut += 1 + columns / 7) {
      for (uint64_t shift = 0; shift < 17; ++shift) {
        const uint64_t stride = columns + shift % 5;
        const std::vector<uint8_t> bytes = digit_bytes(columns, 0.3, 1);
        ThreeLcTerm term{bytes.data(), {-2, 0, 2}};
        std::vector<float> a(5 * stride + 17, 9.0F), b = a;
        reference.unpack(&term, 1, columns, a.data() + shift, stride, false);
        simd.unpack_stream(&term, 1, cut, columns - cut, true, b.data() + shift, stride);
        term.bytes += cut;
        simd.unpack_stream(&term, 1, columns - cut, 0, cut == 0, b.data() + shift + cut, stride);
        ASSERT_TRUE(same_bits(a, b)) << columns << " " << cut << " " << shift;
      }
    }
  }
}

// Stretches with nearly nothing, with much and with nothing by turns, in one call and in two.
TEST_P(ThreeLcKernelsTest, ZerosAreStreamedOverOldContents) {
  constexpr uint64_t kColumns = 3000;
  std::vector<uint8_t> bytes;
  for (uint32_t i = 0; bytes.size() < kColumns; ++i) {
    const double zeros[4] = {0.99, 0.3, 1.0, 0.97};
    const std::vector<uint8_t> more = digit_bytes(90 + 70 * (i % 5), zeros[i % 4], i);
    bytes.insert(bytes.end(), more.begin(), more.end());
  }
  for (const float zero : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
    for (uint64_t shift = 0; shift < 17; ++shift) {
      ThreeLcTerm term{bytes.data(), {-2, zero, 2}};
      std::vector<float> a(5 * kColumns + 17, 9.0F), b = a, c = a;
      reference.unpack(&term, 1, kColumns, a.data() + shift, kColumns, false);
      simd.unpack_stream(&term, 1, kColumns, 0, true, b.data() + shift, kColumns);
      ASSERT_TRUE(same_bits(a, b)) << shift;
      const uint64_t cut = 1000 + 13 * shift;
      simd.unpack_stream(&term, 1, cut, kColumns - cut, true, c.data() + shift, kColumns);
      term.bytes += cut;
      simd.unpack_stream(&term, 1, kColumns - cut, 0, false, c.data() + shift + cut, kColumns);
      ASSERT_TRUE(same_bits(a, c)) << shift;
    }
  }
}

TEST_P(ThreeLcKernelsTest, EveryByteUnpacks) {
  std::vector<uint8_t> bytes(243);
  for (uint32_t v = 0; v < 243; ++v) bytes[v] = static_cast<uint8_t>(v);
  const ThreeLcTerm term{bytes.data(), {-1, 0, 1}};
  std::vector<float> out(5 * 243);
  simd.unpack(&term, 1, 243, out.data(), 243, false);
  for (uint32_t v = 0; v < 243; ++v) {
    float back = 121;
    for (uint32_t i = 0; i < 5; ++i) back += out[i * 243 + v] * static_cast<float>(kDigitWeight[i]);
    EXPECT_EQ(back, static_cast<float>(v));
  }
}

}  // namespace
}  // namespace laconic::kernels

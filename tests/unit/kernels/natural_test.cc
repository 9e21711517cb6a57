// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/natural/natural.h"

#include <gtest/gtest.h>

#include "kernels/natural/natural_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr RandomKey kKey{0x12345678U, 0x9ABCDEF0U};

class NaturalKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const NaturalKernels& simd_ = natural_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, NaturalKernelsTest, testing::ValuesIn(isas()), isa_param_name);

struct Coded {
  std::vector<uint8_t> codes;
  bool finite = true;
};

Coded encode(const NaturalKernels& k, const float* x, uint64_t n, uint64_t first) {
  Coded c;
  c.codes.assign(n + 70, 0xEE);
  c.finite = k.encode(x, n, c.codes.data() + 1, kKey, first);
  return c;
}

TEST_P(NaturalKernelsTest, EncoderEqualsTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t first : {0U, 64U, 16U, 4099U}) {
      if (n > 1000 && first > 64) continue;
      for (const std::vector<float>& x : {normal_values(n + 1, n), special_values(n + 1, n)}) {
        const Coded a = encode(kNaturalScalar, x.data() + 1, n, first);
        const Coded b = encode(simd_, x.data() + 1, n, first);
        expect_same(a.codes, b.codes, n);
        EXPECT_EQ(a.finite, b.finite);
      }
    }
  }
}

TEST_P(NaturalKernelsTest, NonFiniteIsReportedAnywhere) {
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    for (uint64_t at = 0; at < 300; at += 7) {
      std::vector<float> x(300, 3.4e38F);
      EXPECT_TRUE(encode(simd_, x.data(), 300, 5).finite);
      x[at] = bad;
      EXPECT_FALSE(encode(simd_, x.data(), 300, 5).finite) << at;
    }
  }
}

TEST_P(NaturalKernelsTest, DecoderEqualsTheReference) {
  std::mt19937_64 random(3);
  for (const uint64_t n : sizes()) {
    std::vector<std::vector<uint8_t>> payloads(3, std::vector<uint8_t>(n + 1));
    std::vector<Weighted> terms;
    for (auto& payload : payloads) {
      for (uint8_t& byte : payload) byte = static_cast<uint8_t>(random());
      terms.push_back({payload.data() + 1, 0.37F - 0.1F * static_cast<float>(terms.size())});
    }
    for (const uint32_t count : {0U, 1U, 3U}) {
      for (const Output output : {Output::set, Output::stream, Output::add}) {
        std::vector<float> a = normal_values(n + 2, 5), b = a;
        kNaturalScalar.decode(a.data() + 1, output, terms.data(), count, n / 3, n);
        simd_.decode(b.data() + 1, output, terms.data(), count, n / 3, n);
        expect_same(a, b, n);
      }
    }
  }
}

// The reference, held to its promises.

TEST(NaturalReference, ProbabilityToRoundUpIsExact) {
  for (const uint32_t mantissa : {0U, 1U, 127U, 128U, 0x400000U, 0x7FFF80U, 0x7FFFFFU}) {
    const uint32_t u = 0x3F800000U | mantissa;
    uint32_t up = 0;
    for (uint32_t r = 0; r < 1U << 23; ++r) up += natural_code(u + r) == 110 ? 1U : 0U;
    EXPECT_EQ(up, mantissa);
  }
}

TEST(NaturalReference, EachElementHasSixteenRandomBits) {
  std::vector<int> used(64 * 2, 0);
  for (uint64_t e = 640; e < 704; ++e) {
    const uint64_t block = random_group_counter(e) - 80;
    ASSERT_LT(block, 8U);
    for (const uint64_t half : {0U, 1U}) {
      const uint32_t bits = natural_random_bits(half == 0 ? 0xFFFFU : 0xFFFF0000U, e);
      if (bits == 0x7FFF80U) ++used[(block * 4 + random_group_word(e)) * 2 + half];
      ASSERT_TRUE(bits == 0x7FFF80U || bits == 0x7FU) << e;
    }
  }
  EXPECT_EQ(std::count(used.begin(), used.end(), 1), 64);
}

}  // namespace
}  // namespace laconic::kernels

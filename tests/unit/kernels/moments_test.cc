// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/moments.h"

#include <gtest/gtest.h>

#include "kernels/sparse/select.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class MomentsKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const MomentsKernels& simd_ = moments_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, MomentsKernelsTest, testing::ValuesIn(isas()), isa_param_name);

void expect_equal(const ChunkMoments& a, const ChunkMoments& b, uint64_t n) {
  EXPECT_EQ(bits(a.sum), bits(b.sum)) << n;
  EXPECT_EQ(bits(a.square), bits(b.square)) << n;
  EXPECT_EQ(bits(a.log_fraction), bits(b.log_fraction)) << n;
  EXPECT_EQ(a.exponent, b.exponent) << n;
  EXPECT_EQ(a.count, b.count) << n;
  EXPECT_EQ(a.min_key, b.min_key) << n;
  EXPECT_EQ(a.max_key, b.max_key) << n;
}

std::vector<float> with_zeros_and_denormals(uint64_t n, uint64_t seed) {
  std::vector<float> x = normal_values(n, seed);
  for (uint64_t i = 0; i < n; i += 3) x[i] = 0;
  for (uint64_t i = 1; i < n; i += 7) x[i] = -1e-40F;
  for (uint64_t i = 2; i < n; i += 11) x[i] *= 1e6F;
  return x;
}

TEST_P(MomentsKernelsTest, MomentsHaveBitsOfReference) {
  const float threshold = 4e-3F;
  const MomentsInput inputs[] = {{1, 1.0F, 0.0F},
                                 {magnitude_key(threshold) + 1, 1.0F, threshold},
                                 {magnitude_key(threshold) + 1, 0x1p20F, threshold * 0x1p20F},
                                 {0x7F800000U, 1.0F, 0.0F}};
  for (const uint64_t n : sizes()) {
    if (n > kMomentsChunk) continue;
    const std::vector<float> x = with_zeros_and_denormals(n + 1, n);
    for (const MomentsInput& in : inputs) {
      using Kernel = decltype(MomentsKernels::mean);
      for (const Kernel MomentsKernels::*kernel :
           {&MomentsKernels::mean, &MomentsKernels::variance, &MomentsKernels::log_mean}) {
        ChunkMoments a;
        ChunkMoments b;
        (simd_.*kernel)(x.data() + 1, static_cast<uint32_t>(n), in, &a);
        (kMomentsScalar.*kernel)(x.data() + 1, static_cast<uint32_t>(n), in, &b);
        expect_equal(a, b, n);
      }
    }
  }
}

TEST_P(MomentsKernelsTest, SumsMatchDefinition) {
  const std::vector<float> x = normal_values(kMomentsChunk, 5);
  double sum = 0;
  double square = 0;
  double log2 = 0;
  for (const float v : x) {
    sum += std::fabs(static_cast<double>(v));
    square += static_cast<double>(v) * v;
    log2 += std::log2(std::fabs(static_cast<double>(v)));
  }
  ChunkMoments m;
  simd_.variance(x.data(), kMomentsChunk, {}, &m);
  EXPECT_NEAR(m.sum, sum, 1e-5 * sum);
  EXPECT_NEAR(m.square, square, 1e-5 * square);
  simd_.log_mean(x.data(), kMomentsChunk, {}, &m);
  EXPECT_NEAR(static_cast<double>(m.exponent) + static_cast<double>(m.log_fraction), log2,
              3e-6 * kMomentsChunk);
}

TEST_P(MomentsKernelsTest, LogarithmOfEveryMantissaIsAccurate) {
  for (uint32_t mantissa = 0; mantissa < 0x800000U; mantissa += 997) {
    for (const uint32_t exponent : {1U, 100U, 127U, 254U}) {
      const float x = std::bit_cast<float>(exponent << 23 | mantissa);
      ChunkMoments m;
      simd_.log_mean(&x, 1, {}, &m);
      ASSERT_NEAR(static_cast<double>(m.exponent) + static_cast<double>(m.log_fraction),
                  std::log2(static_cast<double>(x)), 2.5e-6);
    }
  }
}

}  // namespace
}  // namespace laconic::kernels

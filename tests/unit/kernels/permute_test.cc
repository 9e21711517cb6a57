// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/permute.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class PermuteKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const PermuteKernels& simd_ = permute_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, PermuteKernelsTest, testing::ValuesIn(isas()), isa_param_name);

TEST_P(PermuteKernelsTest, EveryIndexOccursOnce) {
  for (const uint64_t n : {1U, 2U, 3U, 5U, 16U, 17U, 100U, 1025U, 4096U, 5000U, 65537U}) {
    const Permutation p = make_permutation(n, {1, 2}, 3);
    std::vector<uint32_t> to(n);
    simd_.permute(p, 0, static_cast<uint32_t>(n), to.data());
    std::sort(to.begin(), to.end());
    for (uint32_t i = 0; i < n; ++i) ASSERT_EQ(to[i], i) << n;
  }
}

TEST_P(PermuteKernelsTest, PermutationEqualsReferenceAtAnyStart) {
  for (const uint64_t n : {uint64_t{1} << 26, uint64_t{1} << 32, (uint64_t{1} << 32) - 5,
                           uint64_t{1000}, uint64_t{16777217}}) {
    const Permutation p = make_permutation(n, {7, 9}, n);
    for (const uint64_t first : {uint64_t{0}, uint64_t{3}, n - 300}) {
      uint32_t out[300];
      simd_.permute(p, first, 300, out);
      for (uint64_t j = 0; j < 300; ++j) ASSERT_EQ(out[j], permute_one(p, first + j));
    }
  }
}

// A float index would lose its lowest bits above 2^24.
TEST_P(PermuteKernelsTest, OddIndicesOfLargeUnitsAreReached) {
  const uint64_t n = uint64_t{1} << 26;
  const Permutation p = make_permutation(n, {11, 13}, 0);
  std::vector<uint32_t> out(4096);
  simd_.permute(p, 0, 4096, out.data());
  const auto odd = std::count_if(out.begin(), out.end(), [](uint32_t i) { return i % 2 == 1; });
  EXPECT_NEAR(static_cast<double>(odd), 2048, 200);
  EXPECT_LT(*std::max_element(out.begin(), out.end()), n);
  EXPECT_GT(*std::max_element(out.begin(), out.end()), n - n / 100);
}

}  // namespace
}  // namespace laconic::kernels

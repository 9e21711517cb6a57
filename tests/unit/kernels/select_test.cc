// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/select.h"

#include <gtest/gtest.h>

#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class SelectKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const SelectKernels& simd_ = select_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, SelectKernelsTest, testing::ValuesIn(isas()), isa_param_name);

struct Selected {
  std::vector<uint32_t> index;
  std::vector<float> value;
};

Selected select(const SelectKernels& k, const float* x, uint32_t n, uint32_t base, uint32_t floor) {
  Selected s{std::vector<uint32_t>(n + kSelectSlack), std::vector<float>(n + kSelectSlack)};
  const uint32_t found = k.select(x, n, 0, base, floor, s.index.data(), s.value.data());
  s.index.resize(found);
  s.value.resize(found);
  return s;
}

// The definition, written a second time.
Selected expected(const float* x, uint32_t n, uint32_t base, uint32_t floor) {
  Selected s;
  for (uint32_t i = 0; i < n; ++i) {
    if (magnitude_key(x[i]) < floor) continue;
    s.index.push_back(base + i);
    s.value.push_back(x[i]);
  }
  return s;
}

const std::vector<uint32_t>& floors() {
  static const std::vector<uint32_t> all{
      0,           1,          magnitude_key(1e-30F), magnitude_key(5e-3F), magnitude_key(2e-2F),
      0x7F7FFFFFU, 0x7F800000U};
  return all;
}

TEST_P(SelectKernelsTest, SelectMatchesDefinition) {
  for (const uint64_t n : sizes()) {
    if (n > kSelectBlock) continue;
    for (const bool special : {false, true}) {
      const std::vector<float> x = special ? special_values(n + 3, n) : normal_values(n + 3, n);
      for (const uint32_t floor : floors()) {
        const auto m = static_cast<uint32_t>(n);
        const Selected a = select(simd_, x.data() + 3, m, 1000, floor);
        const Selected b = expected(x.data() + 3, m, 1000, floor);
        ASSERT_EQ(a.index, b.index) << n;
        expect_same(a.value, b.value, n);
      }
    }
  }
}

TEST_P(SelectKernelsTest, SelectSumMatchesDefinition) {
  for (const uint64_t n : sizes()) {
    if (n > kSelectBlock) continue;
    const auto m = static_cast<uint32_t>(n);
    const std::vector<float> y = normal_values(n + 1, n + 7);
    for (const bool special : {false, true}) {
      const std::vector<float> x = special ? special_values(n + 3, n) : normal_values(n + 3, n);
      std::vector<float> sum(n + 1);
      for (uint64_t i = 0; i < n; ++i) sum[i] = x[i + 3] + y[i + 1];
      for (const uint32_t floor : floors()) {
        Selected a{std::vector<uint32_t>(n + kSelectSlack), std::vector<float>(n + kSelectSlack)};
        const uint32_t found = simd_.select_sum(x.data() + 3, y.data() + 1, m, 0, 1000, floor,
                                                a.index.data(), a.value.data());
        a.index.resize(found);
        a.value.resize(found);
        const Selected b = expected(sum.data(), m, 1000, floor);
        ASSERT_EQ(a.index, b.index) << n;
        expect_same(a.value, b.value, n);
      }
    }
  }
}

TEST_P(SelectKernelsTest, SelectAddedStoresSumsAndSelectsFromThem) {
  for (const uint64_t n : sizes()) {
    if (n > kSelectBlock) continue;
    const auto m = static_cast<uint32_t>(n);
    const std::vector<float> before = normal_values(n + 2, n + 7);
    for (const bool special : {false, true}) {
      const std::vector<float> x = special ? special_values(n + 3, n) : normal_values(n + 3, n);
      std::vector<float> sum = before;
      for (uint64_t i = 0; i < n; ++i) sum[i + 1] += x[i + 3];
      for (const uint32_t floor : floors()) {
        std::vector<float> y = before;
        Selected a{std::vector<uint32_t>(n + kSelectSlack), std::vector<float>(n + kSelectSlack)};
        const uint32_t found = simd_.select_added(x.data() + 3, y.data() + 1, m, 0, 1000, floor,
                                                  a.index.data(), a.value.data());
        a.index.resize(found);
        a.value.resize(found);
        const Selected b = expected(sum.data() + 1, m, 1000, floor);
        ASSERT_EQ(a.index, b.index) << n;
        expect_same(a.value, b.value, n);
        expect_same(y, sum, n);
      }
    }
  }
}

TEST_P(SelectKernelsTest, SelectOfFullBlockMatchesDefinition) {
  const std::vector<float> x = normal_values(kSelectBlock, 1);
  for (const uint32_t floor : floors()) {
    EXPECT_EQ(select(simd_, x.data(), kSelectBlock, 0xFFFFF000U, floor).index,
              expected(x.data(), kSelectBlock, 0xFFFFF000U, floor).index);
  }
}

TEST_P(SelectKernelsTest, CountAgreesWithSelect) {
  for (const uint64_t n : sizes()) {
    const std::vector<float> x = special_values(n + 1, n);
    for (const uint32_t floor : floors()) {
      EXPECT_EQ(simd_.count(x.data() + 1, n, floor), kSelectScalar.count(x.data() + 1, n, floor));
    }
  }
}

TEST_P(SelectKernelsTest, SignsAreCounted) {
  for (const uint64_t n : sizes()) {
    std::vector<float> x = special_values(n + 1, n);
    if (n > 2) x[2] = -0.0F;
    uint64_t positive = 0;
    uint64_t negative = 0;
    for (uint64_t i = 1; i <= n; ++i) {
      if (magnitude_key(x[i]) != 0) ++(std::signbit(x[i]) ? negative : positive);
    }
    for (const SelectKernels* k : {&simd_, &kSelectScalar}) {
      const SignCounts found = k->count_signs(x.data() + 1, n);
      EXPECT_EQ(found.positive, positive) << n;
      EXPECT_EQ(found.negative, negative) << n;
    }
  }
}

TEST_P(SelectKernelsTest, GroupMaximaAgree) {
  for (const uint64_t n : sizes()) {
    const std::vector<float> x = special_values(n + 1, n);
    for (const uint32_t groups : {64U, 128U, 1024U}) {
      std::vector<uint32_t> a(groups, 77);
      std::vector<uint32_t> b(groups, 99);
      simd_.group_max(x.data() + 1, n, groups, a.data());
      kSelectScalar.group_max(x.data() + 1, n, groups, b.data());
      ASSERT_EQ(a, b) << n;
    }
  }
}

}  // namespace
}  // namespace laconic::kernels

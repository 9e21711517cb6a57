// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/core/basic.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/core/prefetch.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

class BasicKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const BasicKernels& simd_ = basic_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, BasicKernelsTest, testing::ValuesIn(isas()), isa_param_name);

void expect_equal(const Scan& a, const Scan& b) {
  EXPECT_EQ(a.any_nonzero, b.any_nonzero);
  EXPECT_EQ(a.all_finite, b.all_finite);
  EXPECT_EQ(bits(a.max_abs), bits(b.max_abs));
}

TEST_P(BasicKernelsTest, ScanMatchesReference) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t shift : {0U, 1U, 3U}) {
      const std::vector<float> x = normal_values(n + shift, n);
      expect_equal(simd_.scan(x.data() + shift, n), kBasicScalar.scan(x.data() + shift, n));
    }
  }
}

TEST_P(BasicKernelsTest, ScanSeesOneElementAnywhere) {
  for (uint64_t i = 0; i < 200; ++i) {
    std::vector<float> x(200, -0.0F);
    EXPECT_FALSE(simd_.scan(x.data(), 200).any_nonzero);
    EXPECT_FALSE(simd_.any_nonzero(x.data(), 200));
    x[i] = -std::numeric_limits<float>::denorm_min();
    EXPECT_TRUE(simd_.scan(x.data(), 200).any_nonzero) << i;
    EXPECT_TRUE(simd_.any_nonzero(x.data(), 200)) << i;
    EXPECT_TRUE(simd_.scan(x.data(), 200).all_finite) << i;
    EXPECT_EQ(simd_.scan(x.data(), 200).max_abs, std::numeric_limits<float>::denorm_min());
    for (const float bad : {kInf, -kInf, kNan, -kNan}) {
      x[i] = bad;
      EXPECT_FALSE(simd_.scan(x.data(), 200).all_finite) << i;
    }
  }
}

TEST_P(BasicKernelsTest, ScanReadsNothingAfterEnd) {
  std::vector<float> x(300, kNan);
  for (uint64_t n = 0; n < 200; ++n) {
    if (n > 0) x[n - 1] = 1.0F;
    EXPECT_TRUE(simd_.scan(x.data(), n).all_finite) << n;
  }
}

TEST_P(BasicKernelsTest, ElementwiseLoopsEqualTheReference) {
  for (const uint64_t n : sizes()) {
    for (const uint64_t shift : {0U, 1U, 3U}) {
      const std::vector<float> x = special_values(n + shift, n);
      const std::vector<float> y = normal_values(n + shift, n + 1);
      const auto check = [&](auto run) {
        std::vector<float> a = y, b = y;
        a.resize(n + shift + 20, 7.0F), b.resize(n + shift + 20, 7.0F);
        run(kBasicScalar, a.data() + shift, x.data() + shift);
        run(simd_, b.data() + shift, x.data() + shift);
        expect_same(a, b, n);
      };
      check([&](const BasicKernels& k, float* out, const float* in) { k.add(out, in, n); });
      check([&](const BasicKernels& k, float* out, const float* in) { k.axpy(out, -0.3F, in, n); });
      check([&](const BasicKernels& k, float* out, const float* in) {
        k.blend(0.9F, out, 0.1F, in, n);
      });
      check([&](const BasicKernels& k, float* out, const float*) { k.scale(out, 1.0F / 3, n); });
      check([&](const BasicKernels& k, float* out, const float* in) { k.mul(out, 0.7F, in, n); });
    }
  }
}

TEST_P(BasicKernelsTest, MaximumOfSumsEqualsReference) {
  for (const uint64_t n : sizes()) {
    const std::vector<float> x = normal_values(n, 1), y = normal_values(n, 2);
    EXPECT_EQ(bits(simd_.max_abs_sum(x.data(), y.data(), n)),
              bits(kBasicScalar.max_abs_sum(x.data(), y.data(), n)));
    const std::vector<float> z = normal_values(n, 3);
    EXPECT_EQ(bits(simd_.max_abs_blend(0.9F, y.data(), 0.1F, x.data(), n)),
              bits(kBasicScalar.max_abs_blend(0.9F, y.data(), 0.1F, x.data(), n)));
    EXPECT_EQ(bits(simd_.max_abs_momentum(z.data(), 0.9F, y.data(), x.data(), n)),
              bits(kBasicScalar.max_abs_momentum(z.data(), 0.9F, y.data(), x.data(), n)));
  }
}

TEST_P(BasicKernelsTest, RowsAreAddedInOrderAndThenWeighted) {
  for (const uint64_t n : sizes()) {
    std::vector<std::vector<float>> rows;
    std::vector<const void*> data;
    for (uint64_t r = 0; r < 5; ++r) rows.push_back(special_values(n, r * 1000 + n));
    for (const auto& row : rows) data.push_back(row.data());
    for (uint32_t count = 1; count <= 5; ++count) {
      std::vector<float> a(n + 1, 3.0F), b(n + 1, 3.0F);
      kBasicScalar.sum_rows(a.data(), data.data(), count, 0.2F, n);
      simd_.sum_rows(b.data(), data.data(), count, 0.2F, n);
      expect_same(a, b, n);
      if (n > 0) {
        float sum = rows[0][n - 1];
        for (uint32_t r = 1; r < count; ++r) sum += rows[r][n - 1];
        expect_same(std::vector<float>{sum * 0.2F}, std::vector<float>{b[n - 1]}, n);
      }
    }
  }
}

TEST_P(BasicKernelsTest, WeightedSumsEqualTheReference) {
  for (const uint64_t n : sizes()) {
    // Operands at odd addresses: payloads have no alignment.
    std::vector<std::vector<char>> storage;
    std::vector<Weighted> terms;
    for (uint32_t t = 0; t < 9; ++t) {
      const std::vector<float> x = special_values(n, t + n);
      storage.emplace_back(n * sizeof(float) + 8);
      if (n > 0) std::memcpy(storage.back().data() + t % 4, x.data(), n * sizeof(float));
    }
    for (uint32_t t = 0; t < 9; ++t)
      terms.push_back({storage[t].data() + t % 4, 0.1F + static_cast<float>(t)});
    for (const uint32_t count : {0U, 1U, 2U, 9U}) {
      for (const Output output : {Output::set, Output::stream, Output::add}) {
        const uint64_t begin = n / 3, end = n;
        std::vector<float> a = normal_values(n + 3, 5), b = a;
        kBasicScalar.weighted_sum(a.data() + 1, output, terms.data(), count, begin, end);
        simd_.weighted_sum(b.data() + 1, output, terms.data(), count, begin, end);
        expect_same(a, b, n);
      }
    }
  }
}

TEST(Isa, ScalarIsAlwaysPresentAndFirst) {
  ASSERT_FALSE(available_isas().empty());
  EXPECT_EQ(available_isas().front(), Isa::scalar);
  EXPECT_EQ(available_isas().back(), best_isa());
  EXPECT_EQ(isa_name(Isa::avx512), "avx512");
}

TEST(Prefetch, PrefetchStaysWithinArray) {
  std::vector<float> x(3000);
  const float* const end = x.data() + x.size();
  const auto last = reinterpret_cast<uintptr_t>(&x.back());
  for (const float& element : x) {
    const auto p = reinterpret_cast<uintptr_t>(&element);
    EXPECT_EQ(within(&element, end), std::min(p + 4096, last));
    EXPECT_EQ(within<1024>(&element, end), std::min(p + 1024, last));
  }
}

}  // namespace
}  // namespace laconic::kernels

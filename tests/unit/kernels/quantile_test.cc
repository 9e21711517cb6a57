// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/quantile/quantile.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/quantile/quantile_elements.h"
#include "unit/kernels/dense_inputs.h"

namespace laconic::kernels {
namespace {

class QuantileKernelsTest : public testing::TestWithParam<Isa> {
 protected:
  const QuantileKernels& simd_ = quantile_kernels(GetParam());
};
INSTANTIATE_TEST_SUITE_P(, QuantileKernelsTest, testing::ValuesIn(isas()), isa_param_name);

/// Every size, both kinds of data; large ones seldom.
template <class Body>
void for_inputs(Body body) {
  for (const uint64_t n : sizes()) {
    if (n > 20 && n < 1000 && n % 7 != 0) continue;
    body(normal_values(n + 1, n), n);
    body(finite_specials(n + 1, n), n);
  }
}

TEST(QuantileSort, SortEqualsLibrarySort) {
  const auto check = [](const std::vector<float>& x, uint64_t n) {
    std::vector<uint32_t> images(n), other(n), expected(n);
    uint32_t most = 0;
    for (uint64_t i = 0; i < n; ++i) {
      expected[i] = quantile_image(x[i + 1]);
      most = std::max(most, float_bits(x[i + 1]) & 0x7FFFFFFFU);
    }
    std::sort(expected.begin(), expected.end());
    ASSERT_EQ(quantile_sort(x.data() + 1, n, images.data(), other.data()), most) << n;
    ASSERT_EQ(expected, images) << n;
  };
  for (const uint64_t n : {1U, 2U, 3U, 255U, 256U, 257U, 2049U, 4095U, 4096U}) {
    check(normal_values(n + 1, n), n);
    check(finite_specials(n + 1, n), n);
    std::vector<float> x(n + 1);
    for (uint64_t i = 0; i <= n; ++i) x[i] = static_cast<float>(i * 7 % 5 == 0 ? -1.0 : 1.0);
    check(x, n);
    x[n / 2] = -INFINITY;  // reported by the largest bits, and sorted
    check(x, n);
  }
}

TEST_P(QuantileKernelsTest, CountsEqualTheReference) {
  std::vector<uint32_t> a(kQuantileBuckets), b(kQuantileBuckets);
  for_inputs([&](const std::vector<float>& x, uint64_t n) {
    std::fill(a.begin(), a.end(), 0U);
    std::fill(b.begin(), b.end(), 0U);
    EXPECT_EQ(kQuantileScalar.count_upper(x.data() + 1, n, a.data()),
              simd_.count_upper(x.data() + 1, n, b.data()));
    ASSERT_EQ(a, b) << n;
  });
}

TEST_P(QuantileKernelsTest, MembersEqualTheReference) {
  std::mt19937_64 random(1);
  for_inputs([&](const std::vector<float>& x, uint64_t n) {
    for (const uint32_t share : {1U, 4U, 100U}) {
      std::vector<uint16_t> groups(kQuantileBuckets);
      for (auto& g : groups) g = static_cast<uint16_t>(random() % share == 0 ? random() : 0);
      std::vector<uint32_t> a(n), b(n);
      const uint64_t found = simd_.collect(x.data() + 1, n, groups.data(), b.data());
      ASSERT_EQ(kQuantileScalar.collect(x.data() + 1, n, groups.data(), a.data()), found);
      ASSERT_TRUE(std::equal(a.begin(), a.begin() + static_cast<int64_t>(found), b.begin())) << n;
    }
  });
}

/// Thresholds at random images of the data, some equal; steps enough for all of them.
struct SomeBins {
  std::vector<uint8_t> base;
  std::vector<uint32_t> thresholds;
  QuantileBins bins;

  SomeBins(const std::vector<float>& x, uint32_t q, uint64_t seed)
      : base(kQuantileBuckets), thresholds(2 * kQuantileBins, ~0U) {
    std::mt19937_64 random(seed);
    for (uint32_t j = 0; j + 1 < q; ++j) thresholds[j] = quantile_image(x[random() % x.size()]);
    std::sort(thresholds.begin(), thresholds.end());
    uint32_t below = 0;  // thresholds up to the bucket's first image
    for (uint32_t b = 0; b < kQuantileBuckets; ++b) {
      while (below < q - 1 && thresholds[below] <= b << 16) ++below;
      base[b] = static_cast<uint8_t>(below);
    }
    const auto width = static_cast<uint32_t>(std::bit_width(q - 1));
    bins = {base.data(), thresholds.data(), static_cast<uint32_t>(std::bit_width(q - 1)), q, width};
  }
};

TEST_P(QuantileKernelsTest, BinsAndSumsEqualTheReference) {
  for_inputs([&](const std::vector<float>& x, uint64_t n) {
    for (const uint32_t q : {2U, 5U, 64U, 129U, 256U}) {
      const SomeBins some(x, q, n);
      std::vector<uint8_t> a((n * some.bins.width + 7) / 8 + 2, 0xEE), b(a);
      std::vector<double> sums_a(q + 2, 7.0), sums_b(sums_a);
      kQuantileScalar.encode(x.data() + 1, n, some.bins, a.data() + 1, sums_a.data() + 1);
      simd_.encode(x.data() + 1, n, some.bins, b.data() + 1, sums_b.data() + 1);
      expect_same(a, b, n);
      ASSERT_EQ(std::memcmp(sums_a.data(), sums_b.data(), sums_a.size() * sizeof(double)), 0) << n;
    }
  });
}

TEST_P(QuantileKernelsTest, DecoderEqualsTheReference) {
  std::mt19937_64 random(3);
  for_inputs([&](const std::vector<float>&, uint64_t n) {
    const std::vector<float> before = normal_values(n + 20, 5);
    for (const uint32_t q : {2U, 16U, 32U, 33U, 64U, 100U, 256U}) {
      const auto width = static_cast<uint32_t>(std::bit_width(q - 1));
      const QuantileLayout layout{q, width, (n * width + 7) / 8};
      std::vector<std::vector<uint8_t>> payloads;
      std::vector<Weighted> terms;
      for (uint32_t t = 0; t < 3; ++t) {
        payloads.emplace_back(4 * q + layout.code_bytes);
        for (uint8_t& byte : payloads[t]) byte = static_cast<uint8_t>(random());
        for (uint32_t b = 0; b < q; ++b) payloads[t][4 * b + 3] &= 0x3FU;  // finite
        for (uint64_t i = 0; i < n && q != 1U << width; ++i) {             // and in range
          const uint64_t bit = i * width + width - 1;
          payloads[t][4 * q + bit / 8] &= static_cast<uint8_t>(~(1U << bit % 8));
        }
        terms.push_back({payloads[t].data(), 0.37F - 0.1F * static_cast<float>(t)});
      }
      for (const uint32_t count : {0U, 1U, 3U}) {
        for (const Output output : {Output::set, Output::stream, Output::add}) {
          for (const uint64_t begin : {uint64_t{0}, n / 64 / 2 * 64}) {
            std::vector<float> a = before, b = a;
            const uint64_t align = (64 - reinterpret_cast<uintptr_t>(b.data()) % 64) % 64 / 4;
            kQuantileScalar.decode(a.data() + align, output, terms.data(), count, layout, begin, n);
            simd_.decode(b.data() + align, output, terms.data(), count, layout, begin, n);
            expect_same(a, b, n);
          }
        }
      }
    }
  });
}

TEST(QuantileReference, ImagesKeepOrderOfFloats) {
  std::vector<float> x = finite_specials(10000, 3);
  std::sort(x.begin(), x.end());
  for (uint64_t i = 1; i < x.size(); ++i) {
    const uint32_t a = quantile_image(x[i - 1]), b = quantile_image(x[i]);
    ASSERT_EQ(a < b, x[i - 1] < x[i]);
    ASSERT_EQ(a == b, x[i - 1] == x[i]);
    ASSERT_EQ(quantile_float(b), x[i]);
  }
}

}  // namespace
}  // namespace laconic::kernels

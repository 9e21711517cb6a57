// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/dgc/dgc.h"

#include <gtest/gtest.h>

#include "codecs/sparse/counted_set.h"
#include "codecs/sparse/random_sample.h"
#include "kernels/sparse/select.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<Dgc>;

Driver driver(double ratio, double sample = 0.01, uint32_t warmup = 0) {
  Driver d;
  d.params = {ratio, sample, warmup};
  return d;
}

uint64_t count_of(const std::vector<uint8_t>& payload) { return load<uint32_t>(payload.data()); }

// Elements and their order by magnitude, lower index first.
struct Input {
  explicit Input(std::vector<float> values) : x(std::move(values)), order(x.size()) {
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(),
                     [&](uint32_t a, uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  }
  std::vector<float> x;
  std::vector<uint32_t> order;
};

// The rule: a number within the band, or all that there are; and the largest.
void expect_band(const Input& in, const Driver& d, uint64_t k, const char* what) {
  const uint64_t n = in.x.size();
  const std::vector<uint8_t> payload = d.encode(in.x);
  const uint64_t count = count_of(payload);
  ASSERT_LE(4 * count, 5 * k) << what << ", n " << n << ", k " << k;
  ASSERT_GE(4 * count, 3 * std::min(k, nonzeros(in.x))) << what << ", n " << n << ", k " << k;
  std::vector<float> wanted(n);
  for (uint64_t j = 0; j < count; ++j) wanted[in.order[j]] = in.x[in.order[j]];
  ASSERT_EQ(d.decode(payload, vector_unit(n)), wanted) << what;
}
void expect_band(const std::vector<float>& x, const Driver& d, uint64_t k, const char* what) {
  expect_band(Input(x), d, k, what);
}

constexpr Shape kShapes[] = {Shape::laplace, Shape::gaussian, Shape::gamma_half,
                             Shape::heavy,   Shape::layered,  Shape::pareto};

// Defect 16, the rest of it: GRACE's count went anywhere, and there was no warm-up.
TEST(DgcTest, Grace16CountsWithinQuarterForManyDistributions) {
  for (const Shape shape : kShapes) {
    for (const uint64_t n : {1U, 3U, 63U, 1000U, 8192U, 8193U, 30000U, 100000U}) {
      const Input x(draw(shape, n, n));
      for (const double ratio : {1e-9, 0.001, 0.01, 0.1, 0.25, 0.6, 1.0}) {
        expect_band(x, driver(ratio), kept_of(ratio, n), "default sample");
        expect_band(x, driver(ratio, 1e-6), kept_of(ratio, n), "the smallest sample");
      }
      expect_band(x, driver(0.01, 1.0), kept_of(0.01, n), "the largest sample");
    }
  }
}

TEST(DgcTest, Grace16RatioFallsLikeOriginal) {
  const Dgc::Params p{0.001, 0.01, 100};
  const double sparsity[] = {75, 93.75, 98.4375, 99.609375, 99.90};
  for (uint64_t step = 0; step < 100; ++step) {
    const double wanted = 1 - sparsity[step / 20] / 100;
    EXPECT_NEAR(Dgc::ratio_at(p, step), wanted, 1e-9) << step;
  }
  EXPECT_EQ(Dgc::ratio_at(p, 100), 0.001);
  EXPECT_EQ(Dgc::ratio_at(p, ~uint64_t{0}), 0.001);
  EXPECT_EQ(Dgc::ratio_at({0.05, 0.01, 10}, 0), 0.25);
  EXPECT_EQ(Dgc::ratio_at({0.05, 0.01, 10}, 2), 0.0625);
  EXPECT_EQ(Dgc::ratio_at({0.05, 0.01, 10}, 4), 0.05);  // never below its own
  EXPECT_EQ(Dgc::ratio_at({0.5, 0.01, 10}, 0), 0.5);
  EXPECT_EQ(Dgc::ratio_at({0.5, 0.01, 0}, 0), 0.5);
  // Fewer steps than fifths, and the maximum.
  EXPECT_EQ(Dgc::ratio_at({0.0001, 0.01, 3}, 1), 1.0 / 16);
  EXPECT_EQ(Dgc::ratio_at({0.0001, 0.01, 3}, 2), 1.0 / 256);
  EXPECT_EQ(Dgc::ratio_at({1e-9, 0.01, 1000000000}, 999999999), 1.0 / 1024);
}

TEST(DgcTest, Grace16WarmupSendsByItsStep) {
  const Input x(draw(Shape::heavy, 60000, 2));
  Driver d = driver(0.001, 0.01, 10);
  for (uint64_t step = 0; step < 12; ++step) {
    d.place.step = step;
    expect_band(x, d, kept_of(Dgc::ratio_at(d.params, step), 60000), "warm-up");
  }
  EXPECT_EQ(Dgc::plan(d.params, vector_unit(60000), 1).round[0].bytes,
            counted_bytes(15000 + 3750, 60000));
}

TEST(DgcTest, EqualMagnitudesAreOrderedByIndex) {
  for (const uint64_t n : {100U, 5000U, 70000U, 140000U}) {
    std::vector<float> x(n, -3.0F);
    for (const double ratio : {0.001, 0.01, 0.3}) {
      expect_band(x, driver(ratio), kept_of(ratio, n), "constant");
      for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 5) - 2.0F;
      expect_band(x, driver(ratio), kept_of(ratio, n), "five values");
    }
  }
}

TEST(DgcTest, FewNonZerosAreAllSent) {
  for (const uint64_t n : {1000U, 70000U, 300000U}) {
    std::vector<float> x(n);
    EXPECT_EQ(driver(0.01).encode(x).size(), 4U);
    for (uint64_t i = n / 3; i < n / 3 + 5; ++i) x[i] = -1.0F - static_cast<float>(i % 3);
    EXPECT_EQ(driver(0.01).round_trip(x), x);
    for (uint64_t i = 0; i < n; i += 40) x[i] = static_cast<float>(i + 1);
    expect_band(x, driver(0.01), kept_of(0.01, n), "2.5 % of non-zeros");
    expect_band(x, driver(0.3), kept_of(0.3, n), "2.5 % of non-zeros");
  }
}

TEST(DgcTest, CountStaysInBandForAnySample) {
  const uint64_t n = 200000;
  const RandomSample sample(vector_unit(n), driver(0.01).place);
  for (const Lie lie : {Lie::only_large, Lie::only_small, Lie::half}) {
    const Input x(misleading(lie, sample, n, RandomSample::size(0.01, n)));
    for (const double ratio : {0.001, 0.01, 0.03, 0.06}) {
      expect_band(x, driver(ratio), kept_of(ratio, n), "misled");
    }
  }
}

TEST(DgcTest, HugeAndTinyAreEncoded) {
  std::vector<float> x = draw(Shape::laplace, 70000, 9);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] *= i % 2 == 0 ? 1e-38F : 1e-36F;
  x[3] = 3e38F;
  x[4] = -3e38F;
  expect_band(x, driver(0.01), 700, "denormals");
  expect_band(x, driver(1e-9), 1, "denormals");
}

// Defect 14 of GRACE's code: a float32 index loses odd places above 2^24 and may be n.
TEST(RandomSampleTest, Grace14SampleReachesOddPositionsAndStaysInRange) {
  for (const uint64_t n : {uint64_t{1} << 26, (uint64_t{1} << 26) + 1, (uint64_t{1} << 32) - 1}) {
    const RandomSample sample(vector_unit(n), {.seed = 3, .step = 9});
    uint64_t odd = 0;
    uint64_t upper = 0;
    const uint64_t blocks = 50000;
    for (uint64_t i = 0; i < blocks; ++i) {
      for (const uint32_t at : sample.places(i)) {
        ASSERT_LT(at, n);
        odd += at % 2;
        upper += at >= n / 2 ? 1U : 0U;
      }
    }
    const double deviation = std::sqrt(4.0 * blocks) / 2;  // of a fair coin
    EXPECT_LT(std::fabs(static_cast<double>(odd) - 2.0 * blocks), 5 * deviation) << n;
    EXPECT_LT(std::fabs(static_cast<double>(upper) - 2.0 * blocks), 5 * deviation) << n;
  }
  for (const uint64_t n : {1U, 2U}) {  // the ends of the range are reached, and nothing beyond
    const RandomSample sample(vector_unit(n), {});
    for (const uint32_t at : sample.places(0)) EXPECT_LT(at, n);
  }
}

TEST(RandomSampleTest, EveryPositionIsEquallyLikely) {
  const uint64_t n = 1000;
  std::vector<double> seen(n);
  for (uint64_t step = 0; step < 500; ++step) {
    const RandomSample sample(vector_unit(n), {.seed = 1, .step = step});
    for (uint64_t i = 0; i < 100; ++i) {
      for (const uint32_t at : sample.places(i)) seen[at] += 1;
    }
  }
  double chi = 0;
  for (const double s : seen) chi += (s - 200) * (s - 200) / 200;
  EXPECT_LT(std::fabs(chi - (n - 1)) / std::sqrt(2.0 * (n - 1)), 5);
}

TEST(RandomSampleTest, SampleDependsOnlyOnSeedStepParameterAndOffset) {
  const auto places = [](Unit unit, Place place) { return RandomSample(unit, place).places(7); };
  const Unit unit = vector_unit(100000);
  const Place place{.seed = 1, .step = 2};
  const RandomBlock base = places(unit, place);
  EXPECT_EQ(places(unit, {.seed = 1, .step = 2, .rank = 3, .world = 4, .hop = 1}), base);
  EXPECT_NE(places(unit, {.seed = 2, .step = 2}), base);
  EXPECT_NE(places(unit, {.seed = 1, .step = 3}), base);
  EXPECT_NE(places(vector_unit(100000, 43), place), base);
  EXPECT_NE(places(vector_unit(100000, 42, 64), place), base);
}

// Four of a line in large units: the last must not reach past the end.
TEST(DgcTest, LargeUnitsAreEncoded) {
  const std::vector<float> x = draw(Shape::layered, (uint64_t{1} << 22) + 1001, 8);
  const Driver d = driver(0.001);
  const std::vector<uint8_t> payload = d.encode(x);
  const uint64_t k = kept_of(0.001, x.size());
  const uint64_t count = count_of(payload);
  EXPECT_GE(4 * count, 3 * k);
  EXPECT_LE(4 * count, 5 * k);
  std::vector<uint32_t> keys(x.size());
  std::transform(x.begin(), x.end(), keys.begin(), kernels::magnitude_key);
  const auto nth = keys.begin() + static_cast<long>(count - 1);
  std::nth_element(keys.begin(), nth, keys.end(), std::greater<>());
  const std::vector<float> y = d.decode(payload, vector_unit(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    if (kernels::magnitude_key(x[i]) > *nth) {
      ASSERT_EQ(y[i], x[i]);
    }
    if (kernels::magnitude_key(x[i]) < *nth) {
      ASSERT_EQ(y[i], 0);
    }
  }
}

// Defect 2: more bytes than dense, eight-byte indices.
TEST(DgcTest, Grace02SendsLessThanDense) {
  for (const uint64_t n : {64U, 4097U, 1000000U}) {
    EXPECT_LT(Dgc::plan({}, vector_unit(n), 8).round[0].bytes * 20, n * 4) << n;
    EXPECT_LE(driver(0.001).encode(draw(Shape::laplace, n, 1)).size(),
              4 + (kept_of(0.001, n) * 5 / 4) * 8);
  }
}

TEST(DgcTest, LargestUnitsHaveValidSizes) {
  const uint64_t most = uint64_t{1} << 32;
  for (const uint64_t n : {uint64_t{0}, uint64_t{1}, most - 1}) {
    for (const uint32_t warmup : {0U, 1000000000U}) {
      const Dgc::Params p{0.001, 1.0, warmup};
      const uint64_t k = kept_of(warmup == 0 ? 0.001 : 0.25, n);
      EXPECT_EQ(Dgc::plan(p, vector_unit(n), 2).round[0].bytes,
                counted_bytes(std::min(n, k + k / 4), n));
    }
  }
  const std::vector<uint8_t> none(4);
  EXPECT_EQ(Dgc::check({}, vector_unit(most - 1), 0, none), Errc::ok);
  EXPECT_EQ(Dgc::check({}, vector_unit(most + 1), 0, none), Errc::shape_unsupported);
}

TEST(DgcTest, ContractPromisesMomentum) {
  const Contract c = Dgc::contract({});
  EXPECT_EQ(c.memory_default, MemoryKind::momentum);
  EXPECT_EQ(c.memory_factor, 0.9F);
  EXPECT_EQ(c.memories, memory_set(MemoryKind::residual, MemoryKind::momentum));
  EXPECT_EQ(c.merge, Merge::set_union);
}

// Golden bytes of the format page.
TEST(DgcTest, BytesOfTheFormatPage) {
  const std::vector<uint8_t> expected{0x03, 0x00, 0x00, 0x00,  // three elements
                                      0x59, 0x01,              // 1, 3, 5 in three bits each
                                      0x00, 0x00, 0x00, 0xC0,  // -2
                                      0x00, 0x00, 0x80, 0x3F,  // 1
                                      0x00, 0x00, 0x00, 0x40};
  EXPECT_EQ(driver(0.5).encode({0.0F, -2.0F, 0.5F, 1.0F, 0.25F, 2.0F}), expected);
}

TEST(DgcTest, PayloadsAboveBandAreRefused) {
  const Driver d = driver(0.01);
  const std::vector<uint8_t> good = d.encode(draw(Shape::laplace, 1000, 1));
  ASSERT_EQ(count_of(good), 10U);
  std::vector<uint8_t> bad = good;
  bad[0] = 13;
  EXPECT_EQ(Dgc::check(d.params, vector_unit(1000), 0, bad), Errc::bound_exceeded);
  bad[0] = 12;
  EXPECT_EQ(Dgc::check(d.params, vector_unit(1000), 0, bad), Errc::payload_malformed);
}

}  // namespace
}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/threshold/threshold.h"

#include <gtest/gtest.h>

#include "codecs/dgc/dgc.h"
#include "codecs/sidco/sidco.h"
#include "codecs/sparse/counted_set.h"
#include "codecs/topk/topk.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<Threshold>;

Driver driver(double v, double cap) {
  Driver d;
  d.params = {v, cap};
  return d;
}

uint64_t count_of(const std::vector<uint8_t>& payload) { return load<uint32_t>(payload.data()); }

// The definition: what is above v, if that is too much the largest, lower index first.
std::vector<float> definition(const std::vector<float>& x, double v, double cap) {
  const uint64_t most = kept_of(cap, x.size());
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < x.size(); ++i) {
    if (std::fabs(static_cast<double>(x[i])) > v) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  if (order.size() > most) order.resize(most);
  std::vector<float> y(x.size());
  for (const uint32_t i : order) y[i] = x[i];
  return y;
}

void expect_definition(const std::vector<float>& x, double v, double cap) {
  const std::vector<float> wanted = definition(x, v, cap);
  for (const Isa isa : available_isas()) {
    Driver d = driver(v, cap);
    d.isa = isa;
    const std::vector<uint8_t> payload = d.encode(x);
    ASSERT_EQ(count_of(payload), nonzeros(wanted));
    ASSERT_EQ(d.decode(payload, vector_unit(x.size())), wanted)
        << "n " << x.size() << ", v " << v << ", cap " << cap;
  }
}

TEST(ThresholdTest, ValuesAboveThresholdAreKept) {
  for (const uint64_t n : {1U, 2U, 3U, 15U, 100U, 4096U, 4097U, 16385U, 70000U}) {
    for (const double v : {0.0, 1e-6, 1e-3, 2e-3, 5e-3, 1e9}) {
      for (const double cap : {1e-9, 0.001, 0.1, 0.5, 1.0}) {
        expect_definition(draw(Shape::laplace, n, n), v, cap);
      }
    }
  }
}

// Above the cap in its three ways: by a list, by a sample's bound, from the unit.
TEST(ThresholdTest, CapKeepsLargest) {
  for (const uint64_t n : {20000U, 150000U}) {
    std::vector<float> x = draw(Shape::layered, n, 7);
    expect_definition(x, 1e-3, 0.01);
    std::fill(x.begin(), x.end(), -3.0F);  // no bound parts equal magnitudes
    expect_definition(x, 0.01, 0.1);
    for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 5) - 2.0F;
    expect_definition(x, 0.01, 0.1);
    expect_definition(x, 0.01, 0.001);
  }
}

TEST(ThresholdTest, ThresholdItselfIsNotSent) {
  const float v = 0.01F;  // below the double 0.01
  ASSERT_LT(static_cast<double>(v), 0.01);
  const std::vector<float> x{v, -v, std::nextafter(v, 1.0F), -std::nextafter(v, 1.0F)};
  EXPECT_EQ(nonzeros(driver(0.01, 1).round_trip(x)), 2U);
  EXPECT_EQ(nonzeros(driver(static_cast<double>(v), 1).round_trip(x)), 2U);
  const float above = 0.3F;  // above the double 0.3: passes
  ASSERT_GT(static_cast<double>(above), 0.3);
  EXPECT_EQ(nonzeros(driver(0.3, 1).round_trip({above, std::nextafter(above, 0.0F)})), 1U);
  const std::vector<float> small{1e-45F, -1e-45F, 0.0F, -0.0F};
  EXPECT_EQ(nonzeros(driver(0, 1).round_trip(small)), 2U);
}

TEST(ThresholdTest, SmallValuesSendNothing) {
  for (const uint64_t n : {0U, 1U, 100U, 70000U}) {
    const std::vector<uint8_t> payload = driver(1e9, 0.1).encode(std::vector<float>(n, 1.0F));
    EXPECT_EQ(payload, (std::vector<uint8_t>{0, 0, 0, 0})) << n;
  }
}

// Defect 2 of GRACE's code: more bytes than dense, eight-byte indices.
TEST(ThresholdTest, Grace02SendsLessThanDense) {
  for (const uint64_t n : {64U, 4097U, 1000000U}) {
    EXPECT_LT(Threshold::plan({}, vector_unit(n), 8).round[0].bytes * 4, n * 4) << n;
    const std::vector<float> x = draw(Shape::laplace, n, 1);
    EXPECT_LE(driver(0, 0.1).encode(x).size(), 4 + kept_of(0.1, n) * 8);
  }
}

// Defect 11: a guard by max(x), not max|x|, let a unit without positives through whole.
TEST(ThresholdTest, Grace11AllNegativeAndAllZeroAreEncoded) {
  const uint64_t n = 50000;
  EXPECT_EQ(driver(0.01, 0.1).encode(std::vector<float>(n)).size(), 4U);
  EXPECT_EQ(driver(0.01, 0.1).encode(std::vector<float>(n, -0.0F)).size(), 4U);
  EXPECT_EQ(driver(0.01, 0.1).encode(std::vector<float>(n, -0.005F)).size(), 4U);
  std::vector<float> x(n, -0.005F);
  x[4] = x[40000] = -0.02F;
  const std::vector<float> y = driver(0.01, 0.1).round_trip(x);
  EXPECT_EQ(nonzeros(y), 2U);
  EXPECT_EQ(y[4], -0.02F);
  EXPECT_EQ(y[40000], -0.02F);
}

TEST(ThresholdTest, HugeAndTinyAreEncoded) {
  std::vector<float> x = draw(Shape::laplace, 70000, 9);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] *= i % 2 == 0 ? 1e-38F : 1e-36F;
  x[3] = 3e38F;
  x[4] = -3e38F;
  expect_definition(x, 0.01, 0.1);
  expect_definition(x, 1e-40, 0.1);
  expect_definition(x, 0, 0.0001);
}

TEST(ThresholdTest, LargestUnitsHaveValidSizes) {
  const uint64_t most = uint64_t{1} << 32;
  for (const uint64_t n : {uint64_t{0}, uint64_t{1}, most - 1}) {
    const Plan plan = Threshold::plan({}, vector_unit(n), 2);
    EXPECT_EQ(plan.round[0].bytes, counted_bytes(kept_of(0.1, n), n));
  }
  const std::vector<uint8_t> none(4);
  EXPECT_EQ(Threshold::check({}, vector_unit(most - 1), 0, none), Errc::ok);
  EXPECT_EQ(Threshold::check({}, vector_unit(most), 0, none), Errc::shape_unsupported);
  EXPECT_EQ(Threshold::check({}, vector_unit(most + 1), 0, none), Errc::shape_unsupported);
}

// Golden bytes of the format page.
TEST(ThresholdTest, BytesOfTheFormatPage) {
  const std::vector<uint8_t> expected{0x02, 0x00, 0x00, 0x00,  // two elements
                                      0x29,                    // 1, 5 in three bits each
                                      0x00, 0x00, 0x00, 0xC0,  // -2
                                      0x00, 0x00, 0x00, 0x40};
  EXPECT_EQ(driver(1, 0.5).encode({0.0F, -2.0F, 0.5F, 1.0F, 0.25F, 2.0F}), expected);
}

TEST(ThresholdTest, NonCanonicalPayloadsAreRefused) {
  const Driver d = driver(1e-9, 0.01);
  const Unit unit = vector_unit(1000);
  const std::vector<uint8_t> good = d.encode(draw(Shape::laplace, 1000, 1));
  ASSERT_EQ(good.size(), 4U + 13U + 40U);
  const auto check = [&](const std::vector<uint8_t>& p) {
    return Threshold::check(d.params, unit, 0, p);
  };
  std::vector<uint8_t> bad = good;
  bad.pop_back();
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  bad[0] = 11;  // above the cap
  EXPECT_EQ(check(bad), Errc::bound_exceeded);
  bad[0] = 9;
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  bad[4 + 12] |= 0x80;  // padding
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  store(bad.data() + 4 + 13, 0x7F800000U);
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  EXPECT_EQ(check({}), Errc::payload_malformed);
  EXPECT_EQ(check({0, 0, 0}), Errc::payload_malformed);
  EXPECT_EQ(check({0, 0, 0, 0}), Errc::ok);
}

// The pipeline without erase: decode with weight -1 onto what was encoded.
template <class C>
void expect_erased(const SparseDriver<C>& d, const std::vector<float>& x, Unit unit) {
  const std::vector<uint8_t> payload = d.encode(x, unit);
  std::vector<float> wanted = x;
  const Term term{payload, -1.0F};
  d.decode({&term, 1}, unit, {wanted.data(), true});
  std::vector<float> erased = x;
  Work work{{}, {}, d.isa, d.pool};
  C::erase({&d.params, {}, unit, {}, 0, work}, payload, erased.data());
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(erased[i]), std::bit_cast<uint32_t>(wanted[i])) << i;
  }
}

template <class C>
void expect_erases(double ratio_like) {
  for (const uint64_t n : {0U, 1U, 2U, 100U, 4097U, 300001U}) {
    std::vector<float> x = draw(Shape::laplace, n, n + 3);
    for (size_t i = 0; i < x.size(); i += 3) x[i] = i % 2 == 0 ? -0.0F : 0.0F;
    for (const bool zeros : {false, true}) {
      if (zeros) std::fill(x.begin(), x.end(), -0.0F);
      SparseDriver<C> d;
      if constexpr (requires { d.params.cap; }) {
        d.params = {1e-3, ratio_like};
      } else {
        d.params.ratio = ratio_like;
      }
      d.state.resize(C::plan(d.params, vector_unit(n), 1).state_floats);
      ThreadPool pool(3);
      for (const Isa isa : available_isas()) {
        d.isa = isa;
        for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
          d.pool = threads;
          expect_erased(d, x, vector_unit(n));
        }
      }
    }
  }
}

TEST(Erase, EraseEqualsDecodingWithWeightMinusOne) {
  for (const double ratio : {0.01, 0.3, 1.0}) {
    expect_erases<TopK>(ratio);
    expect_erases<Sidco>(ratio);
    expect_erases<Threshold>(ratio);
    expect_erases<Dgc>(ratio);
  }
}

}  // namespace
}  // namespace laconic::codecs

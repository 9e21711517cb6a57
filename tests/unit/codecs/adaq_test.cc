// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/adaq/adaq.h"

#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <functional>

#include "codecs/sparse/sparse_payload.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<AdaQ>;

Driver driver(double ratio) {
  Driver d;
  d.params.ratio = ratio;
  return d;
}

struct Header {
  std::array<float, 2> mean;
  std::array<uint32_t, 2> count;
};
Header header_of(const std::vector<uint8_t>& payload) { return load<Header>(payload.data()); }

bool of_sign(float v, bool negative) { return negative ? v < 0 : v > 0; }

uint64_t wanted_of(double ratio, uint64_t m) {
  return static_cast<uint64_t>(std::ceil(ratio * static_cast<double>(m)));
}

// Elements, and those of each sign in the order of their magnitude, lower index first.
struct Input {
  explicit Input(std::vector<float> values) : x(std::move(values)) {
    for (const bool negative : {false, true}) {
      std::vector<uint32_t>& o = order[negative ? 1 : 0];
      for (uint32_t i = 0; i < x.size(); ++i) {
        if (of_sign(x[i], negative)) o.push_back(i);
      }
      std::stable_sort(o.begin(), o.end(),
                       [&](uint32_t a, uint32_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
    }
  }
  std::vector<float> x;
  std::array<std::vector<uint32_t>, 2> order;
};

// The rule: of each sign the largest, lower index first, their number within the band; the mean of
// them all, which equals that of the page to the last bit.
void expect_law(const Input& in, const Driver& d, const char* what) {
  const std::vector<float>& x = in.x;
  const std::vector<uint8_t> payload = d.encode(x);
  const Header header = header_of(payload);
  std::vector<float> wanted(x.size());
  for (const uint32_t side : {0U, 1U}) {
    std::vector<uint32_t> order = in.order[side];
    const uint64_t k = wanted_of(d.params.ratio, order.size());
    const uint64_t count = header.count[side];
    ASSERT_LE(4 * count, 5 * k) << what << ", n " << x.size() << ", side " << side;
    ASSERT_GE(4 * count, 3 * k) << what << ", n " << x.size() << ", side " << side;
    order.resize(count);
    std::sort(order.begin(), order.end());
    std::array<double, 8> lane{};
    for (uint64_t j = 0; j < count; ++j) lane[j % 8] += static_cast<double>(x[order[j]]);
    const double sum =
        ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
    const float mean = count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
    ASSERT_EQ(std::bit_cast<uint32_t>(mean), std::bit_cast<uint32_t>(header.mean[side])) << what;
    for (const uint32_t i : order) wanted[i] = mean;
  }
  ASSERT_EQ(d.decode(payload, vector_unit(x.size())), wanted) << what;
  ASSERT_EQ(payload.size(), 16 + index_bytes(header.count[0] + header.count[1], x.size()));
}

void expect_law(const std::vector<float>& x, const Driver& d, const char* what) {
  expect_law(Input(x), d, what);
}

constexpr Shape kShapes[] = {Shape::laplace, Shape::gaussian, Shape::gamma_half,
                             Shape::heavy,   Shape::layered,  Shape::pareto};

TEST(AdaQTest, LargestOfEachSignBecomeTheirMean) {
  for (const Shape shape : kShapes) {
    for (const uint64_t n : {1U, 2U, 3U, 63U, 1000U, 1025U, 20000U, 70000U}) {
      const Input x(draw(shape, n, n));
      for (const double ratio : {1e-9, 0.001, 0.01, 0.1, 0.25, 0.6, 1.0}) {
        expect_law(x, driver(ratio), "random");
      }
    }
  }
}

// Defect 11 by another door: one sign alone, or none.
TEST(AdaQTest, Grace11OneSignOrNone) {
  for (const uint64_t n : {1U, 100U, 5000U, 70000U}) {
    std::vector<float> x = draw(Shape::laplace, n, 1);
    for (float& v : x) v = -std::fabs(v);
    expect_law(x, driver(0.01), "negative");
    EXPECT_EQ(header_of(driver(0.01).encode(x)).count[0], 0U);
    for (float& v : x) v = -v;
    expect_law(x, driver(0.01), "positive");
    for (const float zero : {0.0F, -0.0F}) {
      const std::vector<uint8_t> payload = driver(0.01).encode(std::vector<float>(n, zero));
      EXPECT_EQ(payload, std::vector<uint8_t>(16));
    }
  }
}

TEST(AdaQTest, CountStaysInBandForAnySample) {
  const uint64_t n = 200000;
  const RandomSample sample(vector_unit(n), driver(0.01).place);
  for (const Lie lie : {Lie::only_large, Lie::only_small, Lie::half}) {
    const Input x(misleading(lie, sample, n, RandomSample::size(0.01, n)));
    for (const double ratio : {0.001, 0.01, 0.03, 0.06}) expect_law(x, driver(ratio), "misled");
  }
}

TEST(AdaQTest, SignsMayDifferInNumberAndSize) {
  for (const uint64_t n : {5000U, 150000U}) {
    std::vector<float> x = draw(Shape::laplace, n, 3);
    for (uint64_t i = 0; i < n; ++i) x[i] = i % 1000 == 0 ? -std::fabs(x[i]) : std::fabs(x[i]);
    expect_law(x, driver(0.01), "few negatives");
    for (float& v : x) v *= v < 0 ? 1e6F : 1.0F;
    expect_law(x, driver(0.01), "few and large");
    for (uint64_t i = 0; i < n; ++i) x[i] = i % 2 == 0 ? -1e3F * std::fabs(x[i]) : std::fabs(x[i]);
    expect_law(x, driver(0.01), "half of them large");
    for (uint64_t i = 0; i < n; ++i) x[i] = i < n - 7 ? std::fabs(x[i]) : -1.0F;
    expect_law(x, driver(0.01), "some at the end");
  }
}

TEST(AdaQTest, EqualMagnitudesAreOrderedByIndex) {
  for (const uint64_t n : {100U, 5000U, 140000U}) {
    std::vector<float> x(n, -3.0F);
    expect_law(x, driver(0.01), "constant");
    for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<float>(i * 7919 % 5) - 2.0F;
    expect_law(x, driver(0.01), "five values");
    expect_law(x, driver(0.3), "five values");
  }
}

TEST(AdaQTest, MostlyZerosAreEncoded) {
  for (const uint64_t n : {1000U, 70000U, 300000U}) {
    std::vector<float> x(n);
    for (uint64_t i = n / 3; i < n / 3 + 5; ++i) x[i] = -1.0F - static_cast<float>(i % 3);
    expect_law(x, driver(0.01), "five");
    for (uint64_t i = 0; i < n; i += 40) x[i] = static_cast<float>(i + 1);
    expect_law(x, driver(0.01), "2.5 %");
    expect_law(x, driver(0.3), "2.5 %");
  }
}

TEST(AdaQTest, HugeAndTinyAreEncoded) {
  std::vector<float> x = draw(Shape::laplace, 70000, 9);
  for (uint64_t i = 0; i < x.size(); ++i) x[i] *= i % 2 == 0 ? 1e-38F : 1e-36F;
  expect_law(x, driver(0.01), "denormals");
  x[3] = 3e38F;
  x[4] = -3e38F;
  expect_law(x, driver(0.01), "outliers");
  expect_law(std::vector<float>(3000, std::numeric_limits<float>::max()), driver(1), "all huge");
  expect_law(std::vector<float>(3000, -std::numeric_limits<float>::denorm_min()), driver(1),
             "all tiny");
}

TEST(AdaQTest, LargeUnitsAreEncoded) {
  const uint64_t n = (uint64_t{1} << 22) + 1001;
  const std::vector<float> x = draw(Shape::layered, n, 8);
  const std::vector<uint8_t> payload = driver(0.001).encode(x);
  const Header header = header_of(payload);
  for (const bool negative : {false, true}) {
    const auto m = static_cast<uint64_t>(
        std::count_if(x.begin(), x.end(), [&](float v) { return of_sign(v, negative); }));
    const uint64_t k = wanted_of(0.001, m);
    EXPECT_LE(4 * uint64_t{header.count[negative ? 1 : 0]}, 5 * k);
    EXPECT_GE(4 * uint64_t{header.count[negative ? 1 : 0]}, 3 * k);
  }
}

// Defects 1 and 2: 4(k + 3) bytes in GRACE's code, and 30 % of the elements.
TEST(AdaQTest, Grace02PacksItsIndices) {
  const uint64_t n = 1000000;
  EXPECT_LE(AdaQ::plan({}, vector_unit(n), 8).round[0].bytes, 16 + 12503U * 20 / 8 + 1);
  const std::vector<uint8_t> payload = driver(0.01).encode(draw(Shape::laplace, n, 1));
  const Header header = header_of(payload);
  const uint64_t k = uint64_t{header.count[0]} + header.count[1];
  EXPECT_EQ(payload.size(), 16 + (k * 20 + 7) / 8);
}

TEST(AdaQTest, LargestUnitsHaveValidSizes) {
  const uint64_t most = uint64_t{1} << 32;
  EXPECT_EQ(AdaQ::plan({}, vector_unit(0), 2).round[0].bytes, 16U);
  EXPECT_EQ(AdaQ::plan({}, vector_unit(1), 2).round[0].bytes, 16U);
  EXPECT_EQ(AdaQ::plan({1.0}, vector_unit(most - 1), 2).round[0].bytes, 16 + (most - 1) * 4);
  const std::vector<uint8_t> none(16);
  EXPECT_EQ(AdaQ::check({}, vector_unit(most - 1), 0, none), Errc::ok);
  EXPECT_EQ(AdaQ::check({}, vector_unit(most + 1), 0, none), Errc::shape_unsupported);
}

const std::vector<float> kPage{0.0F, -2.0F, 0.5F, 1.0F, -0.25F, 2.0F, -1.0F, 0.125F};
const std::vector<uint8_t> kPageBytes{
    0x00, 0x00, 0xC0, 0x3F,  // 1.5
    0x00, 0x00, 0xC0, 0xBF,  // -1.5
    0x02, 0x00, 0x00, 0x00, 0x02,
    0x00, 0x00, 0x00, 0x6B, 0x0C};  // 3, 5, then 1, 6, in three bits each

// Golden bytes of the format page.
TEST(AdaQTest, BytesOfTheFormatPage) { EXPECT_EQ(driver(0.5).encode(kPage), kPageBytes); }

TEST(AdaQTest, NonCanonicalPayloadsAreRefused) {
  const auto check = [&](const std::function<void(std::vector<uint8_t>&)>& damage) {
    std::vector<uint8_t> bytes = kPageBytes;
    damage(bytes);
    return AdaQ::check({0.5}, vector_unit(8), 0, bytes);
  };
  using Payload = std::vector<uint8_t>;
  const auto indices = [](Payload& b, uint32_t a, uint32_t c, uint32_t d, uint32_t e) {
    store(b.data() + 16, static_cast<uint16_t>(a | c << 3 | d << 6 | e << 9));
  };
  const auto malformed = Errc::payload_malformed;
  EXPECT_EQ(check([](Payload&) {}), Errc::ok);
  EXPECT_EQ(check([](Payload& b) { b.pop_back(); }), malformed);
  EXPECT_EQ(check([](Payload& b) { b.push_back(0); }), malformed);
  EXPECT_EQ(check([](Payload& b) { b.resize(15); }), malformed);
  EXPECT_EQ(check([](Payload& b) { b.clear(); }), malformed);
  EXPECT_EQ(check([](Payload& b) { b[17] |= 0x80; }), malformed);
  EXPECT_EQ(check([](Payload& b) { b[8] = 7; }), Errc::bound_exceeded);
  EXPECT_EQ(check([](Payload& b) { store(b.data() + 8, ~uint64_t{0}); }), Errc::bound_exceeded);
  EXPECT_EQ(check([](Payload& b) { b[3] |= 0x80; }), malformed);         // a mean below zero
  EXPECT_EQ(check([](Payload& b) { b[7] &= 0x7F; }), malformed);         // and one above
  EXPECT_EQ(check([](Payload& b) { store(b.data(), 0U); }), malformed);  // none
  EXPECT_EQ(check([](Payload& b) { store(b.data() + 4, 0xFF800000U); }), malformed);
  EXPECT_EQ(check([](Payload& b) { store(b.data(), 0x7FC00000U); }), malformed);
  EXPECT_EQ(check([&](Payload& b) { indices(b, 5, 3, 1, 6); }), malformed);
  EXPECT_EQ(check([&](Payload& b) { indices(b, 3, 3, 1, 6); }), malformed);
  EXPECT_EQ(check([&](Payload& b) { indices(b, 3, 5, 6, 1); }), malformed);
  EXPECT_EQ(check([&](Payload& b) { indices(b, 3, 5, 3, 6); }), malformed);  // on both sides
  EXPECT_EQ(check([&](Payload& b) { indices(b, 3, 6, 1, 6); }), malformed);
  EXPECT_EQ(check([&](Payload& b) { indices(b, 0, 7, 1, 6); }), Errc::ok);
  // An index that is not below n.
  EXPECT_EQ(AdaQ::check({0.9}, vector_unit(6), 0, kPageBytes), malformed);
  EXPECT_EQ(AdaQ::check({0.9}, vector_unit(7), 0, kPageBytes), Errc::ok);
  // A mean without elements.
  std::vector<uint8_t> none(16);
  EXPECT_EQ(AdaQ::check({}, vector_unit(8), 0, none), Errc::ok);
  store(none.data(), 1.0F);
  EXPECT_EQ(AdaQ::check({}, vector_unit(8), 0, none), malformed);
  store(none.data(), -0.0F);
  EXPECT_EQ(AdaQ::check({}, vector_unit(8), 0, none), malformed);
}

}  // namespace
}  // namespace laconic::codecs

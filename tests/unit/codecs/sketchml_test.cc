// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// sketchml: against quantiles by a sort in double and bins found one edge after the other.
#include "codecs/sketchml/sketchml.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

using Runner = CodecRunner<SketchMl>;
using ByteVector = std::vector<uint8_t>;

SketchMl::Params with(uint32_t quantiles) { return {quantiles}; }

uint32_t width_of(uint32_t q) {
  uint32_t width = 0;
  while (1U << width < q) ++width;
  return width;
}

std::vector<float> edges_of(std::vector<float> x, uint32_t q) {
  std::sort(x.begin(), x.end());
  std::vector<float> edges;
  for (uint64_t j = 0; j <= q; ++j) {
    const uint64_t product = j * (x.size() - 1), low = product / q;
    const uint64_t high = std::min<uint64_t>(low + 1, x.size() - 1);
    const double part = static_cast<double>(product % q) / q;
    const double a = static_cast<double>(x[low]), b = static_cast<double>(x[high]);
    edges.push_back(static_cast<float>(a + part * (b - a)));
  }
  return edges;
}

/// The first edge that x equals names its bin, the last edge the one before; otherwise the bin
/// between.
uint32_t bin_of(float x, const std::vector<float>& edges) {
  const auto q = static_cast<uint32_t>(edges.size() - 1);
  for (uint32_t b = 0; b <= q; ++b) {
    if (edges[b] == x) return std::min(b, q - 1);
  }
  uint32_t b = 0;
  while (b + 1 < q && edges[b + 1] < x) ++b;
  return b;
}

struct Decoded {
  std::vector<float> values;
  std::vector<uint32_t> codes;
};

Decoded parse(const ByteVector& payload, uint64_t n, uint32_t q) {
  Decoded d;
  const uint32_t width = width_of(q);
  for (uint32_t b = 0; b < q; ++b) d.values.push_back(load<float>(payload.data() + 4 * b));
  for (uint64_t i = 0; i < n; ++i) {
    uint32_t code = 0;
    for (uint32_t k = 0; k < width; ++k) {
      const uint64_t bit = i * width + k;
      code |= static_cast<uint32_t>(payload[4 * q + bit / 8] >> bit % 8 & 1) << k;
    }
    d.codes.push_back(code);
  }
  return d;
}

void expect_exact(const std::vector<float>& x, uint32_t q, const std::string& what) {
  SCOPED_TRACE(what + ", n = " + std::to_string(x.size()) + ", q = " + std::to_string(q));
  Runner run(x.size(), with(q));
  const ByteVector payload = run.encode(x);
  ASSERT_TRUE(run.finite);
  ASSERT_EQ(payload.size(), 4 * q + (x.size() * width_of(q) + 7) / 8);
  ASSERT_EQ(run.check(payload), Errc::ok);
  const Decoded d = parse(payload, x.size(), q);
  const std::vector<float> edges = edges_of(x, q);
  std::vector<long double> sums(q), magnitudes(q);
  std::vector<uint64_t> counts(q);
  for (uint64_t i = 0; i < x.size(); ++i) {
    const uint32_t bin = bin_of(x[i], edges);
    ASSERT_EQ(d.codes[i], bin) << "element " << i << ": " << x[i];
    sums[bin] += static_cast<long double>(x[i]);
    magnitudes[bin] += std::fabs(static_cast<long double>(x[i]));
    ++counts[bin];
  }
  for (uint32_t b = 0; b < q; ++b) {
    const auto n = static_cast<long double>(std::max<uint64_t>(1, counts[b]));
    // rounded once to float, and much finer while it was summed
    const long double mean = sums[b] / n;
    const long double allowed = std::fabs(mean) * 6e-8L + magnitudes[b] / n * 1e-12L + 1e-45L;
    ASSERT_LE(std::fabs(static_cast<long double>(d.values[b]) - mean), allowed) << "bin " << b;
  }
  const std::vector<float> decoded = run.decode(payload);
  for (uint64_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(decoded[i], d.values[d.codes[i]]);
  }
}

enum class Shape { normal, heavy, narrow, ties, sparse, constant, zeros, outlier, tiny, huge };
constexpr Shape kShapes[] = {Shape::normal, Shape::heavy,    Shape::narrow, Shape::ties,
                             Shape::sparse, Shape::constant, Shape::zeros,  Shape::outlier,
                             Shape::tiny,   Shape::huge};

std::vector<float> values_of(Shape shape, uint64_t n) {
  std::mt19937_64 random(n + static_cast<uint64_t>(shape));
  std::normal_distribution<float> normal(0.0F, 1e-2F);
  std::vector<float> x(n);
  for (float& v : x) {
    const float g = normal(random);
    const auto word = static_cast<uint32_t>(random());
    switch (shape) {
      case Shape::normal:
        v = g;
        break;
      case Shape::heavy:
        v = g * g * g;
        break;
      case Shape::narrow:  // all in one bucket of upper bits
        v = 1.0F + static_cast<float>(word % 65536) * 0x1p-23F;
        break;
      case Shape::ties:
        v = static_cast<float>(static_cast<int32_t>(word % 7) - 3);
        break;
      case Shape::sparse:
        v = word % 10 == 0 ? g : word % 2 == 0 ? 0.0F : -0.0F;
        break;
      case Shape::constant:
        v = -0.25F;
        break;
      case Shape::zeros:
        v = word % 2 == 0 ? 0.0F : -0.0F;
        break;
      case Shape::outlier:
        v = &v == &x[n / 2] ? -1e30F : g;
        break;
      case Shape::tiny:
        v = bits_float(word & 0x800003FFU);
        break;
      case Shape::huge:
        v = (word % 2 == 0 ? 1.0F : -1.0F) * 0x1.fffffep126F *
            (static_cast<float>(word >> 8) * 0x1p-24F);
        break;
    }
  }
  return x;
}

TEST(SketchMl, BinsMatchSort) {
  for (const Shape shape : kShapes) {
    for (const uint64_t n : {1U, 2U, 3U, 17U, 63U, 64U, 65U, 257U, 4096U, 4097U, 70'001U}) {
      for (const uint32_t q : {2U, 3U, 63U, 64U, 65U, 256U}) {
        if (n > 1000 && q % 2 == 1) continue;
        expect_exact(values_of(shape, n), q, "shape " + std::to_string(static_cast<int>(shape)));
        if (HasFatalFailure()) return;
      }
    }
  }
}

TEST(SketchMl, KnownBytes) {
  Runner run(4, with(2));  // edges 0, 1.5, 3
  const ByteVector golden{0x00, 0x00, 0x00, 0x3F, 0x00, 0x00, 0x20, 0x40, 0x0C};
  EXPECT_EQ(run.encode({0.0F, 1.0F, 2.0F, 3.0F}), golden);
  EXPECT_EQ(run.decode(golden), (std::vector<float>{0.5F, 0.5F, 2.5F, 2.5F}));
}

/// Edges 0, 0, 0, 3, 5: the zeros are bin 0 and nothing else is, the largest is in the last bin.
TEST(SketchMl, EqualEdgesBelongToFirstBin) {
  Runner run(9, with(4));
  const ByteVector payload = run.encode({0, 0, 0, 0, 0, 0.5F, 3, 4, 5});
  const Decoded d = parse(payload, 9, 4);
  EXPECT_EQ(d.codes, (std::vector<uint32_t>{0, 0, 0, 0, 0, 2, 3, 3, 3}));
  EXPECT_EQ(d.values, (std::vector<float>{0, 0, 0.5F, 4}));
}

TEST(SketchMl, Grace01BinsArePacked) {
  EXPECT_EQ(Runner(1000).plan().round[0].bytes, 4 * 64 + 750U);
  EXPECT_EQ(Runner(1000, with(2)).plan().round[0].bytes, 4 * 2 + 125U);
  EXPECT_EQ(Runner(1001, with(65)).plan().round[0].bytes, 4 * 65 + 876U);
  EXPECT_EQ(Runner(1000, with(256)).plan().round[0].bytes, 4 * 256 + 1000U);
  EXPECT_EQ(Runner(0).plan().round[0].bytes, 0U);
  constexpr uint64_t kMost = (uint64_t{1} << 32) - 1;
  EXPECT_EQ(Runner(kMost).plan().round[0].bytes, 4 * 64 + kMost / 4 * 3 + 3);
  EXPECT_EQ(SketchMl::contract({}).max_count, kMost);  // counters are uint32
}

TEST(SketchMl, MostlyZerosStayZeroExactly) {
  const std::vector<float> x = values_of(Shape::sparse, 5000);
  Runner run(x.size());
  const std::vector<float> d = run.decode(run.encode(x));
  for (uint64_t i = 0; i < x.size(); ++i) {
    ASSERT_TRUE(x[i] != 0 || d[i] == 0);
  }
}

TEST(SketchMl, MisfittingPayloadsAreRefused) {
  const std::vector<float> x = values_of(Shape::normal, 100);
  Runner run(x.size(), with(5));  // 300 bits of codes, 4 of padding
  const ByteVector good = run.encode(x);
  ASSERT_EQ(run.check(good), Errc::ok);
  const auto refused = [&](uint64_t at, uint8_t value) {
    ByteVector bad = good;
    bad[at] = value;
    return run.check(bad) == Errc::payload_malformed;
  };
  EXPECT_TRUE(refused(good.size() - 1, 0x10 | good.back()));  // a bit after the last code
  EXPECT_TRUE(refused(20, 0x05) && refused(20, 0x06) && refused(20, 0x28));  // there is no bin 5
  ByteVector bad = good;
  store(bad.data() + 16, INFINITY);
  EXPECT_EQ(run.check(bad), Errc::payload_malformed);
}

/// One element of the lower bin at one end, all others at the other.
TEST(SketchMl, FeedbackOfLargestInputsIsFinite) {
  const float largest = Runner(1).plan().largest_input;
  std::vector<float> x(1000, -largest);
  for (uint64_t i = 1; i < x.size(); ++i) x[i] = largest * (0.9F + 1e-5F * static_cast<float>(i));
  Runner run(x.size(), with(2));
  const std::vector<float> d = run.decode(run.encode(x));
  EXPECT_GT(d[0], 0.8F * largest);
  for (uint64_t i = 0; i < x.size(); ++i) ASSERT_TRUE(std::isfinite(x[i] - d[i]));
}

}  // namespace
}  // namespace laconic::codecs

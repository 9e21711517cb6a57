// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/thc/thc.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <string>

#include "codecs/thc/tables.h"
#include "conformance/codec_law.h"
#include "laconic/random.h"
#include "laconic/spec.h"

namespace laconic {
namespace {

using conformance::Conditions;
using conformance::Exchange;
using conformance::vector_unit;
using Floats = std::vector<float>;

Floats normal(uint64_t n, uint64_t seed, float scale = 1.0F) {
  Floats x(n);
  for (uint64_t i = 0; i < n; ++i) {
    const RandomBlock r = philox({static_cast<uint32_t>(seed), 7}, i);
    const double u = (r[0] + 0.5) / 4294967296.0, v = (r[1] + 0.5) / 4294967296.0;
    x[i] =
        scale * static_cast<float>(std::sqrt(-2 * std::log(u)) * std::cos(6.283185307179586 * v));
  }
  return x;
}

double norm(std::span<const float> x) {
  double sum = 0;
  for (const float v : x) sum += static_cast<double>(v) * v;
  return std::sqrt(sum);
}

Exchange exchange_of(const std::string& text, uint64_t count, uint32_t world = 1) {
  Conditions conditions;
  conditions.unit = vector_unit(count);
  conditions.world = world;
  return {*Spec::parse(text), conditions};
}

/// D·H·y/√d by the definition, in double.
std::vector<double> rotated_back(const std::vector<double>& y, const Conditions& c,
                                 uint64_t first) {
  const RandomKey key = shared_key(c.seed, c.step, c.unit.parameter);
  std::vector<double> x(y.size());
  for (uint64_t i = 0; i < y.size(); ++i) {
    double sum = 0;
    for (uint64_t j = 0; j < y.size(); ++j) sum += std::popcount(i & j) % 2 == 0 ? y[j] : -y[j];
    const uint64_t e = first + i;
    const bool minus = (philox(key, e / 128)[e / 32 % 4] >> e % 32 & 1U) != 0;
    x[i] = (minus ? -sum : sum) / std::sqrt(static_cast<double>(y.size()));
  }
  return x;
}

constexpr double kT = 2.1538746940614555;  // p = 1/32

/// Sums of three, of whom two added something, in the first block, and of one in the second.
TEST(Thc, SumsDecodeToMeanOfContributors) {
  Exchange e = exchange_of("thc:block=256,scale=exact", 300, 3);
  const Floats a = normal(300, 1), b = normal(300, 2, 0.5F), zero(300);
  const std::vector<Source> sources{{a.data(), nullptr}, {b.data(), nullptr}, {b.data(), nullptr}};
  ASSERT_TRUE(e.encode(sources));
  std::vector<uint8_t> sums(512);
  for (uint64_t i = 0; i < sums.size(); ++i) sums[i] = static_cast<uint8_t>(i * 37 % 101);
  const std::array<Contributors, 2> who{{{2, 3}, {1, 1}}};
  const Term term{sums, 1.0F, who};
  const Floats out = e.decoded({&term, 1});

  Spec spec = *Spec::parse("thc:block=256,scale=exact");
  spec.prepare(3);
  const auto table = spec.codec().table(spec.params());
  const double g = table.back();
  EXPECT_EQ(table.back(), 53);  // for three ranks, as for four
  for (uint64_t block = 0; block < 2; ++block) {
    const uint64_t at = 256 * block, count = block == 0 ? 256 : 44;
    const double l =
        std::max(norm(std::span(a).subspan(at, count)), norm(std::span(b).subspan(at, count)));
    const double range = kT * l / 16;
    std::vector<double> y(256);
    for (uint64_t i = 0; i < 256; ++i)
      y[i] = (sums[at + i] - who[block].added * g / 2) * (2 * range / g) / who[block].divisor;
    const std::vector<double> x = rotated_back(y, e.conditions(), at);
    for (uint64_t i = 0; i < count; ++i) ASSERT_NEAR(out[at + i], x[i], 1e-4) << at + i;
  }
}

/// A payload of the largest index everywhere has norm √block·B: the range shows.
float range_of(Exchange& e, uint64_t block, uint64_t size) {
  std::vector<uint8_t> codes(e.plan().round[1].bytes, 0xFF);
  const Term term{codes, 1.0F};
  const Floats out = e.decoded({&term, 1});
  return static_cast<float>(norm(std::span(out).subspan(block * size, size)) /
                            std::sqrt(static_cast<double>(size)));
}

TEST(Thc, ExactRangeMatchesLargestNorm) {
  Exchange e = exchange_of("thc:block=512,scale=exact", 1024, 2);
  const Floats a = normal(1024, 1), b = normal(1024, 2, 3.0F);
  const std::vector<Source> sources{{a.data(), nullptr}, {b.data(), nullptr}};
  ASSERT_TRUE(e.encode(sources));
  for (uint64_t block = 0; block < 2; ++block) {
    const double l = norm(std::span(b).subspan(512 * block, 512));
    EXPECT_NEAR(range_of(e, block, 512), kT * l / std::sqrt(512.0), 1e-4);
  }
}

TEST(Thc, NextRangeIsTenthAboveLastLargestNorm) {
  Exchange e = exchange_of("thc:block=256", 768, 2);
  ASSERT_EQ(e.plan().round[1].maxima, 3U);
  Floats a = normal(768, 1), b = normal(768, 2, 3.0F);
  std::fill_n(a.begin() + 512, 256, 0.0F);  // the last block is zero everywhere
  std::fill_n(b.begin() + 512, 256, 0.0F);
  const std::vector<Source> sources{{a.data(), nullptr}, {b.data(), nullptr}};
  ASSERT_TRUE(e.encode(sources));
  e.commit();
  ASSERT_TRUE(e.encode(sources));  // begins with round 1
  double most = 0;
  for (uint64_t block = 0; block < 2; ++block) {
    const double l = norm(std::span(b).subspan(256 * block, 256));
    most = std::max(most, l);
    const double range = range_of(e, block, 256);
    EXPECT_GE(range, 1.0999 * kT * l / 16);
    EXPECT_LE(range, 1.1001 * kT * l / 16 * (1 + 0x1p-7)) << "rounded up to 8 bits";
  }
  EXPECT_NEAR(range_of(e, 2, 256), 1.1 * kT * most / 16 / 1024, 1e-4) << "it can come back";
}

TEST(Thc, RangeIsAgreedOnUntilNormIsNonZero) {
  const Spec spec = *Spec::parse("thc");
  const Unit unit = vector_unit(3000);
  std::vector<uint64_t> kept(64);
  Work work{MutBytes(reinterpret_cast<uint8_t*>(kept.data()), 512), {}, Isa::scalar, nullptr};
  const auto start = [&](Floats state) {
    return spec.codec().start({spec.params(), state, unit, {}, 0, work});
  };
  EXPECT_EQ(start({0, 0, 0}), 0U);
  EXPECT_EQ(start({0, 1e-30F, 0}), 1U);
  EXPECT_EQ(start({-1, -2, -3}), 0U) << "no norms";
  const Spec exact = *Spec::parse("thc:scale=exact");
  EXPECT_EQ(exact.codec().start({exact.params(), {}, unit, {}, 0, work}), 0U);
  EXPECT_EQ(exact.codec().plan(exact.params(), unit, 4).state_floats, 0U);
}

TEST(Thc, EncodingWithResidualEqualsEncodingSum) {
  for (const char* text : {"thc:block=256", "thc:block=2048,bits=2", "thc:bits=3,scale=exact"}) {
    SCOPED_TRACE(text);
    const Floats g = normal(5000, 3);
    Floats e = normal(5000, 4, 0.3F), sum(5000);
    for (uint64_t i = 0; i < sum.size(); ++i) sum[i] = g[i] + e[i];
    Exchange with = exchange_of(text, 5000), without = exchange_of(text, 5000);
    for (int step = 0; step < 2; ++step) {  // by an agreed range, then by the last one
      const Source source{g.data(), e.data()};
      ASSERT_TRUE(with.encode({&source, 1}));
      ASSERT_TRUE(without.encode(sum.data()));
      conformance::expect_same_bytes(with.payload(), without.payload(), "payload");
      const Floats own = without.own();
      for (uint64_t i = 0; i < sum.size(); ++i) {
        ASSERT_EQ(e[i], sum[i] - own[i]);
        sum[i] = g[i] + e[i];
      }
      with.commit();
      without.commit();
    }
  }
}

TEST(Thc, NonFiniteChangesNothing) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), 0x1p117F}) {
    Exchange e = exchange_of("thc:block=256", 1000);
    Floats g = normal(1000, 3);
    ASSERT_TRUE(e.encode(g.data()));
    e.commit();
    g[999] = bad;  // the last block: the others have been encoded before it is seen, if at all
    Floats residual = normal(1000, 4);
    const Floats before = residual;
    const Source source{g.data(), residual.data()};
    EXPECT_FALSE(e.encode({&source, 1})) << bad;
    EXPECT_EQ(residual, before) << bad;
    EXPECT_FALSE(e.encode(g.data())) << bad;
  }
}

TEST(Thc, RanksShareRotationAndRoundIndependently) {
  Exchange e = exchange_of("thc:scale=exact", 1 << 14, 2);
  const Floats x = normal(1 << 14, 5);
  const std::vector<Source> sources(2, {x.data(), nullptr});
  ASSERT_TRUE(e.encode(sources));
  uint64_t equal = 0;
  for (uint64_t i = 0; i < e.payload(0).size(); ++i) equal += e.payload(0)[i] == e.payload(1)[i];
  EXPECT_LT(equal, e.payload(0).size() / 2);
  // Errors of the same clamped values are the same, those of rounding are not: their mean is less.
  const Floats one = e.own(0), mean = e.mean();
  double alone = 0, together = 0;
  for (uint64_t i = 0; i < x.size(); ++i) {
    alone += std::pow(one[i] - x[i], 2);
    together += std::pow(mean[i] - x[i], 2);
  }
  EXPECT_LT(together, 0.85 * alone);
}

/// Li et al., section 5: clamping and rounding of independent blocks of equal norm, an n-th each.
TEST(Thc, ErrorOfMeanMatchesFormula) {
  for (const uint32_t world : {1U, 2U, 4U, 8U, 15U}) {
    SCOPED_TRACE(world);
    constexpr uint64_t kCount = 64 << 10;
    Exchange e = exchange_of("thc:scale=exact", kCount, world);
    std::vector<Floats> x;
    std::vector<Source> sources;
    std::vector<double> mean(kCount);
    double squares = 0;
    for (uint32_t r = 0; r < world; ++r) {
      x.push_back(normal(kCount, 100 + r));
      for (uint64_t block = 0; block < kCount; block += 1024) {  // equal norms
        const auto part = std::span(x[r]).subspan(block, 1024);
        const auto scale = static_cast<float>(32 / norm(part));
        for (float& v : part) v *= scale;
      }
      for (uint64_t i = 0; i < kCount; ++i) mean[i] += static_cast<double>(x[r][i]) / world;
      squares += std::pow(norm(x[r]), 2) / world;
    }
    for (const Floats& v : x) sources.push_back({v.data(), nullptr});
    ASSERT_TRUE(e.encode(sources));
    const Floats found = e.mean();
    double error = 0;
    for (uint64_t i = 0; i < kCount; ++i) error += std::pow(found[i] - mean[i], 2);
    const auto table = codecs::thc::choose_table(4, 1.0 / 32, world, 8);
    const double expected = codecs::thc::expected_error(*table, 1.0 / 32) / world;
    EXPECT_NEAR(error / squares / expected, 1, 0.05);
  }
}

TEST(Thc, ElementWidthGrowsWithRanks) {
  const auto lane = [](const char* text, uint32_t world) {
    const Spec spec = *Spec::parse(text);
    return spec.codec().plan(spec.params(), vector_unit(5000), world).round[1].lane;
  };
  EXPECT_EQ(lane("thc", 17), DType::u8);
  EXPECT_EQ(lane("thc", 18), DType::u16);
  EXPECT_EQ(lane("thc:bits=3", 36), DType::u8);
  EXPECT_EQ(lane("thc:bits=2", 86), DType::u16);
  EXPECT_EQ(lane("thc:lane=16", 2), DType::u16);
  EXPECT_EQ(lane("thc:lane=8", 2), DType::u8);
  const Plan plan =
      Spec::parse("thc")->codec().plan(Spec::parse("thc")->params(), vector_unit(5000), 2);
  EXPECT_EQ(plan.round[1].lanes, 5U * 1024) << "padded to whole blocks";
  EXPECT_EQ(plan.round[1].bytes, 5U * 512);
}

TEST(Thc, ChecksBoundNormsAndRefuseTruncatedBlocks) {
  const Spec spec = *Spec::parse("thc:block=256");
  Unit unit = vector_unit(300);
  const auto check = [&](uint32_t round, const std::vector<uint8_t>& bytes) {
    return spec.codec().check(spec.params(), unit, round, bytes);
  };
  std::vector<uint8_t> norms(8);
  EXPECT_EQ(check(0, norms), Errc::ok);
  for (const float bad : {-0.0F, -1.0F, 0x1.1p116F, std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::quiet_NaN()}) {
    store(norms.data() + 4, bad);
    EXPECT_EQ(check(0, norms), Errc::payload_malformed) << bad;
  }
  EXPECT_EQ(check(1, std::vector<uint8_t>(256)), Errc::ok);
  EXPECT_EQ(check(1, std::vector<uint8_t>(255)), Errc::payload_malformed);
  EXPECT_EQ(check(2, std::vector<uint8_t>(256)), Errc::payload_malformed);
  unit.offset = 128;
  EXPECT_EQ(check(1, std::vector<uint8_t>(256)), Errc::payload_malformed);
}

}  // namespace
}  // namespace laconic

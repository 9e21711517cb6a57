// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// natural: known codes, the law of its rounding, what depends on nothing but an element's place.
#include "codecs/natural/natural.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

using Runner = CodecRunner<Natural>;
using Codes = std::vector<uint8_t>;

TEST(Natural, Grace06GoldenBytesAtBothEndsAndSigns) {
  // Powers of two are never rounded.
  const std::vector<float> x{1.0F,    -1.0F,    2.0F,      0.5F,       0x1p17F,  -0x1p17F,
                             0x1p18F, -0x1p18F, 0x1p-108F, -0x1p-108F, 0x1p-107F};
  const Codes golden{109, 237, 110, 108, 126, 254, 127, 255, 1, 129, 2};
  Runner run(x.size());
  EXPECT_EQ(run.encode(x), golden);
  EXPECT_EQ(run.decode(golden), x);
  EXPECT_EQ(Natural::info.version, 1);
}

TEST(Natural, Grace06OutOfRangeValuesSaturateOrVanish) {
  const std::vector<float> x{0x1p19F, -3e38F, 0x1p127F, 0x1p-109F, -0x1p-110F, 1e-40F, 0.0F, -0.0F};
  Runner run(x.size());
  const Codes codes = run.encode(x);
  EXPECT_EQ(codes, (Codes{127, 255, 127, 0, 128, 0, 0, 128}));
  EXPECT_EQ(run.decode(codes), (std::vector<float>{0x1p18F, -0x1p18F, 0x1p18F, 0, 0, 0, 0, 0}));
  EXPECT_FALSE(Natural::contract({}).unbiased);  // not for every input
}

TEST(Natural, EveryByteDecodesToItsPower) {
  Codes codes(256);
  for (uint32_t c = 0; c < 256; ++c) codes[c] = static_cast<uint8_t>(c);
  const std::vector<float> x = Runner(256).decode(codes);
  for (uint32_t c = 0; c < 256; ++c) {
    const float power = std::ldexp(c < 128 ? 1.0F : -1.0F, static_cast<int>(c % 128) - 109);
    EXPECT_EQ(x[c], c % 128 == 0 ? 0.0F : power) << c;
  }
}

TEST(Natural, Grace01EachElementTakesOneByte) {
  for (const uint64_t n : {0U, 1U, 1000U}) {
    EXPECT_EQ(Runner(n).encode(normal(n, 1)).size(), n);
    EXPECT_EQ(Runner(n).plan().round[0].bytes, n);
  }
}

/// x = 2^e (1 + f): mean x, variance 4^e f (1 - f). Six standard errors.
TEST(Natural, MeanAndVarianceMatchFormula) {
  constexpr uint64_t n = uint64_t{1} << 20;
  for (const float x :
       {1.5F, -1.0000153F, 0.013F, -3.9999F, 0x1.000002p-50F, 200000.0F, -0.3F, 0x1.8p-107F}) {
    Runner run(n);
    const std::vector<float> decoded = run.decode(run.encode(std::vector<float>(n, x)));
    const double low = std::exp2(std::floor(std::log2(std::fabs(static_cast<double>(x)))));
    const double f = std::fabs(static_cast<double>(x)) / low - 1;
    uint64_t up = 0;
    for (const float d : decoded) {
      const double magnitude = std::fabs(static_cast<double>(d));
      ASSERT_TRUE(magnitude == low || magnitude == 2 * low) << x << " became " << d;
      ASSERT_EQ(std::signbit(d), std::signbit(x));
      if (magnitude == 2 * low) ++up;
    }
    const double share = static_cast<double>(up) / n;  // mean and variance follow from it
    const double error = std::sqrt(f * (1 - f) / n);
    EXPECT_NEAR(share, f, 6 * error + 1.0 / n) << x;
  }
}

/// Mantissas so small that 16 random bits could not tell them from zero: the lower seven decide.
TEST(Natural, LowerRandomBitsMatter) {
  constexpr uint64_t n = uint64_t{1} << 23;
  constexpr double kChance = 0x1.8p-18;
  Runner run(n);
  const Codes codes = run.encode(std::vector<float>(n, 1.0F + static_cast<float>(kChance)));
  const auto up = static_cast<double>(std::count(codes.begin(), codes.end(), 110));
  EXPECT_NEAR(up, n * kChance, 6 * std::sqrt(n * kChance));
}

TEST(Natural, CutsChangeNoByte) {
  constexpr uint64_t n = 200'003;
  const std::vector<float> x = normal(n, 1);
  const Codes whole = Runner(n).encode(x);
  for (const uint64_t cut : {1U, 63U, 64U, 65U, 70'001U}) {
    Runner run(n - cut);
    run.unit.offset = cut;
    EXPECT_EQ(run.encode({x.begin() + static_cast<int64_t>(cut), x.end()}),
              Codes(whole.begin() + static_cast<int64_t>(cut), whole.end()));
  }
}

TEST(Natural, OffsetsDrawIndependently) {
  const std::vector<float> x(1000, 1.5F);
  const Codes first = Runner(1000).encode(x);
  for (const int what : {0, 1, 2, 3, 4}) {
    Runner run(1000);
    if (what == 0) run.place.rank = 1;
    if (what == 1) run.place.hop = 1;
    if (what == 2) run.place.step = 1;
    if (what == 3) run.place.seed = 1;
    if (what == 4) run.unit.parameter = 78;
    const Codes other = run.encode(x);
    uint64_t same = 0;
    for (uint64_t i = 0; i < 1000; ++i) same += first[i] == other[i] ? 1U : 0U;
    EXPECT_NEAR(static_cast<double>(same), 500, 6 * std::sqrt(250.0)) << what;
  }
}

}  // namespace
}  // namespace laconic::codecs

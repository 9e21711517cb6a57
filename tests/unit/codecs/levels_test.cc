// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// qsgd, terngrad and u8: known bytes, variance by formula, edge cases, hostile payloads.
// The laws that all codecs share are in tests/conformance.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "codecs/qsgd/qsgd.h"
#include "codecs/terngrad/terngrad.h"
#include "codecs/u8/u8.h"
#include "kernels/levels/tree.h"
#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

static_assert(Codec<Qsgd> && Codec<TernGrad> && Codec<U8>);

using ByteVector = std::vector<uint8_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();

template <class C>
using Runner = CodecRunner<C>;

TernGrad::Params ternary(float clip, TernGrad::Pack pack = TernGrad::Pack::two_bits) {
  return {clip, pack};
}
constexpr TernGrad::Pack kQuartic = TernGrad::Pack::quartic;
constexpr Qsgd::Norm kMaxNorm = Qsgd::Norm::max;

/// Mean and variance of |Q(x) − x|² over seeded trials.
struct Sample {
  double mean = 0, variance = 0;
  uint64_t trials = 0;
  /// Six standard errors.
  [[nodiscard]] double error() const {
    return 6 * std::sqrt(variance / static_cast<double>(trials));
  }
};
template <class C>
Sample squared_error(Runner<C>& runner, const std::vector<float>& x, uint64_t trials) {
  double sum = 0, squares = 0;
  for (uint64_t t = 0; t < trials; ++t) {
    runner.place.step = t;
    const std::vector<float> q = runner.round_trip(x);
    double e = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double d = static_cast<double>(q[i]) - static_cast<double>(x[i]);
      e += d * d;
    }
    sum += e;
    squares += e * e;
  }
  const auto n = static_cast<double>(trials);
  return {sum / n, squares / n - sum / n * (sum / n), trials};
}

/// A cut at the block changes no random number: only the scales may differ, here they do not.
TEST(Levels, CutsChangeNoRandomNumber) {
  constexpr uint64_t kHalf = 512 * 137;  // more than a chunk, and no multiple of it
  std::vector<float> x = normal(2 * kHalf, 3);
  x[100] = x[kHalf + 100] = 0.5F;  // the maximum of both halves
  const auto expect_halves = [&](auto whole) {
    const auto all = whole.round_trip(x);
    for (const uint64_t half : {0U, 1U}) {
      auto part = whole;
      part.unit.count = part.unit.rows = kHalf;
      part.unit.offset = kHalf * half;
      const auto from = static_cast<int64_t>(kHalf * half);
      const auto q = part.round_trip({x.begin() + from, x.begin() + from + int64_t{kHalf}});
      EXPECT_TRUE(std::equal(q.begin(), q.end(), all.begin() + from)) << half;
    }
  };
  expect_halves(Runner<Qsgd>(x.size()));
  expect_halves(Runner<TernGrad>(x.size(), ternary(0)));
}

// ---- qsgd ----

TEST(QsgdCodec, BytesMatchHandComputation) {
  // norm=max: the elements lie on levels, so no random number matters. 0.5 / 2 = 0.25 is a level.
  Runner<Qsgd> runner(5, {2, 16, kMaxNorm});
  const ByteVector payload = runner.encode({0.5F, -0.25F, 0.0F, -0.5F, 0.25F});
  // codes 2, -1, 0, -2, 1 in 3 bits: 010 111 000 110 001, from the lowest bit on
  EXPECT_EQ(payload, (ByteVector{0x00, 0x00, 0x80, 0x3E, 0x3A, 0x1C}));
  EXPECT_EQ(runner.decode(payload), (std::vector<float>{0.5F, -0.25F, 0.0F, -0.5F, 0.25F}));
}

TEST(QsgdCodec, L2NormIsExactAndDoesNotOverflow) {
  Runner<Qsgd> runner(4, {1, 16, Qsgd::Norm::l2});
  const ByteVector payload = runner.encode({3e30F, 0.0F, -4e30F, 0.0F});
  float norm = 0;
  std::memcpy(&norm, payload.data(), 4);
  EXPECT_NEAR(norm / 5e30F, 1.0F, 1e-6F);
}

TEST(QsgdCodec, InputsUpToTheLargestHaveANorm) {
  for (const uint32_t bucket : {16U, 17U, 512U, 65536U}) {
    Runner<Qsgd> runner(bucket, {127, bucket, Qsgd::Norm::l2});
    const float most = runner.plan().largest_input;
    for (const float q : runner.round_trip(std::vector<float>(bucket, most))) {
      ASSERT_TRUE(std::isfinite(q));
    }
  }
  Runner<Qsgd> runner(16, {127, 16, Qsgd::Norm::l2});
  runner.encode(std::vector<float>(16, kMax));
  EXPECT_FALSE(runner.finite);
  Runner<Qsgd> by_max(16, {127, 16, kMaxNorm});
  for (const float q : by_max.round_trip(std::vector<float>(16, kMax))) {
    EXPECT_NEAR(q / kMax, 1.0F, 1e-6F);
  }
}

/// E|Q(x) − x|² = Σ step²·f(1 − f), f the fractional part of l = |x|/step.
TEST(QsgdCodec, VarianceMatchesFormula) {
  for (const Qsgd::Params& params :
       {Qsgd::Params{}, Qsgd::Params{127, 512, kMaxNorm}, Qsgd::Params{1, 128, Qsgd::Norm::l2},
        Qsgd::Params{7, 100, kMaxNorm}, Qsgd::Params{1000, 64, kMaxNorm}}) {
    constexpr uint64_t n = 1100;
    const std::vector<float> x = normal(n, 5);
    Runner<Qsgd> runner(n, params);
    double want = 0;
    for (uint64_t b = 0; b < n; b += params.bucket) {
      const uint64_t end = std::min<uint64_t>(n, b + params.bucket);
      double squares = 0, most = 0;
      for (uint64_t i = b; i < end; ++i) {
        const double v = std::fabs(static_cast<double>(x[i]));
        squares += v * v;
        most = std::max(most, v);
      }
      const double step = (params.norm == kMaxNorm ? most : std::sqrt(squares)) / params.levels;
      for (uint64_t i = b; i < end; ++i) {
        const double l = std::fabs(static_cast<double>(x[i])) / step, f = l - std::floor(l);
        want += step * step * f * (1 - f);
      }
    }
    const Sample sample = squared_error(runner, x, 1500);
    EXPECT_NEAR(sample.mean, want, sample.error()) << params.levels;
    EXPECT_LT(sample.error(), 0.05 * want);  // the test is worth something
  }
}

TEST(Levels, Grace01PayloadsArePackedToTheBit) {
  for (const uint64_t n : {1U, 4U, 5U, 511U, 513U, 4099U}) {
    const auto ceil8 = [](uint64_t bits) { return (bits + 7) / 8; };
    const std::vector<float> x = normal(n, n);
    for (const auto& [levels, bits] : {std::pair{1U, 2U},
                                       {2U, 3U},
                                       {3U, 3U},
                                       {4U, 4U},
                                       {7U, 4U},
                                       {63U, 7U},
                                       {64U, 8U},
                                       {127U, 8U},
                                       {128U, 9U},
                                       {16383U, 15U},
                                       {32767U, 16U}}) {
      Runner<Qsgd> runner(n, {levels, 512, Qsgd::Norm::l2});
      EXPECT_EQ(runner.encode(x).size(), ceil8(n * bits) + 4 * ((n + 511) / 512));
    }
    EXPECT_EQ(Runner<TernGrad>(n).encode(x).size(), (n + 3) / 4 + 4);
    EXPECT_EQ(Runner<TernGrad>(n, ternary(2.5F, kQuartic)).encode(x).size(), (n + 4) / 5 + 4);
    EXPECT_EQ(Runner<U8>(n).encode(x).size(), n + 4);
  }
}

TEST(Levels, Grace03ZeroUnitsAreZerosAndSameSeedGivesSameBytes) {
  const std::vector<float> zeros(700, 0.0F);
  for (const uint32_t levels : {1U, 127U, 32767U}) {
    Runner<Qsgd> runner(700, {levels, 512, Qsgd::Norm::l2});
    EXPECT_EQ(runner.encode(zeros), ByteVector(runner.plan().round[0].bytes));
    EXPECT_EQ(runner.round_trip(zeros), zeros);
  }
  EXPECT_EQ(Runner<U8>(700).encode(zeros), ByteVector(704));
  EXPECT_EQ(Runner<U8>(700).round_trip(zeros), zeros);
  EXPECT_EQ(Runner<TernGrad>(700).round_trip(zeros), zeros);
  const std::vector<float> x = normal(700, 1);
  EXPECT_EQ(Runner<Qsgd>(700).encode(x), Runner<Qsgd>(700).encode(x));
  EXPECT_EQ(Runner<TernGrad>(700).encode(x), Runner<TernGrad>(700).encode(x));
}

TEST(QsgdCodec, Grace03OneHotVectorsAreExactAtEveryLevelCount) {
  std::mt19937_64 random(8);
  for (int i = 0; i < 3000; ++i) {
    float hot = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(hot) || std::fabs(hot) < 1e-25F) hot = 0.1F;
    const uint32_t levels = i % 2 == 0 ? 127 : 1 + static_cast<uint32_t>(random() % 32767);
    std::vector<float> x(40, 0.0F);
    x[static_cast<size_t>(i % 40)] = hot;
    Runner<Qsgd> runner(40, {levels, 512, Qsgd::Norm::l2});
    runner.place.step = static_cast<uint64_t>(i);
    const std::vector<float> q = runner.round_trip(x);
    for (size_t k = 0; k < 40; ++k) {
      if (x[k] == 0.0F) {
        ASSERT_EQ(q[k], 0.0F);
      } else {  // never the other sign, as 8 bits of 128 once had; at most a level below
        ASSERT_NEAR(q[k] / hot, 1.0F, 1.0F / static_cast<float>(levels) + 1e-6F) << hot;
      }
    }
  }
}

TEST(Levels, Grace08UnitsOfOneElement) {
  for (const float v : {0.3F, -1e-20F, 2e30F}) {
    for (const Qsgd::Params& p : {Qsgd::Params{}, Qsgd::Params{1, 16, kMaxNorm}}) {
      EXPECT_NEAR(Runner<Qsgd>(1, p).round_trip({v})[0] / v, 1.0F, 0.01F);
    }
    for (const TernGrad::Pack pack : {TernGrad::Pack::two_bits, kQuartic}) {
      EXPECT_EQ(Runner<TernGrad>(1, ternary(2.5F, pack)).round_trip({v})[0], v);
    }
    EXPECT_NEAR(Runner<U8>(1).round_trip({v})[0] / v, 1.0F, 0.005F);
  }
  EXPECT_TRUE(Runner<Qsgd>(0).encode({}).empty());
  EXPECT_TRUE(Runner<TernGrad>(0).encode({}).empty());
  EXPECT_TRUE(Runner<U8>(0).encode({}).empty());
}

/// Bytes after the unit are never read: the last bucket's norm is its own.
TEST(QsgdCodec, Grace13LastBucketIsShorterAndRepeatable) {
  std::vector<float> x = normal(700, 4);
  Runner<Qsgd> runner(600);
  const ByteVector a = runner.encode(x);
  for (size_t i = 600; i < 700; ++i) x[i] = kInf;
  EXPECT_EQ(a, runner.encode(x));
  double squares = 0;
  for (size_t i = 512; i < 600; ++i)
    squares += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  float step = 0;
  std::memcpy(&step, a.data() + 4, 4);
  EXPECT_NEAR(static_cast<double>(step), std::sqrt(squares) / 127, 1e-6 * std::sqrt(squares));
}

// ---- terngrad ----

TEST(TernGradCodec, BytesMatchHandComputation) {
  // every magnitude is 0 or the largest: no random number matters
  const std::vector<float> x{0.5F, -0.5F, 0.0F, 0.5F, 0.5F, -0.5F};
  Runner<TernGrad> runner(6, ternary(0));
  EXPECT_EQ(runner.encode(x), (ByteVector{0x00, 0x00, 0x00, 0x3F, 0x4D, 0x0D}));
  EXPECT_EQ(runner.round_trip(x), x);
  // two columns: elements 0, 2, 4 and 1, 3, 5; rows that are missing hold 0
  Runner<TernGrad> quartic(6, ternary(0, kQuartic));
  EXPECT_EQ(quartic.encode(x),
            (ByteVector{0x00, 0x00, 0x00, 0x3F, 121 + 81 + 0 + 9, 121 - 81 + 27 - 9}));
  EXPECT_EQ(quartic.round_trip(x), x);
}

TEST(TernGradCodec, ScaleIsClippedAtStandardDeviations) {
  for (const float mean : {0.0F, 5e-3F}) {
    for (const float clip : {0.1F, 1.0F, 2.5F, 50.0F}) {
      const std::vector<float> x = normal(70'001, 9, mean);
      double sum = 0, squares = 0, most = 0;
      for (const float v : x) {
        sum += static_cast<double>(v);
        most = std::max(most, std::fabs(static_cast<double>(v)));
      }
      for (const float v : x) squares += std::pow(static_cast<double>(v) - sum / 70'001, 2);
      const double sigma = std::sqrt(squares / 70'001);
      Runner<TernGrad> runner(x.size(), ternary(clip));
      const ByteVector payload = runner.encode(x);
      float s = 0;
      std::memcpy(&s, payload.data(), 4);
      EXPECT_NEAR(static_cast<double>(s), std::min(most, static_cast<double>(clip) * sigma),
                  1e-6 * most);
      const std::vector<float> q = runner.decode(payload);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_TRUE(std::fabs(x[i]) < s || q[i] == std::copysign(s, x[i])) << i;
      }
    }
  }
}

/// Its standard deviation is 0: clipped, it would never be sent.
TEST(TernGradCodec, ConstantUnitIsNotClipped) {
  for (const float v : {0.1F, -3e-20F, 7e37F}) {
    for (const uint64_t n : {1U, 2U, 1000U, 100'000U}) {
      const std::vector<float> x(n, v);
      EXPECT_EQ(Runner<TernGrad>(n).round_trip(x), x) << v << " " << n;
    }
  }
}

TEST(TernGradCodec, OneHugeOutlierIsEncoded) {
  std::vector<float> x = normal(10'000, 3);
  x[5000] = -kMax;
  const std::vector<float> q = Runner<TernGrad>(10'000).round_trip(x);
  EXPECT_NEAR(q[5000] / -kMax, 2.5F / 100, 1e-3F);  // σ = FLT_MAX / 100
  for (size_t i = 0; i < x.size(); ++i) ASSERT_TRUE(i == 5000 || q[i] == 0.0F);
  EXPECT_EQ(Runner<TernGrad>(10'000, ternary(0)).round_trip(x)[5000], -kMax);
  // far more standard deviations than an integer of 32 bits can count
  const std::vector<float> far = Runner<TernGrad>(10'000, ternary(1e-6F)).round_trip(x);
  EXPECT_LT(far[5000], 0.0F);
}

/// The counter of a random number is the element's, in whatever row it is packed.
TEST(TernGradCodec, BothPackingsSendTheSameValues) {
  for (const uint64_t n : {3U, 1003U, 70'001U}) {
    const std::vector<float> x = normal(n, 7);
    EXPECT_EQ(Runner<TernGrad>(n).round_trip(x),
              Runner<TernGrad>(n, ternary(2.5F, kQuartic)).round_trip(x));
  }
}

/// With c = x clipped to ±s: E|Q(x) − x|² = Σ |c|(s − |c|) + (x − c)².
TEST(TernGradCodec, VarianceMatchesFormula) {
  for (const float clip : {0.0F, 2.5F, 1.0F}) {
    for (const TernGrad::Pack pack : {TernGrad::Pack::two_bits, kQuartic}) {
      const std::vector<float> x = normal(1003, 5);
      Runner<TernGrad> runner(1003, ternary(clip, pack));
      const ByteVector payload = runner.encode(x);
      float scale = 0;
      std::memcpy(&scale, payload.data(), 4);
      const auto s = static_cast<double>(scale);
      double want = 0;
      for (const float v : x) {
        const double c = std::min(std::fabs(static_cast<double>(v)), s);
        want += c * (s - c) + std::pow(std::fabs(static_cast<double>(v)) - c, 2);
      }
      const Sample sample = squared_error(runner, x, 1500);
      EXPECT_NEAR(sample.mean, want, sample.error()) << clip;
      EXPECT_LT(sample.error(), 0.02 * want);
    }
  }
  EXPECT_TRUE(TernGrad::contract(ternary(0)).unbiased);
  EXPECT_FALSE(TernGrad::contract(ternary(2.5F)).unbiased);
}

/// A share of 2^-20 is sent in one of a million steps, not never: 15 random bits would not do.
TEST(TernGradCodec, SmallSharesAreSentAtExpectedRate) {
  constexpr uint64_t n = 1 << 20;
  std::vector<float> x(n, 0x1p-18F);
  x[0] = 1.0F;
  uint64_t sent = 0;
  for (uint64_t step = 0; step < 16; ++step) {
    Runner<TernGrad> runner(n, ternary(0));
    runner.place.step = step;
    for (const float q : runner.round_trip(x)) sent += q != 0.0F ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(sent - 16), 64.0, 6 * 8.0);
}

// ---- u8 ----

TEST(U8Codec, BytesMatchHandComputation) {
  Runner<U8> runner(6);
  // y = 1, −0.1, 2.75e-6, 1e-6 (nearer to 0), −0.9914 (v[126]), 0
  const ByteVector payload = runner.encode({2.0F, -0.2F, 5.5e-6F, 2e-6F, -1.9828F, -0.0F});
  // 0.1 is the end of decade -2 (v[62]); v[63] = 0.1 + 0.35/64 lies farther away
  EXPECT_EQ(payload, (ByteVector{0, 0, 0, 0x40, 127, 0xC2, 1, 0, 0x82, 0}));
  const std::vector<float> q = runner.decode(payload);
  EXPECT_EQ(q[0], 2.0F * kernels::kTreeValue[127]);
  EXPECT_EQ(q[1], -(2.0F * kernels::kTreeValue[62]));
  EXPECT_EQ(q[3], 0.0F);
}

TEST(U8Codec, Grace15EveryElementIsNearestOfTable) {
  const std::vector<float> x = normal(70'000, 12);
  Runner<U8> runner(x.size());
  const std::vector<float> q = runner.round_trip(x);
  float s = 0;
  for (const float v : x) s = std::max(s, std::fabs(v));
  for (size_t i = 0; i < x.size(); ++i) {
    double best = 2;  // distance of |x|/s
    for (const float v : kernels::kTreeValue) {
      const double d = std::fabs(std::fabs(static_cast<double>(x[i])) / static_cast<double>(s) -
                                 static_cast<double>(v));
      best = std::min(best, d);
    }
    const double error = std::fabs(static_cast<double>(q[i]) - static_cast<double>(x[i]));
    ASSERT_LE(error, best * static_cast<double>(s) + 3e-7 * std::fabs(static_cast<double>(x[i])))
        << i;
  }
}

TEST(U8Codec, Grace15TinyValuesDecodeToZero) {
  const std::vector<float> q = Runner<U8>(4).round_trip({1.0F, 1.3e-6F, -1.3e-6F, 1.45e-6F});
  EXPECT_EQ(q[1], 0.0F);
  EXPECT_EQ(q[2], 0.0F);
  EXPECT_EQ(q[3], 2.75e-6F);
}

TEST(U8Codec, Grace18LargestIsWithinAStepAndSmallOnesKeepTheirSign) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100'000; ++i) {
    const float most = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (!std::isfinite(most) || std::fabs(most) < kernels::kTinyStep) continue;
    const std::vector<float> q = Runner<U8>(3).round_trip({most, most * -3e-6F, most * 2e-6F});
    ASSERT_NEAR(q[0] / most, 2549.0F / 2560, 1e-6F) << std::hexfloat << most;
    ASSERT_LT(q[1] / most, 0.0F) << std::hexfloat << most;
    ASSERT_GT(q[2] / most, 0.0F) << std::hexfloat << most;
  }
}

TEST(U8Codec, TinyUnitsBecomeZero) {
  const float below = std::nextafter(kernels::kTinyStep, 0.0F);
  EXPECT_EQ(Runner<U8>(2).round_trip({below, 1e-40F}), (std::vector<float>{0, 0}));
  EXPECT_NE(Runner<U8>(1).round_trip({kernels::kTinyStep})[0], 0.0F);
}

// ---- hostile bytes ----

TEST(Levels, ChecksRefuseInvalidPayloads) {
  const auto refused = [](auto runner, const ByteVector& good, size_t at, uint8_t byte) {
    ASSERT_EQ(runner.check(good), Errc::ok);
    ByteVector bad = good;
    bad[at] = byte;
    EXPECT_EQ(runner.check(bad), Errc::payload_malformed) << at;
    bad = good;
    bad.push_back(0);
    EXPECT_EQ(runner.check(bad), Errc::payload_malformed);
    bad.resize(good.size() - 1);
    EXPECT_EQ(runner.check(bad), Errc::payload_malformed);
  };
  // scale: a sign, then infinity; codes; padding
  const ByteVector qsgd(4 + 3), pairs(4 + 3), bytes(4 + 10);
  const Qsgd::Params three{1, 16, kMaxNorm};
  for (const auto& [at, byte] : {std::pair{3U, 0x80}, {4U, 0x02}, {5U, 0x80}, {6U, 0x10}}) {
    refused(Runner<Qsgd>(10, three), qsgd, at, static_cast<uint8_t>(byte));
    refused(Runner<TernGrad>(10), pairs, at, static_cast<uint8_t>(byte));
  }
  const ByteVector digits{0, 0, 0, 0, 121, 121, 121};
  refused(Runner<TernGrad>(11, ternary(0, kQuartic)), digits, 3, 0xFF);
  refused(Runner<TernGrad>(11, ternary(0, kQuartic)), digits, 5, 243);
  refused(Runner<TernGrad>(11, ternary(0, kQuartic)), digits, 6,
          122);  // row 4, column 2: no element
  refused(Runner<TernGrad>(11, ternary(0, kQuartic)), digits, 5, 122);  // nor row 4, column 1
  refused(Runner<U8>(10), bytes, 3, 0x80);
  refused(Runner<U8>(10), bytes, 9, 0x80);
  ByteVector infinite(bytes);
  infinite[2] = 0x80;
  infinite[3] = 0x7F;
  EXPECT_EQ(Runner<U8>(10).check(infinite), Errc::payload_malformed);
  infinite.resize(7);
  EXPECT_EQ(Runner<TernGrad>(10).check(infinite), Errc::payload_malformed);
  EXPECT_EQ(Runner<Qsgd>(10, three).check(infinite), Errc::payload_malformed);
  // 127 times this step is infinite
  ByteVector large{0, 0, 0x80, 0x7E, 0};
  EXPECT_EQ(Runner<Qsgd>(1).check(large), Errc::payload_malformed);
  EXPECT_EQ(Runner<Qsgd>(1).check({0, 0, 0x80, 0x7A, 0}), Errc::ok);
}

}  // namespace
}  // namespace laconic::codecs

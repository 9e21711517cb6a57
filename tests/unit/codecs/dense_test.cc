// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// none, fp16, bf16 and int8: known bytes, edge cases, hostile payloads, threads. The laws that all
// codecs share are in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "codecs/cast/cast.h"
#include "codecs/int8/int8.h"
#include "codecs/none/none.h"
#include "codecs/registry/table.h"

namespace laconic::codecs {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class C>
struct Runner {
  typename C::Params params{};
  Unit unit;
  Place place;
  Work work;

  explicit Runner(uint64_t count, typename C::Params p = {}) : params(p) {
    unit.count = unit.rows = count;
    unit.cols = 1;
    unit.parameter = 77;
    work.isa = best_isa();
  }
  [[nodiscard]] uint64_t bytes() const { return C::plan(params, unit, 1).round[0].bytes; }
  std::vector<uint8_t> encode(const std::vector<float>& x, bool* finite = nullptr) {
    std::vector<uint8_t> out(bytes() + 1, 0xA5);
    const Encoded e = C::encode({&params, {}, unit, place, 0, work}, {x.data(), nullptr},
                                MutBytes(out).first(bytes()));
    EXPECT_EQ(e.bytes, bytes());
    EXPECT_EQ(out.back(), 0xA5);
    if (finite != nullptr) *finite = e.finite;
    out.pop_back();
    return out;
  }
  std::vector<float> decode(std::span<const Term> terms, std::vector<float> base = {}) {
    const bool add = !base.empty();
    if (!add) base.assign(unit.count, 7.0F);
    C::decode({&params, {}, unit, place, 0, work}, terms, {base.data(), add});
    return base;
  }
  std::vector<float> decode(const std::vector<uint8_t>& payload, float weight = 1.0F) {
    const Term term{payload, weight};
    return decode({&term, 1});
  }
  [[nodiscard]] Errc check(const std::vector<uint8_t>& payload) const {
    return C::check(params, unit, 0, payload);
  }
};

std::vector<float> normal(uint64_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> law(0.0F, 1e-2F);
  std::vector<float> x(n);
  for (float& v : x) v = law(random);
  return x;
}

template <class C>
class DenseCodec : public testing::Test {};
using Codecs = testing::Types<None, Fp16, Bf16, Int8>;
TYPED_TEST_SUITE(DenseCodec, Codecs);

TYPED_TEST(DenseCodec, ThreadsChangeNoByte) {
  constexpr uint64_t n = 200'003;
  const std::vector<float> x = normal(n, 1);
  Runner<TypeParam> one(n);
  const std::vector<uint8_t> payload = one.encode(x);
  const std::vector<Term> terms{{payload, 0.5F}, {payload, -0.25F}};
  const std::vector<float> mean = one.decode(terms);
  for (const uint32_t threads : {1U, 2U, 3U}) {
    ThreadPool pool(threads);
    Runner<TypeParam> many(n);
    many.work.pool = &pool;
    EXPECT_EQ(many.encode(x), payload);
    EXPECT_EQ(many.decode(terms), mean);
    EXPECT_EQ(many.decode(payload), one.decode(payload));
  }
}

TYPED_TEST(DenseCodec, ManyTermsAreAddedInOrder) {
  constexpr uint64_t kCount = 1000;
  Runner<TypeParam> run(kCount);
  std::vector<std::vector<uint8_t>> payloads;
  std::vector<Term> terms;
  for (uint64_t t = 0; t < 40; ++t) payloads.push_back(run.encode(normal(kCount, t)));
  for (uint64_t t = 0; t < 40; ++t)
    terms.push_back({payloads[t], 0.1F * static_cast<float>(t) - 1});
  for (const bool add : {false, true}) {
    std::vector<float> expected = add ? normal(kCount, 99) : std::vector<float>(kCount, 0.0F);
    const std::vector<float> base = expected;
    for (uint64_t t = 0; t < 40; ++t) {
      const std::vector<float> d = run.decode(payloads[t]);
      for (uint64_t i = 0; i < kCount; ++i) expected[i] += terms[t].weight * d[i];
    }
    EXPECT_EQ(run.decode(terms, add ? base : std::vector<float>{}), expected);
  }
}

TYPED_TEST(DenseCodec, OnlyTheExactLengthIsAccepted) {
  for (const uint64_t n : {0U, 1U, 255U, 257U}) {
    Runner<TypeParam> run(n);
    std::vector<uint8_t> payload = run.encode(normal(n, 1));
    EXPECT_EQ(run.check(payload), Errc::ok);
    payload.push_back(0);
    EXPECT_EQ(run.check(payload), Errc::payload_malformed);
    payload.pop_back();
    if (payload.empty()) continue;
    payload.pop_back();
    EXPECT_EQ(run.check(payload), Errc::payload_malformed);
  }
}

TYPED_TEST(DenseCodec, NoTermsGiveZero) {
  Runner<TypeParam> run(300);
  EXPECT_EQ(run.decode(std::span<const Term>{}), std::vector<float>(300, 0.0F));
}

TYPED_TEST(DenseCodec, ParamsFitTheTable) {
  EXPECT_EQ(TableOf<TypeParam>::value.info.id, TypeParam::info.id);
  const Contract c = TypeParam::contract({});
  EXPECT_EQ(c.memory_default, MemoryKind::none);
  EXPECT_TRUE(c.exact_size);
}

// ---- none, fp16, bf16 ----

TEST(None, EveryBitSurvives) {
  std::vector<float> x{0.0F, -0.0F, 1.5F, kInf, -kInf, std::numeric_limits<float>::denorm_min(),
                       NAN};
  Runner<None> run(x.size());
  bool finite = false;
  const std::vector<uint8_t> payload = run.encode(x, &finite);
  EXPECT_TRUE(finite);  // carried, not refused
  EXPECT_EQ(std::memcmp(payload.data(), x.data(), payload.size()), 0);
  const std::vector<float> back = run.decode(payload);
  EXPECT_EQ(std::memcmp(back.data(), x.data(), payload.size()), 0);
}

TEST(None, PrescaleMultipliesTheLanes) {
  const std::vector<float> x = normal(100, 1);
  Runner<None> run(100);
  run.place.prescale = 0.25F;
  const std::vector<float> y = run.decode(run.encode(x));
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(y[i], 0.25F * x[i]);
}

TEST(Fp16, KnownBytes) {
  const std::vector<float> x{1.0F, -2.0F,    65504.0F, 1e6F,  -1e30F,
                             kInf, 0x1p-24F, 0x1p-25F, -0.0F, 1.0F + 0x1p-11F};
  Runner<Fp16> run(x.size());
  const std::vector<uint8_t> expected{0x00, 0x3C, 0x00, 0xC0, 0xFF, 0x7B, 0xFF, 0x7B, 0xFF, 0xFB,
                                      0x00, 0x7C, 0x01, 0x00, 0x00, 0x00, 0x00, 0x80, 0x00, 0x3C};
  EXPECT_EQ(run.encode(x), expected);
  run.params.saturate = false;
  const std::vector<float> y = run.decode(run.encode(x));
  EXPECT_EQ(y[3], kInf);
  EXPECT_EQ(y[4], -kInf);
}

TEST(Bf16, KnownBytes) {
  const std::vector<float> x{1.0F,           -2.0F,          3.4e38F, kInf,
                             1.0F + 0x1p-8F, 1.0F + 0x3p-8F, -0.0F,   0x1p-140F};
  Runner<Bf16> run(x.size());
  const std::vector<uint8_t> expected{0x80, 0x3F, 0x00, 0xC0, 0x80, 0x7F, 0x80, 0x7F,
                                      0x80, 0x3F, 0x82, 0x3F, 0x00, 0x80, 0x00, 0x00};
  EXPECT_EQ(run.encode(x), expected);
}

TEST(Casts, PrescaleComesBeforeTheRounding) {
  const std::vector<float> x{100000.0F, 3.0F};
  Runner<Fp16> run(2);
  run.place.prescale = 0.5F;
  EXPECT_EQ(run.decode(run.encode(x)), (std::vector<float>{49984.0F, 1.5F}));  // 50000 is a tie
}

TEST(Casts, OverflowStaysVisible) {
  const std::vector<float> x{1.0F, NAN, kInf, -kInf};
  Runner<Fp16> half(4);
  Runner<Bf16> brain(4);
  for (const std::vector<float>& y : {half.decode(half.encode(x)), brain.decode(brain.encode(x))}) {
    EXPECT_EQ(y[0], 1.0F);
    EXPECT_TRUE(std::isnan(y[1]));
    EXPECT_EQ(y[2], kInf);
    EXPECT_EQ(y[3], -kInf);
  }
  EXPECT_EQ(half.check(half.encode(x)), Errc::ok);  // peers' lanes may be non-finite
}

TEST(Casts, ErrorIsHalfAUnitInTheLastPlace) {
  const std::vector<float> x = normal(5000, 4);
  Runner<Fp16> half(x.size());
  Runner<Bf16> brain(x.size());
  const std::vector<float> h = half.decode(half.encode(x)), b = brain.decode(brain.encode(x));
  for (uint64_t i = 0; i < x.size(); ++i) {
    ASSERT_LE(std::fabs(h[i] - x[i]), std::fmax(std::fabs(x[i]) * 0x1p-11F, 0x1p-25F));
    ASSERT_LE(std::fabs(b[i] - x[i]), std::fabs(x[i]) * 0x1p-8F);
  }
}

// ---- int8 ----

TEST(Int8, KnownBytes) {
  std::vector<float> x(18, 0.0F);
  x[0] = 127.0F, x[1] = -127.0F, x[2] = 0.5F, x[3] = 1.5F, x[4] = -2.5F, x[5] = 63.7F;
  x[16] = 0.0F, x[17] = -254.0F;
  Runner<Int8> run(18, {16, Int8::Round::nearest});
  std::vector<uint8_t> expected(2 * 4 + 18, 0);
  store(expected.data(), 1.0F);
  store(expected.data() + 4, 2.0F);
  expected[8] = 127, expected[9] = 0x81, expected[10] = 0, expected[11] = 2, expected[12] = 0xFE,
  expected[13] = 64;
  expected[8 + 17] = 0x81;
  EXPECT_EQ(run.encode(x), expected);
  const std::vector<float> y = run.decode(expected);
  EXPECT_EQ(y[0], 127.0F);
  EXPECT_EQ(y[17], -254.0F);
}

TEST(Int8, NearestIsWithinHalfAScale) {
  const std::vector<float> x = normal(10000, 2);
  Runner<Int8> run(x.size());
  const std::vector<uint8_t> payload = run.encode(x);
  const std::vector<float> y = run.decode(payload);
  for (uint64_t i = 0; i < x.size(); ++i) {
    const auto scale = load<float>(payload.data() + i / 256 * 4);
    ASSERT_LE(std::fabs(x[i] - y[i]), scale * (0.5F + 0x1p-14F)) << i;
  }
}

TEST(Int8, RefusesWhatIsNotFinite) {
  for (const float bad : {NAN, kInf, -kInf}) {
    for (const auto round : {Int8::Round::nearest, Int8::Round::stochastic}) {
      std::vector<float> x = normal(1000, 3);
      x[700] = bad;
      Runner<Int8> run(x.size(), {256, round});
      bool finite = true;
      run.encode(x, &finite);
      EXPECT_FALSE(finite);
    }
  }
}

TEST(Int8, ZerosAndDenormalsBecomeZero) {
  Runner<Int8> run(512);
  std::vector<float> x(512, -0.0F);
  for (uint64_t i = 0; i < 256; ++i) x[i] = 0x1p-140F;
  const std::vector<uint8_t> payload = run.encode(x);
  EXPECT_EQ(payload, std::vector<uint8_t>(payload.size(), 0));
}

TEST(Int8, HostileScalesAndCodesAreRejected) {
  Runner<Int8> run(300);
  const std::vector<uint8_t> good = run.encode(normal(300, 1));
  for (const uint32_t scale : {0x7C010204U, 0x7F7FFFFFU, 0x7F800000U, 0x7FC00000U, 0x80000000U,
                               0xBF800000U, 0xFFFFFFFFU}) {
    std::vector<uint8_t> bad = good;
    store(bad.data() + 4, scale);
    EXPECT_EQ(run.check(bad), Errc::payload_malformed) << scale;
  }
  for (const uint64_t i : {0U, 77U, 299U}) {
    std::vector<uint8_t> bad = good;
    bad[8 + i] = 0x80;
    EXPECT_EQ(run.check(bad), Errc::payload_malformed) << i;
  }
}

// Bias: the mean of 4000 draws lies within 5 standard errors of x. The variance of one draw is at
// most scale²/4.
TEST(Int8, StochasticRoundingHasNoBias) {
  const std::vector<float> x = normal(256, 9);
  Runner<Int8> run(x.size(), {256, Int8::Round::stochastic});
  std::vector<double> sum(x.size(), 0.0);
  constexpr uint64_t kSteps = 4000;
  float scale = 0;
  for (run.place.step = 0; run.place.step < kSteps; ++run.place.step) {
    const std::vector<uint8_t> payload = run.encode(x);
    scale = load<float>(payload.data());
    const std::vector<float> y = run.decode(payload);
    for (uint64_t i = 0; i < x.size(); ++i) {
      ASSERT_LT(std::fabs(y[i] - x[i]), scale * 1.0001F);
      sum[i] += static_cast<double>(y[i]);
    }
  }
  double total = 0;
  for (uint64_t i = 0; i < x.size(); ++i) {
    const double error = sum[i] / kSteps - static_cast<double>(x[i]);
    ASSERT_LT(std::fabs(error), 5 * 0.5 * static_cast<double>(scale) / std::sqrt(kSteps)) << i;
    total += error;
  }
  EXPECT_LT(std::fabs(total), 5 * 0.5 * static_cast<double>(scale) * std::sqrt(256.0 / kSteps));
}

TEST(Int8, RandomNumbersBelongToTheElementOfTheParameter) {
  constexpr uint64_t kCount = 2048;
  const std::vector<float> x = normal(kCount, 5);
  Runner<Int8> whole(kCount, {64, Int8::Round::stochastic});
  const std::vector<uint8_t> all = whole.encode(x);
  for (const uint64_t cut : {64U, 192U, 1024U}) {
    Runner<Int8> part(kCount - cut, {64, Int8::Round::stochastic});
    part.unit.offset = cut;
    const std::vector<uint8_t> rest = part.encode({x.begin() + static_cast<int64_t>(cut), x.end()});
    const uint64_t codes_all = kCount / 64 * 4 + cut, codes_rest = (kCount - cut) / 64 * 4;
    EXPECT_EQ(std::memcmp(all.data() + codes_all, rest.data() + codes_rest, kCount - cut), 0)
        << cut;
  }
}

TEST(Int8, RanksHopsAndStepsDrawDifferently) {
  const std::vector<float> x = normal(4096, 6);
  Runner<Int8> run(x.size(), {256, Int8::Round::stochastic});
  const std::vector<uint8_t> first = run.encode(x);
  EXPECT_EQ(run.encode(x), first);
  for (uint64_t Place::*member : {&Place::seed, &Place::step}) {
    Runner<Int8> other = run;
    other.place.*member = 1;
    EXPECT_NE(other.encode(x), first);
  }
  for (uint32_t Place::*member : {&Place::rank, &Place::hop}) {
    Runner<Int8> other = run;
    other.place.*member = 1;
    EXPECT_NE(other.encode(x), first);
  }
}

}  // namespace
}  // namespace laconic::codecs

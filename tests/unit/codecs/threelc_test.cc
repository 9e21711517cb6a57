// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/threelc/threelc.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "codecs/registry/table.h"

namespace laconic::codecs {
namespace {

using testing::ElementsAre;
using testing::FloatNear;
using Params = ThreeLc::Params;
using ByteVector = std::vector<uint8_t>;
static_assert(Codec<ThreeLc>);

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kSmallestNormal = std::numeric_limits<float>::min();
constexpr ThreeLc::Scale kChunked = ThreeLc::Scale::chunk;

Params with_s(float s) {
  Params p;
  p.s = s;
  return p;
}

std::vector<Params> all_params() {
  std::vector<Params> list;
  for (const float s : {1.0F, 1.75F}) {
    for (const ThreeLc::Scale scale : {ThreeLc::Scale::unit, kChunked}) {
      for (const bool zre : {true, false}) {
        for (const bool pad_one : {true, false}) list.push_back({s, scale, zre, pad_one});
      }
    }
  }
  return list;
}

// Memory of one call, with a canary after the output.
class Caller {
 public:
  explicit Caller(Isa isa = best_isa(), uint32_t threads = 1) : isa_(isa), pool_(threads) {}

  // An empty result means: not finite.
  ByteVector encode(const Params& params, const std::vector<float>& x, std::vector<float>* e) {
    const Unit unit{x.size(), x.size(), 1, 0, 0};
    const Plan plan = ThreeLc::plan(params, unit, 1);
    ByteVector out(plan.round[0].bytes + 64, 0xA5);
    Work work = lend(plan);
    const Source source{x.data(), e == nullptr ? nullptr : e->data()};
    finite = true;
    const Encoded encoded = ThreeLc::encode({&params, {}, unit, {}, 0, work}, source,
                                            MutBytes(out).first(plan.round[0].bytes));
    finite = encoded.finite;
    EXPECT_LE(encoded.bytes, plan.round[0].bytes);
    if (finite && ThreeLc::contract(params).exact_size) {
      EXPECT_EQ(encoded.bytes, plan.round[0].bytes);
    }
    for (uint64_t i = plan.round[0].bytes; i < out.size(); ++i) EXPECT_EQ(out[i], 0xA5);
    out.resize(encoded.bytes);
    return out;
  }

  void decode(const Params& params, const std::vector<Term>& terms, std::vector<float>& out,
              bool add = false) {
    const Unit unit{out.size(), out.size(), 1, 0, 0};
    for (const Term& term : terms) {
      ASSERT_EQ(ThreeLc::check(params, unit, 0, term.payload), Errc::ok);
    }
    Work work = lend(ThreeLc::plan(params, unit, 1));
    ThreeLc::decode({&params, {}, unit, {}, 0, work}, terms, {out.data(), add});
  }
  std::vector<float> decode(const Params& params, const ByteVector& payload, uint64_t n) {
    std::vector<float> out(n, 7.0F);
    decode(params, {{payload, 1.0F}}, out);
    return out;
  }

  bool finite = true;

 private:
  Work lend(const Plan& plan) {
    scratch_.assign(plan.scratch_bytes + 128, 0xEE);
    auto at = reinterpret_cast<uintptr_t>(scratch_.data());
    uint8_t* const aligned = scratch_.data() + (64 - at % 64) % 64;
    return {{}, {aligned, plan.scratch_bytes}, isa_, &pool_};
  }

  Isa isa_;
  ThreadPool pool_;
  ByteVector scratch_;
};

std::vector<float> gaussian(uint64_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(random);
  return x;
}

// Values that encode to these digit bytes, when at least one digit is not zero.
std::vector<float> values_of(const ByteVector& bytes) {
  std::vector<float> x(5 * bytes.size());
  for (size_t j = 0; j < bytes.size(); ++j) {
    uint32_t rest = bytes[j];
    for (size_t i = 5; i-- > 0; rest /= 3) {
      x[i * bytes.size() + j] = static_cast<float>(rest % 3) - 1.0F;
    }
  }
  return x;
}

ByteVector coded(const ByteVector& payload) { return {payload.begin() + 4, payload.end()}; }

ByteVector repeat(std::initializer_list<std::pair<int, int>> pieces) {
  ByteVector bytes;
  for (const auto& [value, times] : pieces) {
    bytes.insert(bytes.end(), static_cast<size_t>(times), static_cast<uint8_t>(value));
  }
  return bytes;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- vectors of the paper's steps ----

TEST(ThreeLc, QuantizationKeepsResidual) {
  const std::vector<float> x{0.5F, -0.2F, 0.1F, -0.5F, 0.24F};
  std::vector<float> e(5, 0.0F);
  const ByteVector payload = Caller().encode({}, x, &e);
  EXPECT_THAT(payload, ElementsAre(0, 0, 0, 0x3F, 0xC7));
  EXPECT_THAT(e, ElementsAre(0.0F, FloatNear(-0.2F, 1e-7F), FloatNear(0.1F, 1e-7F), 0.0F,
                             FloatNear(0.24F, 1e-7F)));
}

TEST(ThreeLc, SparsityMultiplierRaisesTheThreshold) {
  const std::vector<float> x{0.5F, -0.2F, 0.1F, -0.5F, 0.24F, 0.44F, -0.437F};
  Params p = with_s(1.75F);
  Caller caller;
  const ByteVector payload = caller.encode(p, x, nullptr);
  EXPECT_EQ(load<float>(payload.data()), 0.875F);
  EXPECT_THAT(caller.decode(p, payload, 7),
              ElementsAre(0.875F, 0.0F, 0.0F, -0.875F, 0.0F, 0.875F, 0.0F));
}

TEST(ThreeLc, PayloadHasFiveRows) {
  const std::vector<float> x{1, 0, -1, 0, 0, 1, 0, 0, 0, 0};
  EXPECT_THAT(coded(Caller().encode({}, x, nullptr)), ElementsAre(175, 130));
}

TEST(ThreeLc, SingleBytesRoundTrip) {
  const auto byte = [](const std::vector<float>& q) {
    return coded(Caller().encode({}, q, nullptr)).at(0);
  };
  EXPECT_EQ(byte({-1, -1, -1, -1, -1}), 0);
  EXPECT_EQ(byte({0, 0, 0, 0, 0}), 121);
  EXPECT_EQ(byte({1, 1, 1, 1, 1}), 242);
  EXPECT_EQ(byte({1, -1, 1, -1, 1}), 182);
  EXPECT_EQ(byte({-1, 0, 1, 0, -1}), 48);
  EXPECT_EQ(byte({1, 0, 0, 0, 0}), 202);
  EXPECT_EQ(byte({0, 0, 0, 0, 1}), 122);
}

TEST(ThreeLc, RunsOfZeroBytesAreCompressed) {
  const std::vector<std::pair<int, ByteVector>> cases{
      {1, {121}},       {2, {243}},           {3, {244}},       {13, {254}},
      {14, {255}},      {15, {255, 121}},     {16, {255, 243}}, {27, {255, 254}},
      {28, {255, 255}}, {29, {255, 255, 121}}};
  for (const auto& [k, expected] : cases) {
    for (const ByteVector& bytes : {repeat({{242, 1}, {121, k}, {242, 1}}),
                                    repeat({{242, 1}, {121, k}}), repeat({{121, k}, {242, 1}})}) {
      ByteVector whole = expected;
      if (bytes.front() != 121) whole.insert(whole.begin(), 242);
      if (bytes.back() != 121) whole.push_back(242);
      EXPECT_EQ(coded(Caller().encode({}, values_of(bytes), nullptr)), whole) << k;
    }
  }
}

TEST(ThreeLc, MixedStreamRoundTrips) {
  const ByteVector bytes =
      repeat({{5, 1}, {121, 3}, {200, 1}, {121, 1}, {242, 1}, {121, 30}, {0, 1}});
  ASSERT_EQ(bytes.size(), 38U);
  EXPECT_THAT(coded(Caller().encode({}, values_of(bytes), nullptr)),
              ElementsAre(5, 244, 200, 121, 242, 255, 255, 243, 0));
}

TEST(ThreeLc, PadDigitsOfZeroTensorAreZero) {
  // 72 values: 15 columns, three pad digits in the last row.
  const std::vector<float> zeros(72, 0.0F);
  Params p;
  EXPECT_THAT(coded(Caller().encode(p, zeros, nullptr)), ElementsAre(254 - 1, 120, 120, 120));
  p.pad_one = true;
  EXPECT_THAT(coded(Caller().encode(p, zeros, nullptr)), ElementsAre(255, 121));
}

// ---- edge cases ----

TEST(ThreeLc, TiesAreZero) {
  std::vector<float> e(5, 0.0F);
  Caller caller;
  const ByteVector payload =
      caller.encode({}, {2.0F, 1.0F, -1.0F, std::nextafter(1.0F, 2.0F), -2.0F}, &e);
  EXPECT_THAT(caller.decode({}, payload, 5), ElementsAre(2.0F, 0.0F, 0.0F, 2.0F, -2.0F));
}

TEST(ThreeLc, EmptyTensorRoundTrips) {
  for (const Params& p : all_params()) {
    std::vector<float> e;
    Caller caller;
    EXPECT_TRUE(caller.encode(p, {}, &e).empty());
    EXPECT_TRUE(caller.finite);
    EXPECT_EQ(ThreeLc::check(p, {}, 0, {}), Errc::ok);
    EXPECT_NE(ThreeLc::check(p, {}, 0, ByteVector(4)), Errc::ok);
    caller.decode(p, ByteVector{}, 0);
  }
}

TEST(ThreeLc, AllZeroSendsScaleZero) {
  for (const Params& p : all_params()) {
    std::vector<float> e(83, 0.0F);
    Caller caller;
    const ByteVector payload = caller.encode(p, std::vector<float>(83, -0.0F), &e);
    EXPECT_EQ(load<float>(payload.data()), 0.0F);
    EXPECT_EQ(e, std::vector<float>(83, 0.0F));
    EXPECT_EQ(caller.decode(p, payload, 83), std::vector<float>(83, 0.0F));
  }
}

TEST(ThreeLc, ValuesBelowSmallestNormalAreKept) {
  const float tiny = std::nextafter(kSmallestNormal, 0.0F);
  std::vector<float> e{0, -1e-45F, 0, 0, 0, 0};
  const std::vector<float> x{tiny, 0, -tiny, 1e-45F, 0, 0};
  Caller caller;
  const ByteVector payload = caller.encode({}, x, &e);
  EXPECT_EQ(load<float>(payload.data()), 0.0F);
  EXPECT_THAT(e, ElementsAre(tiny, -1e-45F, -tiny, 1e-45F, 0.0F, 0.0F));
  EXPECT_EQ(caller.decode({}, payload, 6), std::vector<float>(6, 0.0F));
}

TEST(ThreeLc, LargestIsAlwaysSent) {
  // M/2 is not representable here; the comparison has to be with its exact value.
  for (const float s : {1.0F, 1.5F, 1.9999998F, std::nextafter(2.0F, 0.0F)}) {
    for (float a = kSmallestNormal; a < 5 * kSmallestNormal;
         a = std::bit_cast<float>(std::bit_cast<uint32_t>(a) + 99991)) {
      std::vector<float> e(1, 0.0F);
      Caller caller;
      const float sent = caller.decode(with_s(s), caller.encode(with_s(s), {a}, &e), 1)[0];
      EXPECT_EQ(sent, s * a);
      EXPECT_EQ(sent + e[0], a);
    }
  }
}

TEST(ThreeLc, ExactHalfOfDenormalScaleRounds) {
  const float a = kSmallestNormal;  // M = 2a(1 − 2^-24), M/2 rounds up to a
  const float s = std::nextafter(2.0F, 0.0F);
  Caller caller;
  EXPECT_EQ(caller.decode(with_s(s), caller.encode(with_s(s), {-a}, nullptr), 1)[0], -(s * a));
}

TEST(ThreeLc, TensorsOfUnderFiveElementsRoundTrip) {
  for (uint64_t n = 1; n < 5; ++n) {
    const ByteVector payload = Caller().encode({}, std::vector<float>(n, 1.0F), nullptr);
    ASSERT_EQ(payload.size(), 5U);
    const int expected[] = {0, 162, 216, 234, 240};
    EXPECT_EQ(payload[4], expected[n]);
  }
}

TEST(ThreeLc, OverflowOfTheScaleFails) {
  for (const ThreeLc::Scale scale : {ThreeLc::Scale::unit, kChunked}) {
    Params p = with_s(1.5F);
    p.scale = scale;
    std::vector<float> e(6, 1.0F);
    Caller caller;
    caller.encode(p, std::vector<float>(6, 0.7F * kMax), &e);
    EXPECT_FALSE(caller.finite);
    EXPECT_EQ(e, std::vector<float>(6, 1.0F));
    caller.encode(p, std::vector<float>(6, 0.6F * kMax), nullptr);
    EXPECT_TRUE(caller.finite);
  }
}

TEST(ThreeLc, OverflowWithTheResidualFails) {
  Params p;
  std::vector<float> e(6, 0.6F * kMax);
  const std::vector<float> before = e;
  Caller caller;
  caller.encode(p, e, &e);
  EXPECT_FALSE(caller.finite);
  EXPECT_EQ(e, before);
}

// Also in a tensor that the caches do not hold.
TEST(ThreeLc, ChunksStayUnchangedWhenLaterOneOverflows) {
  for (const uint64_t n : {3 * 40960U - 7, 4 * 40960U - 7}) {
    std::vector<float> e0 = gaussian(n, 3);
    e0[50000] = 0.9F * kMax;
    for (const uint32_t threads : {1U, 2U}) {
      for (const bool zre : {true, false}) {
        const Params p{1.0F, kChunked, zre, false};
        std::vector<float> x = gaussian(n, 4), e = e0;
        x[50000] = 0.9F * kMax;
        Caller caller(best_isa(), threads);
        caller.encode(p, x, &e);
        EXPECT_FALSE(caller.finite);
        EXPECT_EQ(e, e0);
      }
    }
  }
}

// ---- laws ----

TEST(ThreeLc, SentPlusResidualEqualsInput) {
  for (const Params& p : all_params()) {
    for (const uint64_t n : {1U, 4U, 5U, 6U, 19U, 64U, 1024U, 40959U, 40960U, 40961U, 100003U}) {
      Caller caller;
      std::vector<float> e(n, 0.0F);
      for (uint32_t step = 0; step < 3; ++step) {
        const std::vector<float> x = gaussian(n, step + static_cast<uint32_t>(n));
        std::vector<float> a(n);
        for (uint64_t i = 0; i < n; ++i) a[i] = x[i] + e[i];
        const ByteVector payload = caller.encode(p, x, &e);
        const std::vector<float> sent = caller.decode(p, payload, n);
        for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(sent[i] + e[i], a[i]) << n << " " << i;
        // The put-back after a failed exchange.
        std::vector<float> back = e;
        caller.decode(p, {{payload, 1.0F}}, back, true);
        ASSERT_EQ(back, a);
      }
    }
  }
}

TEST(ThreeLc, ChunksAreIndependentTensors) {
  const std::vector<float> x = gaussian(2 * 40960 + 777, 5);
  const Params chunked{1.0F, kChunked, true, false};
  const ByteVector payload = Caller().encode(chunked, x, nullptr);
  uint64_t at = 3 * 6;
  for (uint64_t c = 0; c < 3; ++c) {
    const auto first = x.begin() + static_cast<ptrdiff_t>(c * 40960);
    const std::vector<float> part(first, c == 2 ? x.end() : first + 40960);
    const ByteVector alone = Caller().encode({}, part, nullptr);
    EXPECT_EQ(std::memcmp(payload.data() + c * 4, alone.data(), 4), 0);
    const uint64_t length = load<uint16_t>(payload.data() + 12 + c * 2);
    ASSERT_EQ(length, alone.size() - 4);
    EXPECT_EQ(std::memcmp(payload.data() + at, alone.data() + 4, length), 0);
    at += length;
  }
  EXPECT_EQ(at, payload.size());
}

// Tensors of each density: one large value makes the others zero.
std::vector<float> of_density(uint64_t n, double large, uint32_t seed) {
  std::vector<float> x = gaussian(n, seed);
  for (float& v : x) v *= static_cast<float>(large);
  if (n > 0) x[n / 3] = 5.0F;
  return x;
}

TEST(ThreeLc, SameBytesOnEveryIsaAndThreadCount) {
  for (const Params& p : all_params()) {
    for (const uint64_t n : {3U, 1000U, 90007U}) {
      for (const double large : {0.0, 0.7, 4.0}) {
        const std::vector<float> x = of_density(n, large, 6), e0 = gaussian(n, 7);
        std::vector<float> e_ref = e0;
        Caller reference(Isa::scalar);
        const ByteVector expected = reference.encode(p, x, &e_ref);
        const std::vector<float> decoded = reference.decode(p, expected, n);
        for (const Isa isa : available_isas()) {
          for (const uint32_t threads : {1U, 2U, 3U}) {
            std::vector<float> e = e0;
            Caller caller(isa, threads);
            ASSERT_EQ(caller.encode(p, x, &e), expected);
            ASSERT_TRUE(same_bits(e, e_ref));
            ASSERT_TRUE(same_bits(caller.decode(p, expected, n), decoded));
          }
        }
      }
    }
  }
}

TEST(ThreeLc, OutputsLargerThanCacheRoundTrip) {
  const uint64_t n = (9U << 20) + 3;  // 36 MiB: past the caches
  const std::vector<float> x = of_density(n, 1.0, 9);
  for (const Params& p : {Params{}, Params{1.0F, kChunked, true, false}}) {
    const ByteVector payload = Caller().encode(p, x, nullptr);
    const std::vector<float> expected = Caller(Isa::scalar).decode(p, payload, n);
    EXPECT_TRUE(same_bits(Caller(best_isa(), 2).decode(p, payload, n), expected));
    std::vector<float> shifted(n + 1, 7.0F);
    const Unit unit{n, n, 1, 0, 0};
    Work work;
    ByteVector scratch(ThreeLc::plan(p, unit, 1).scratch_bytes + 64);
    work.scratch =
        MutBytes(scratch).subspan((64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64);
    work.isa = best_isa();
    const Term term{payload, 1.0F};
    ThreeLc::decode({&p, {}, unit, {}, 0, work}, {&term, 1}, {shifted.data() + 1, false});
    EXPECT_EQ(std::memcmp(shifted.data() + 1, expected.data(), n * sizeof(float)), 0);
    EXPECT_EQ(shifted[0], 7.0F);
  }
}

// ---- hostile bytes ----

TEST(ThreeLc, ExpandedLengthIsChecked) {
  const Unit unit{75, 75, 1, 0, 0};  // 15 bytes of digits
  const auto check = [&](ByteVector bytes, bool zre = true) {
    bytes.insert(bytes.begin(), {0, 0, 0x80, 0x3F});
    Params p;
    p.zre = zre;
    return ThreeLc::check(p, unit, 0, bytes);
  };
  EXPECT_EQ(check({255, 121}), Errc::ok);
  EXPECT_EQ(check({121, 255}), Errc::ok);
  EXPECT_EQ(check(repeat({{121, 15}})), Errc::ok);  // not canonical, but legal
  EXPECT_EQ(check({243, 254}), Errc::ok);
  EXPECT_NE(check({255}), Errc::ok);
  EXPECT_NE(check({255, 243}), Errc::ok);
  EXPECT_NE(check({}), Errc::ok);
  EXPECT_NE(check(repeat({{121, 16}})), Errc::ok);
  EXPECT_EQ(check(repeat({{121, 15}}), false), Errc::ok);
  EXPECT_EQ(check(repeat({{242, 15}}), false), Errc::ok);
  for (int code = 243; code < 256; ++code) {
    EXPECT_NE(check(repeat({{121, 14}, {code, 1}}), false), Errc::ok);
  }
}

TEST(ThreeLc, TrailingBytesAreRefused) {
  for (const Params& p : all_params()) {
    const std::vector<float> x = gaussian(75, 3);
    ByteVector payload = Caller().encode(p, x, nullptr);
    const Unit unit{75, 75, 1, 0, 0};
    ASSERT_EQ(ThreeLc::check(p, unit, 0, payload), Errc::ok);
    payload.push_back(121);
    EXPECT_NE(ThreeLc::check(p, unit, 0, payload), Errc::ok);
  }
}

TEST(ThreeLc, ScaleIsChecked) {
  const Unit unit{5, 5, 1, 0, 0};
  const auto check = [&](float m) {
    ByteVector bytes(5, 121);
    store(bytes.data(), m);
    return ThreeLc::check({}, unit, 0, bytes);
  };
  EXPECT_EQ(check(0.0F), Errc::ok);
  EXPECT_EQ(check(1e-45F), Errc::ok);
  EXPECT_EQ(check(kMax), Errc::ok);
  for (const float m : {-0.0F, -1.0F, kInf, -kInf, std::nanf("")}) EXPECT_NE(check(m), Errc::ok);
}

TEST(ThreeLc, NonCanonicalRunsDecode) {
  const ByteVector payload{0, 0, 0, 0x40, 121, 121, 243, 202, 243};
  const std::vector<float> out = Caller().decode({}, payload, 35);
  for (size_t i = 0; i < 35; ++i) EXPECT_EQ(out[i], i == 4 ? 2.0F : 0.0F);
}

TEST(ThreeLc, AnyBytesDecodeOrAreRefused) {
  std::mt19937 random(77);
  uint32_t accepted = 0;
  for (const Params& p : all_params()) {
    for (uint32_t trial = 0; trial < 60; ++trial) {
      const uint64_t n = random() % 8 == 0 ? 40960 + random() % 9000 : random() % 700;
      ByteVector payload = Caller(best_isa()).encode(p, of_density(n, 0.7, trial), nullptr);
      for (uint32_t k = 0; k < random() % 4 && !payload.empty(); ++k) {
        payload[random() % payload.size()] = static_cast<uint8_t>(random());
      }
      if (random() % 4 == 0 && !payload.empty()) payload.resize(random() % payload.size());
      if (random() % 4 == 0) payload.resize(payload.size() + random() % 9);
      const ByteVector exact(payload);  // an own allocation: address sanitizer sees over-reads
      const Unit unit{n, n, 1, 0, 0};
      if (ThreeLc::check(p, unit, 0, exact) != Errc::ok) continue;
      ++accepted;
      Caller(best_isa(), 1 + trial % 2).decode(p, exact, n);
    }
  }
  EXPECT_GT(accepted, 100U);
}

TEST(ThreeLc, ContractMatchesMethod) {
  const Contract c = ThreeLc::contract({});
  EXPECT_EQ(c.merge, Merge::none);
  EXPECT_EQ(c.feedback, Feedback::own);
  EXPECT_EQ(c.memory_default, MemoryKind::residual);
  EXPECT_TRUE(c.fused && c.checks_finite);
  EXPECT_FALSE(c.exact_size || c.stochastic || c.unbiased);
  const Unit unit{1024, 1024, 1, 0, 0};
  EXPECT_EQ(ThreeLc::plan({}, unit, 8).round[0].bytes, 4U + 205U);
  EXPECT_EQ(ThreeLc::plan({1.0F, kChunked, true, false}, unit, 8).round[0].bytes, 6U + 205U);
}

}  // namespace
}  // namespace laconic::codecs

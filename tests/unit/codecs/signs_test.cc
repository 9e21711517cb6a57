// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// onebit, signsgd, signum and efsignsgd: known bytes, the vote, feedback, edge cases, hostile
// payloads. The laws that all codecs share are in tests/conformance.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codecs/efsignsgd/efsignsgd.h"
#include "codecs/onebit/onebit.h"
#include "codecs/registry/table.h"
#include "codecs/signsgd/signsgd.h"
#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

using testing::ElementsAre;
using ByteVector = std::vector<uint8_t>;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kMax = std::numeric_limits<float>::max();
constexpr float kDenormal = std::numeric_limits<float>::denorm_min();
constexpr uint64_t kChunk = 32768;
constexpr OneBit::Params kByChunk{OneBit::Scale::chunk};

template <class C>
using Runner = CodecRunner<C>;

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// ---- known bytes ----

TEST(Signs, KnownPayloads) {
  const std::vector<float> x{1, -2, 0.0F, -0.0F, -4, 3, 0.5F, -0.5F, 8, -8};
  EXPECT_THAT(Runner<SignSgd>(10).encode(x), ElementsAre(0x6D, 0x01));
  EXPECT_THAT(Runner<Signum>(10).encode(x), ElementsAre(0x6D, 0x01));
  // 27 / 10
  EXPECT_THAT(Runner<EfSignSgd>(10).encode(x), ElementsAre(0xCD, 0xCC, 0x2C, 0x40, 0x6D, 0x01));
  // -14.5 / 4 and 12.5 / 6
  EXPECT_THAT(Runner<OneBit>(10).encode(x),
              ElementsAre(0x00, 0x00, 0x68, 0xC0, 0x55, 0x55, 0x05, 0x40, 0x6D, 0x01));
}

// ---- GRACE's defects ----

TEST(Signs, Grace01EachElementTakesOneBit) {
  for (const uint64_t n : {0U, 1U, 7U, 8U, 9U, 1000U, 32768U, 32769U, 100'000U}) {
    const std::vector<float> x = normal(n, n);
    const uint64_t bits = (n + 7) / 8;
    EXPECT_EQ(Runner<SignSgd>(n).encode(x).size(), bits);
    EXPECT_EQ(Runner<Signum>(n).encode(x).size(), bits);
    EXPECT_EQ(Runner<EfSignSgd>(n).encode(x).size(), n == 0 ? 0 : bits + 4);
    EXPECT_EQ(Runner<OneBit>(n).encode(x).size(), n == 0 ? 0 : bits + 8);
    EXPECT_EQ(Runner<OneBit>(n, kByChunk).encode(x).size(), bits + 8 * ((n + 32767) / 32768));
  }
}

TEST(Signs, Grace03ZeroTensorsDecodeToZero) {
  for (const uint64_t n : {1U, 9U, 40'000U}) {
    for (const float zero : {0.0F, -0.0F}) {
      const std::vector<float> zeros(n, zero), ones(n, 1.0F), expected(n, 0.0F);
      const auto decoded = [&](auto runner) { return runner.decode(runner.encode(zeros)); };
      EXPECT_TRUE(same_bits(decoded(Runner<OneBit>(n)), expected));
      EXPECT_TRUE(same_bits(decoded(Runner<OneBit>(n, kByChunk)), expected));
      EXPECT_TRUE(same_bits(decoded(Runner<EfSignSgd>(n)), expected));
      EXPECT_TRUE(same_bits(decoded(Runner<SignSgd>(n)), ones)) << "a sign has no zero";
    }
  }
}

TEST(Signs, Grace08UnitsOfOneElementRoundTrip) {
  for (const float x : {2.5F, -2.5F, kDenormal, -kDenormal, kMax, -kMax}) {
    const float sign = x < 0 ? -1.0F : 1.0F;
    const auto one = [&](auto runner) {
      std::vector<float> e{0.0F};
      const ByteVector payload = runner.encode({x}, &e);
      EXPECT_TRUE(runner.finite);
      EXPECT_EQ(e[0], 0.0F);
      return runner.decode(payload);
    };
    EXPECT_THAT(one(Runner<OneBit>(1)), ElementsAre(x));
    EXPECT_THAT(one(Runner<OneBit>(1, kByChunk)), ElementsAre(x));
    EXPECT_THAT(one(Runner<EfSignSgd>(1)), ElementsAre(x));
    Runner<SignSgd> vote(1);
    EXPECT_THAT(vote.decode(vote.encode({x})), ElementsAre(sign));
  }
}

void expect_two_means(const std::vector<float>& x, const std::vector<float>& decoded,
                      uint64_t begin, uint64_t end) {
  double sum[2] = {0, 0}, count[2] = {0, 0};
  for (uint64_t i = begin; i < end; ++i) {
    sum[x[i] >= 0 ? 1 : 0] += static_cast<double>(x[i]);
    count[x[i] >= 0 ? 1 : 0] += 1;
  }
  float means[2] = {0, 0};
  for (uint64_t i = begin; i < end; ++i) means[x[i] >= 0 ? 1 : 0] = decoded[i];
  for (const int side : {0, 1}) {
    if (count[side] == 0) continue;
    const double mean = sum[side] / count[side];
    EXPECT_NEAR(means[side], mean, 1e-6 * std::fabs(mean));
  }
  for (uint64_t i = begin; i < end; ++i) ASSERT_EQ(decoded[i], means[x[i] >= 0 ? 1 : 0]) << i;
}

TEST(Signs, Grace19DecodedValuesAreTheTwoMeans) {
  for (const uint64_t n : {2U, 100U, 70'001U}) {
    std::vector<float> x = normal(n, n);
    for (uint64_t i = kChunk; i < std::min(n, 2 * kChunk); ++i) x[i] = 3 + std::fabs(x[i]);
    Runner<OneBit> unit(n), chunks(n, kByChunk);
    expect_two_means(x, unit.decode(unit.encode(x)), 0, n);
    const std::vector<float> decoded = chunks.decode(chunks.encode(x));
    for (uint64_t c = 0; c < n; c += kChunk) {
      expect_two_means(x, decoded, c, std::min(n, c + kChunk));
    }
  }
}

TEST(Signs, MeanMagnitudeIsExact) {
  const std::vector<float> x = normal(70'001, 5);
  Runner<EfSignSgd> runner(x.size());
  const std::vector<float> decoded = runner.decode(runner.encode(x));
  double sum = 0;
  for (const float v : x) sum += std::fabs(static_cast<double>(v));
  const double mean = sum / static_cast<double>(x.size());
  EXPECT_NEAR(decoded[0], std::copysign(mean, x[0]), 1e-6 * mean);
  for (uint64_t i = 0; i < x.size(); ++i) ASSERT_EQ(decoded[i], std::copysign(decoded[0], x[i]));
}

// ---- the vote ----

struct Votes {
  explicit Votes(uint64_t n, uint32_t voters) : naive(n) {
    Runner<SignSgd> runner(n);
    for (uint32_t v = 0; v < voters; ++v) {
      const std::vector<float> x = normal(n, 100 + v);
      for (uint64_t i = 0; i < n; ++i) naive[i] += x[i] >= 0 ? 1 : -1;
      payloads.push_back(runner.encode(x));
    }
  }
  [[nodiscard]] std::vector<Term> terms(float weight) const {
    std::vector<Term> list;
    for (const ByteVector& payload : payloads) list.push_back({payload, weight});
    return list;
  }
  std::vector<int> naive;
  std::vector<ByteVector> payloads;
};

TEST(Signs, MajorityDecidesAndTiesArePositive) {
  constexpr uint64_t n = 4001;
  std::vector<uint32_t> worlds{40, 121, 250};
  for (uint32_t voters = 1; voters <= 18; ++voters) worlds.push_back(voters);
  for (const uint32_t voters : worlds) {
    const Votes votes(n, voters);
    Runner<SignSgd> runner(n);
    std::vector<float> sum = runner.decode(votes.terms(1.0F));
    uint64_t ties = 0;
    for (uint64_t i = 0; i < n; ++i) {
      ASSERT_EQ(sum[i], static_cast<float>(votes.naive[i])) << voters;
      ties += votes.naive[i] == 0 ? 1U : 0U;
    }
    EXPECT_EQ(ties > 0, voters % 2 == 0) << voters;
    SignSgd::finish({&runner.params, {}, runner.unit, {}, 0, runner.work}, sum);
    for (uint64_t i = 0; i < n; ++i) ASSERT_EQ(sum[i], votes.naive[i] >= 0 ? 1.0F : -1.0F);
  }
}

TEST(Signs, FinishOfAZeroOfEitherSignIsPositive) {
  Runner<Signum> runner(5);
  std::vector<float> mean{0.0F, -0.0F, -kDenormal, kDenormal, -3};
  Signum::finish({&runner.params, {}, runner.unit, {}, 0, runner.work}, mean);
  EXPECT_THAT(mean, ElementsAre(1, 1, -1, 1, -1));
}

/// out = ((w0·d0) + w1·d1) + …, each rounded: what any list of weights has to give.
TEST(Signs, CountedVotesEqualTheSumOneByOne) {
  constexpr uint64_t n = 1003;
  for (const uint32_t voters : {1U, 2U, 3U, 6U, 10U, 12U, 14U, 16U, 17U, 18U, 130U}) {
    const Votes votes(n, voters);
    Runner<SignSgd> runner(n);
    for (const float weight : {1.0F, 0.125F, -1.0F, 1.0F / static_cast<float>(voters), 3.0F, 0.0F,
                               kDenormal, 0x1p127F}) {
      std::vector<Term> terms = votes.terms(weight);
      for (const bool mixed : {false, true}) {
        if (mixed) terms.back().weight = 0.75F;
        std::vector<float> expected(n);
        for (uint64_t i = 0; i < n; ++i) {
          float sum = 0;
          for (uint32_t t = 0; t < voters; ++t) {
            const bool one = (terms[t].payload[i / 8] >> (i % 8) & 1) != 0;
            const volatile float value = terms[t].weight * (one ? 1.0F : -1.0F);
            sum = t == 0 ? value : sum + value;
          }
          expected[i] = sum;
        }
        EXPECT_TRUE(same_bits(runner.decode(terms), expected)) << voters << " times " << weight;
      }
    }
  }
}

// ---- feedback ----

/// The promise of Plan::largest_input.
template <class C>
void expect_encoded(typename C::Params params, float size) {
  constexpr uint64_t n = 200'003;
  Runner<C> runner(n, params);
  std::vector<float> e(n, size);
  const std::vector<float> g(n, size);
  const ByteVector payload = runner.encode(g, &e);
  ASSERT_TRUE(runner.finite);
  for (const float d : runner.decode(payload)) ASSERT_EQ(d, 2 * size);
  for (const float rest : e) ASSERT_EQ(rest, 0.0F);
}

TEST(Signs, LargestInputsAreEncoded) {
  const float largest = Runner<OneBit>(8).plan().largest_input;
  for (const float size : {largest, -largest}) {
    expect_encoded<OneBit>({}, size);
    expect_encoded<OneBit>(kByChunk, size);
    expect_encoded<EfSignSgd>({}, size);
  }
}

TEST(Signs, OneHugeOutlierKeepsSmallElements) {
  std::vector<float> x = normal(1000, 1);
  x[10] = -1e30F;
  Runner<OneBit> two(1000);
  const std::vector<float> decoded = two.decode(two.encode(x));
  for (uint64_t i = 0; i < 1000; ++i) {
    if (x[i] >= 0) {
      ASSERT_LT(decoded[i], 0.1F);
    } else {
      ASSERT_LT(decoded[i], -1e26F);
    }
  }
}

TEST(Signs, DenormalsAreNotLost) {
  const std::vector<float> x{3 * kDenormal, kDenormal, -2 * kDenormal, 0.0F};
  Runner<OneBit> two(4);
  EXPECT_THAT(two.decode(two.encode(x)),
              ElementsAre(kDenormal, kDenormal, -2 * kDenormal, kDenormal));
  Runner<EfSignSgd> one(4);  // 1.5 denormals round to even
  EXPECT_THAT(one.decode(one.encode(x)),
              ElementsAre(2 * kDenormal, 2 * kDenormal, -2 * kDenormal, 2 * kDenormal));
}

// ---- sizes and hostile bytes ----

TEST(Signs, PaddingMustBeZero) {
  for (const uint64_t n : {1U, 7U, 9U, 15U, 1001U}) {
    const std::vector<float> x = normal(n, 1);
    const auto offer = [&](auto runner) {
      for (uint64_t bit = n % 8; bit < 8; ++bit) {
        ByteVector payload = runner.encode(x);
        EXPECT_EQ(runner.check(payload), Errc::ok);
        payload.back() = static_cast<uint8_t>(payload.back() | (1U << bit));
        EXPECT_EQ(runner.check(payload), Errc::payload_malformed);
      }
    };
    offer(Runner<SignSgd>(n));
    offer(Runner<Signum>(n));
    offer(Runner<EfSignSgd>(n));
    offer(Runner<OneBit>(n));
    offer(Runner<OneBit>(n, kByChunk));
  }
}

TEST(Signs, ScalesMustBeFiniteAndCorrectlySigned) {
  const std::vector<float> x = normal(40'000, 1);
  const auto offer = [&](auto runner, size_t at, float value) {
    ByteVector payload = runner.encode(x);
    store(payload.data() + at, value);
    return runner.check(payload);
  };
  for (const float bad : {kInf, -kInf, NAN, -NAN, -0.0F}) {
    EXPECT_EQ(offer(Runner<EfSignSgd>(x.size()), 0, bad), Errc::payload_malformed);
    for (const size_t at : {0U, 4U, 8U, 12U}) {
      EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at, bad), Errc::payload_malformed);
    }
  }
  EXPECT_EQ(offer(Runner<EfSignSgd>(x.size()), 0, -1.0F), Errc::payload_malformed);
  EXPECT_EQ(offer(Runner<EfSignSgd>(x.size()), 0, kMax), Errc::ok);
  for (const size_t at : {0U, 8U}) {
    EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at, 1.0F), Errc::payload_malformed);
    EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at, -kMax), Errc::ok);
    EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at + 4, -1.0F), Errc::payload_malformed);
    EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at + 4, kMax), Errc::ok);
    EXPECT_EQ(offer(Runner<OneBit>(x.size(), kByChunk), at, 0.0F), Errc::ok);
  }
}

// ---- contracts ----

TEST(Signs, ContractsMatchMethods) {
  for (const Contract& c : {SignSgd::contract({}), Signum::contract({})}) {
    EXPECT_EQ(c.merge, Merge::vote);
    EXPECT_EQ(c.feedback, Feedback::never);
    EXPECT_EQ(c.memories, memory_set(MemoryKind::ema));
    EXPECT_TRUE(c.exact_size);
  }
  EXPECT_EQ(SignSgd::contract({}).memory_default, MemoryKind::none);
  EXPECT_EQ(Signum::contract({}).memory_default, MemoryKind::ema);
  EXPECT_EQ(Signum::contract({}).memory_factor, 0.9F);
  for (const Contract& c :
       {OneBit::contract({}), OneBit::contract(kByChunk), EfSignSgd::contract({})}) {
    EXPECT_EQ(c.memory_default, MemoryKind::residual);
    EXPECT_TRUE(c.fused && c.checks_finite && c.exact_size);
    EXPECT_EQ(c.contraction, 0.0F);
  }
  EXPECT_EQ(OneBit::contract(kByChunk).granule, kChunk);
  EXPECT_NE(TableOf<SignSgd>::value.finish, nullptr);
  EXPECT_NE(TableOf<Signum>::value.finish, nullptr);
  EXPECT_EQ(TableOf<OneBit>::value.finish, nullptr);
}

}  // namespace
}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// none, fp16, bf16 and int8: known bytes, edge cases, hostile payloads. The laws that all codecs
// share are in tests/conformance.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "codecs/cast/cast.h"
#include "codecs/int8/int8.h"
#include "codecs/none/none.h"
#include "codecs/registry/table.h"
#include "unit/codecs/codec_runner.h"

namespace laconic::codecs {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

template <class C>
using Runner = CodecRunner<C>;

template <class C>
class DenseCodec : public testing::Test {};
using Codecs = testing::Types<None, Fp16, Bf16, Int8>;
TYPED_TEST_SUITE(DenseCodec, Codecs);

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
  const std::vector<uint8_t> payload = run.encode(x);
  ASSERT_TRUE(run.finite);  // carried, not refused
  EXPECT_EQ(std::memcmp(payload.data(), x.data(), payload.size()), 0);
  const std::vector<float> back = run.decode(payload);
  EXPECT_EQ(std::memcmp(back.data(), x.data(), payload.size()), 0);
}

TEST(None, PrescaleMultipliesElements) {
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

TEST(Int8, HostileScalesAndValuesAreRejected) {
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

TEST(Int8, RandomNumbersDependOnElementOfParameter) {
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

}  // namespace
}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/unit_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace laconic::pipeline {
namespace {

constexpr uint64_t kCount = 5000;

struct Fixture {
  explicit Fixture(const std::string& text)
      : spec(*Spec::parse(text)), codec(spec, best_isa(), nullptr) {
    slot.unit = {kCount, kCount, 1, 99, 0};
    slot.plan = codec.plan(slot.unit, 1);
    state.resize(slot.plan.state_floats);
    slot.state = state;
    if (spec.feedback()) slot.residual = residual.data();
    codec.init(slot, place);
    kept.resize(slot.plan.kept_bytes + 64);
    scratch.resize(slot.plan.scratch_bytes + 64);
    out.resize(slot.plan.round[0].bytes);
    work = {aligned(kept, slot.plan.kept_bytes), aligned(scratch, slot.plan.scratch_bytes),
            best_isa(), nullptr};
  }
  static MutBytes aligned(std::vector<uint8_t>& v, uint64_t n) {
    const auto skip = (64 - reinterpret_cast<uintptr_t>(v.data()) % 64) % 64;
    return MutBytes(v).subspan(skip, n);
  }
  UnitEncoded encode(const std::vector<float>& g) {
    return codec.encode(slot, place, g.data(), work, out);
  }

  Spec spec;
  UnitCodec codec;
  UnitSlot slot;
  Place place{1, 2, 0, 1, 0, 1.0F};
  std::vector<float> state, residual = std::vector<float>(kCount, 0.25F);
  std::vector<uint8_t> kept, scratch, out;
  Work work;
};

std::vector<float> noise(uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> g(kCount);
  for (float& x : g) x = normal(random);
  return g;
}

class Feedbacks : public testing::TestWithParam<const char*> {};

TEST_P(Feedbacks, AZeroGradientSendsNothingAndKeepsTheResidual) {
  Fixture f(GetParam());
  const auto before = f.residual;
  std::vector<float> g(kCount, 0.0F);
  g[7] = -0.0F;
  EXPECT_EQ(f.encode(g).outcome, Outcome::zero);
  EXPECT_EQ(f.residual, before);
}

TEST_P(Feedbacks, ANonFiniteGradientKeepsTheResidualBitForBit) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (const uint64_t at : {uint64_t{0}, kCount / 2, kCount - 1}) {
      Fixture f(GetParam());
      const auto before = f.residual;
      auto g = noise(1);
      g[at] = bad;
      EXPECT_EQ(f.encode(g).outcome, Outcome::non_finite);
      EXPECT_EQ(std::memcmp(before.data(), f.residual.data(), 4 * kCount), 0);
    }
  }
}

TEST_P(Feedbacks, PutBackGivesGradientPlusResidual) {
  Fixture f(GetParam());
  const auto before = f.residual;
  const auto g = noise(2);
  const auto encoded = f.encode(g);
  ASSERT_EQ(encoded.outcome, Outcome::payload);
  f.codec.put_back(f.slot, f.place, Bytes(f.out).first(encoded.bytes), f.work);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_NEAR(f.residual[i], before[i] + g[i], 1e-6) << i;
}

TEST_P(Feedbacks, TakeBackGivesTheOldResidualWithinARounding) {
  Fixture f(GetParam());
  const auto before = f.residual;
  const auto g = noise(3);
  const auto encoded = f.encode(g);
  f.codec.take_back(f.slot, f.place, Bytes(f.out).first(encoded.bytes), g.data(), f.work);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_NEAR(f.residual[i], before[i], 1e-6) << i;
}

INSTANTIATE_TEST_SUITE_P(Codecs, Feedbacks,
                         testing::Values("3lc", "3lc:s=1.9", "3lc:scale=chunk", "topk:ratio=0.05",
                                         "sidco:ratio=0.05", "randomk:ratio=0.05", "int8+ef",
                                         "bf16+ef", "fp16+ef"));

TEST(UnitCodec, PutBackIsExactForTernaryAndSparse) {
  for (const char* spec : {"3lc", "topk:ratio=0.05", "sidco:ratio=0.05"}) {
    Fixture f(spec);
    auto expected = f.residual;
    const auto g = noise(4);
    for (uint64_t i = 0; i < kCount; ++i) expected[i] += g[i];
    const auto encoded = f.encode(g);
    f.codec.put_back(f.slot, f.place, Bytes(f.out).first(encoded.bytes), f.work);
    EXPECT_EQ(std::memcmp(expected.data(), f.residual.data(), 4 * kCount), 0) << spec;
  }
}

TEST(UnitCodec, APrescaledPayloadIsTakenOutWhole) {
  Fixture f("fp16+ef");
  f.place.world = 4;
  f.place.prescale = 0.25F;
  std::fill(f.residual.begin(), f.residual.end(), 0.0F);
  const auto g = noise(5);
  f.encode(g);
  double error = 0, size = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    error += std::abs(f.residual[i]);
    size += std::abs(g[i]);
  }
  EXPECT_LT(error, 1e-3 * size);
}

}  // namespace
}  // namespace laconic::pipeline

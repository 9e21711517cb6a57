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
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLargest = std::numeric_limits<float>::max();

struct Fixture {
  explicit Fixture(const std::string& text, uint64_t rows = kCount)
      : spec(*Spec::parse(text)), codec(spec, best_isa(), nullptr) {
    slot.unit = {kCount, rows, kCount / rows, 99, 0};
    slot.plan = codec.plan(slot.unit, 1);
    state.resize(slot.plan.state_floats);
    slot.state = state;
    if (spec.feedback()) slot.memory = {spec.memory(), residual.data()};
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

  void undo(const UnitEncoded& encoded, const float* g, Undo why) {
    codec.undo(slot, place, Bytes(out).first(encoded.bytes), g, why, work);
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

TEST_P(Feedbacks, ZeroGradientSendsNothingAndKeepsResidual) {
  Fixture f(GetParam());
  const auto before = f.residual;
  std::vector<float> g(kCount, 0.0F);
  g[7] = -0.0F;
  EXPECT_EQ(f.encode(g).outcome, Outcome::zero);
  EXPECT_EQ(f.residual, before);
}

TEST_P(Feedbacks, UndoOfLostGradientGivesGradientPlusResidual) {
  Fixture f(GetParam());
  const auto before = f.residual;
  const auto g = noise(2);
  const auto encoded = f.encode(g);
  ASSERT_EQ(encoded.outcome, Outcome::payload);
  f.undo(encoded, nullptr, Undo::gradient_lost);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_NEAR(f.residual[i], before[i] + g[i], 1e-6) << i;
}

TEST_P(Feedbacks, UndoOfSentGradientGivesOldResidualWithinRounding) {
  Fixture f(GetParam());
  const auto before = f.residual;
  const auto g = noise(3);
  const auto encoded = f.encode(g);
  f.undo(encoded, g.data(), Undo::gradient_travels);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_NEAR(f.residual[i], before[i], 1e-6) << i;
}

TEST_P(Feedbacks, KeepAddsWholeGradientOrNothing) {
  Fixture f(GetParam());
  auto expected = f.residual;
  auto g = noise(6);
  for (uint64_t i = 0; i < kCount; ++i) expected[i] += g[i];
  EXPECT_TRUE(f.codec.keep(f.slot, g.data()));
  EXPECT_EQ(f.residual, expected);
  for (const float bad : {kNan, kInfinity, -kInfinity}) {
    g[kCount - 1] = bad;
    EXPECT_FALSE(f.codec.keep(f.slot, g.data()));
    EXPECT_EQ(f.residual, expected);
  }
  g[kCount - 1] = expected[kCount - 1] = f.residual[kCount - 1] = kLargest;  // the sum overflows
  EXPECT_FALSE(f.codec.keep(f.slot, g.data()));
  EXPECT_EQ(f.residual, expected);
}

INSTANTIATE_TEST_SUITE_P(Codecs, Feedbacks,
                         testing::Values("3lc", "3lc:s=1.9", "3lc:scale=chunk", "topk:ratio=0.05",
                                         "sidco:ratio=0.05", "randomk:ratio=0.05", "int8+ef",
                                         "bf16+ef", "fp16+ef"));

TEST(UnitCodec, UndoOfALostGradientIsExactForTernaryAndSparse) {
  for (const char* spec : {"3lc", "topk:ratio=0.05", "sidco:ratio=0.05"}) {
    Fixture f(spec);
    auto expected = f.residual;
    const auto g = noise(4);
    for (uint64_t i = 0; i < kCount; ++i) expected[i] += g[i];
    const auto encoded = f.encode(g);
    f.undo(encoded, nullptr, Undo::gradient_lost);
    EXPECT_EQ(std::memcmp(expected.data(), f.residual.data(), 4 * kCount), 0) << spec;
  }
}

TEST(UnitCodec, PrescaledPayloadIsErasedWhole) {
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

TEST(UnitCodec, KeepWithoutAResidualKeepsNothing) {
  Fixture f("topk+noef");
  EXPECT_FALSE(f.codec.keep(f.slot, noise(1).data()));
}

TEST(UnitCodec, UnitWithWrongShapeIsRefused) {
  const Spec none = *Spec::parse("none");
  EXPECT_EQ(check_unit(none, {12, 3, 4, 0, 0}), Errc::ok);
  EXPECT_EQ(check_unit(none, {0, 0, 4, 0, 0}), Errc::ok);
  EXPECT_EQ(check_unit(none, {11, 3, 4, 0, 0}), Errc::shape_unsupported);
  EXPECT_EQ(check_unit(none, {0, uint64_t{1} << 32, uint64_t{1} << 32, 0, 0}),
            Errc::shape_unsupported);
  EXPECT_EQ(check_unit(none, {12, 12, 1, 0, ~uint64_t{0} - 11}), Errc::shape_unsupported);
}

// A sum over ranks follows, and what is taken out of the residual is world times the lane.
TEST(UnitCodec, PrescaledElementsNearLargestFloatLeaveFiniteResidual) {
  for (const char* spec : {"fp16+ef", "fp16:saturate=off+ef", "bf16+ef"}) {
    for (const uint32_t world : {2U, 3U, 64U, 508U, 509U}) {
      Fixture f(spec);
      f.place.world = world;
      f.place.prescale = 1.0F / static_cast<float>(world);
      std::fill(f.residual.begin(), f.residual.end(), 0.0F);
      const std::vector<float> g(kCount, f.slot.plan.largest_input);
      ASSERT_EQ(f.encode(g).outcome, Outcome::payload);
      for (const float x : f.residual) ASSERT_TRUE(std::isfinite(x)) << spec << ", " << world;
    }
  }
}

TEST(UnitCodec, NonFiniteStateChangesNothing) {
  for (const char* spec : {"powersgd", "sidco:mode=signed"}) {
    for (const float bad : {kNan, kInfinity}) {
      Fixture f(spec, 50);
      f.state.back() = bad;
      const auto state = f.state, before = f.residual;
      EXPECT_EQ(f.encode(noise(1)).outcome, Outcome::non_finite) << spec;
      EXPECT_EQ(f.residual, before) << spec;
      EXPECT_EQ(std::memcmp(state.data(), f.state.data(), state.size() * 4), 0) << spec;
    }
  }
}

TEST(UnitCodec, AnyFiniteFactorMayBegin) {
  Fixture f("powersgd", 50);
  for (uint64_t i = 0; i < f.state.size(); ++i) f.state[i] = i % 3 == 0 ? -kLargest : kLargest;
  EXPECT_EQ(f.encode(noise(1)).outcome, Outcome::payload);
}

// A peer's lanes may be any finite numbers. P̂ is then not: no round may send that unnoticed.
TEST(UnitCodec, LaterRoundReportsNonFinite) {
  Fixture f("powersgd", 50);
  const auto g = noise(1);
  const auto before = f.residual;
  ASSERT_EQ(f.encode(g).outcome, Outcome::payload);
  const MutBytes merged(f.out.data(), f.slot.plan.round[0].bytes);
  for (uint64_t i = 0; i < merged.size() / 4; ++i) {  // 1 1 1 …; −max max max …; …
    const uint64_t row = i % 50;
    store(merged.data() + 4 * i, i < 50 ? 1.0F : row == 0 ? -kLargest : kLargest);
  }
  f.codec.accept(f.slot, f.place, 0, merged, 2, f.work);
  std::vector<uint8_t> later(f.slot.plan.round[1].bytes);
  const auto encoded = f.codec.encode_round(f.slot, f.place, 1, g.data(), f.work, later);
  ASSERT_EQ(encoded.outcome, Outcome::non_finite);
  f.undo(encoded, g.data(), Undo::gradient_travels);
  for (uint64_t i = 0; i < kCount; ++i) ASSERT_NEAR(f.residual[i], before[i], 1e-6) << i;
}

}  // namespace
}  // namespace laconic::pipeline

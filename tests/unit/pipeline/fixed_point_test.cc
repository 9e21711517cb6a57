// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/fixed_point.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace laconic::pipeline {
namespace {

class FixedPoint : public testing::Test {
 protected:
  FixedPoint() : spec_(*Spec::parse("thc")), codec_(spec_, best_isa(), nullptr) {}
  UnitSlot slot_for(std::vector<float>& residual, float decay = 1.0F) {
    UnitSlot slot;
    slot.unit = {residual.size(), residual.size(), 1, 0, 0};
    slot.memory = {{MemoryKind::residual, 0.0F, decay}, residual.data()};
    return slot;
  }
  Spec spec_;
  UnitCodec codec_;
};

TEST_F(FixedPoint, RangeIsPowerOfTwoWellAboveSeenValues) {
  const auto next = [](float range, float largest) {
    return fixed::next_range(range, fixed::short_magnitude(largest));
  };
  EXPECT_EQ(next(0, 1.0F), 128.0F);
  EXPECT_EQ(next(0, 0.99F), 64.0F);
  EXPECT_EQ(next(0, 0.9999F), 128.0F) << "in 16 bits it is 1";
  EXPECT_EQ(next(0, 3.0F), 256.0F);
  EXPECT_EQ(next(128, 1000.0F), 65536.0F) << "grows at once";
  EXPECT_EQ(next(128, 0.001F), 64.0F) << "falls by half";
  EXPECT_EQ(next(128, 0), 128.0F) << "zeros say nothing";
  EXPECT_EQ(next(0, 0), 0x1p-100F) << "nothing but zeros so far";
  EXPECT_EQ(next(0x1p-100F, 1e-40F), 0x1p-100F);
  EXPECT_EQ(next(0, std::numeric_limits<float>::max()), 0x1p126F);
  EXPECT_EQ(next(0, std::numeric_limits<float>::infinity()), 0x1p126F);
  for (uint32_t norm = 0; norm < 1U << 16; ++norm) {  // whatever comes over the network
    const float range = fixed::next_range(1.0F, static_cast<uint16_t>(norm));
    ASSERT_TRUE(range >= 0.5F && range <= 0x1p126F && range == fixed::nearest_range(range)) << norm;
  }
}

TEST_F(FixedPoint, RangeAfterLossScaleIsPowerOfTwoAgain) {
  EXPECT_EQ(fixed::nearest_range(64.0F), 64.0F);
  EXPECT_EQ(fixed::nearest_range(64.0F * 3.0F * (1.0F / 3.0F)), 64.0F);
  EXPECT_EQ(fixed::nearest_range(63.9999F), 64.0F);
  EXPECT_EQ(fixed::nearest_range(64000.0F), 65536.0F);
  EXPECT_EQ(fixed::nearest_range(-64.0F), 64.0F);
  EXPECT_EQ(fixed::nearest_range(1e-44F), 0x1p-100F);
  EXPECT_EQ(fixed::nearest_range(std::numeric_limits<float>::max()), 0x1p126F);
}

/// Any floats below the range, denormals and ties among them.
TEST_F(FixedPoint, QuantizedValuePlusRestEqualsInput) {
  std::mt19937_64 random(3);
  for (const float range : {0x1p-100F, 0x1p-3F, 1.0F, 0x1p126F}) {
    const float unit = fixed::unit_of(range);
    std::vector<float> g{0.0F,
                         -0.0F,
                         0.5F * unit,
                         -0.5F * unit,
                         1.5F * unit,
                         2.5F * unit,
                         std::nextafter(range, 0.0F),
                         -std::nextafter(range, 0.0F),
                         1e-45F,
                         -1e-40F};
    while (g.size() < 5000) {
      const float x = bits_float(static_cast<uint32_t>(random()));
      const int shift = static_cast<int>(random() % 60);
      if (std::isnormal(x)) g.push_back(std::ldexp(x, -std::ilogb(x) - 1 - shift) * range);
    }
    std::vector<float> residual(g.size());
    const UnitSlot slot = slot_for(residual);
    std::vector<int32_t> codes(g.size());
    const fixed::Measured measured = fixed::measure(codec_, slot, g.data());
    ASSERT_EQ(measured.outcome, Outcome::payload);
    ASSERT_LT(measured.largest, range);
    fixed::encode(codec_, slot, g.data(), range, codes.data());
    for (size_t i = 0; i < g.size(); ++i) {
      ASSERT_LT(std::abs(codes[i]), 1 << 25);
      ASSERT_EQ(codes[i], std::nearbyint(double{g[i]} / unit)) << g[i];
      ASSERT_EQ(double{residual[i]} + static_cast<double>(codes[i]) * unit, double{g[i]}) << g[i];
      ASSERT_LE(std::abs(residual[i]), 0.5F * unit);
    }
    std::vector<float> mean(g.size());
    fixed::decode(codes, range, 1, mean.data());
    for (size_t i = 0; i < g.size(); ++i) ASSERT_EQ(mean[i], g[i] - residual[i]);
    fixed::put_back(slot, range, 0, codes);
    for (size_t i = 0; i < g.size(); ++i) ASSERT_EQ(residual[i], g[i]);
  }
}

TEST_F(FixedPoint, SumOfSixtyFourFits) {
  std::vector<float> residual(2), g{std::nextafter(4.0F, 0.0F), -std::nextafter(4.0F, 0.0F)};
  std::vector<int32_t> codes(2), sums(2);
  fixed::encode(codec_, slot_for(residual), g.data(), 4.0F, codes.data());
  for (size_t i = 0; i < 2; ++i) {
    ASSERT_LE(64 * std::abs(int64_t{codes[i]}), std::numeric_limits<int32_t>::max());
    sums[i] = 64 * codes[i];
  }
  std::vector<float> mean(2);
  fixed::decode(sums, 4.0F, 64, mean.data());
  EXPECT_EQ(mean, g);
}

TEST_F(FixedPoint, UndoFollowsDecayOfMemory) {
  std::vector<float> residual{1.0F, -2.0F, 0.25F}, before = residual, g{0.5F, 0.125F, -3.0F};
  const UnitSlot slot = slot_for(residual, 0.5F);
  std::vector<int32_t> codes(3);
  fixed::encode(codec_, slot, g.data(), 1024.0F, codes.data());
  fixed::put_back(slot, 1024.0F, 0, codes);
  EXPECT_EQ(residual, (std::vector<float>{1.0F, -0.875F, -2.875F}))
      << "half of it and the gradient";
  fixed::take_gradient(codec_, slot, g.data());
  EXPECT_EQ(residual, before);
}

TEST_F(FixedPoint, NonFiniteIsNotTaken) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  for (const float bad : {kInf, -kInf, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> residual{1.0F, 2.0F}, g{0.5F, bad};
    EXPECT_EQ(fixed::measure(codec_, slot_for(residual), g.data()).outcome, Outcome::non_finite);
    EXPECT_EQ(residual, (std::vector<float>{1.0F, 2.0F}));
    const UnitSlot bare{slot_for(residual).unit, {}, {}, {}};
    EXPECT_EQ(fixed::measure(codec_, bare, g.data()).outcome, Outcome::non_finite);
    std::vector<float> broken{1.0F, bad}, fine{0.5F, 0.25F};
    const fixed::Measured reset = fixed::measure(codec_, slot_for(broken), fine.data());
    EXPECT_EQ(reset.outcome, Outcome::payload);
    EXPECT_TRUE(reset.residual_reset);
    EXPECT_EQ(reset.largest, 0.5F);
    EXPECT_EQ(broken, (std::vector<float>{0.0F, 0.0F}));
  }
  std::vector<float> residual{1.0F}, zero{-0.0F};
  EXPECT_EQ(fixed::measure(codec_, slot_for(residual), zero.data()).outcome, Outcome::zero);
}

}  // namespace
}  // namespace laconic::pipeline

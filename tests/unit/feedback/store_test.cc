// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "feedback/store.h"

#include <gtest/gtest.h>

namespace laconic::feedback {
namespace {

TEST(Store, ArraysAreZeroAlignedAndStay) {
  Store store;
  const auto first = *store.add(StateKind::residual, "residual/a", 5);
  first[4] = 3.0F;
  for (int i = 0; i < 100; ++i) {
    ASSERT_TRUE(store.add(StateKind::codec_state, "state/" + std::to_string(i), 1000));
  }
  EXPECT_EQ(store.entries()[0].values.data(), first.data());
  EXPECT_EQ(first[4], 3.0F);
  for (const auto& e : store.entries())
    EXPECT_EQ(reinterpret_cast<uintptr_t>(e.values.data()) % 64, 0U);
  EXPECT_EQ(store.entries()[7].values[999], 0.0F);
}

TEST(Store, NamesAreUnique) {
  Store store;
  ASSERT_TRUE(store.add(StateKind::residual, "residual/a", 1));
  EXPECT_FALSE(store.add(StateKind::residual, "residual/a", 1));
}

TEST(Store, ScalingLeavesCodecStateAlone) {
  Store store;
  const auto own = *store.add(StateKind::residual, "r", 1);
  const auto mean = *store.add(StateKind::owner_residual, "o", 1);
  const auto state = *store.add(StateKind::codec_state, "s", 1);
  own[0] = mean[0] = state[0] = 3.0F;
  ASSERT_TRUE(store.scale_residuals(0.5F));
  EXPECT_EQ(own[0], 1.5F);
  EXPECT_EQ(mean[0], 1.5F);
  EXPECT_EQ(state[0], 3.0F);
  EXPECT_DOUBLE_EQ(store.residual_norm(), 1.5);  // own residuals only
}

TEST(Store, ArraysInUnitsOfGradientAreScaled) {
  Store store;
  std::vector<std::span<float>> values;
  for (const StateKind kind : {StateKind::residual, StateKind::owner_residual, StateKind::mean,
                               StateKind::momentum, StateKind::codec_state}) {
    values.push_back(*store.add(kind, std::to_string(static_cast<int>(kind)), 1));
    values.back()[0] = 8.0F;
  }
  ASSERT_TRUE(store.scale_residuals(0.5F));
  const std::vector<float> expected{4, 4, 4, 4, 8};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(values[i][0], expected[i]) << i;
  EXPECT_EQ(store.residual_bytes(), 16U);
  EXPECT_EQ(store.state_bytes(), 4U);
}

StateHeader header() { return {kStateVersion, 1, 4, 77, 88, "3lc"}; }

TEST(StateHeader, EqualHeaderIsAccepted) { EXPECT_TRUE(accepts(header(), header())); }

TEST(StateHeader, EachDifferenceHasItsNumberAndNamesBothSides) {
  const auto refused = [](auto change) {
    StateHeader saved = header();
    change(saved);
    return accepts(header(), saved).error();
  };
  const Error rank = refused([](StateHeader& h) { h.rank = 2; });
  EXPECT_EQ(rank.code, Errc::state_rank);
  EXPECT_NE(rank.message.find("rank 2"), std::string::npos);
  EXPECT_NE(rank.message.find("rank 1"), std::string::npos);
  EXPECT_EQ(refused([](StateHeader& h) { h.world = 8; }).code, Errc::state_world);
  EXPECT_EQ(refused([](StateHeader& h) { h.node_shard = 1; }).code, Errc::state_rank);
  const Error shape =
      refused([](StateHeader& h) { h.version = kStateVersionOfShards, h.node_shards = 2; });
  EXPECT_EQ(shape.code, Errc::state_world) << "another version, which this one knows";
  EXPECT_NE(shape.message.find("2 shards of a node"), std::string::npos);
  EXPECT_EQ(refused([](StateHeader& h) { h.model_hash = 1; }).code, Errc::state_model);
  EXPECT_EQ(refused([](StateHeader& h) { h.version = 9; }).code, Errc::state_version);
  EXPECT_EQ(refused([](StateHeader& h) { h.agreement = 9; }).code, Errc::state_spec);
  const Error spec = refused([](StateHeader& h) { h.spec = "topk"; });
  EXPECT_EQ(spec.code, Errc::state_spec);
  EXPECT_NE(spec.message.find("topk"), std::string::npos);
}

}  // namespace
}  // namespace laconic::feedback

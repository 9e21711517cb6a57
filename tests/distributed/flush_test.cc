// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A flush is agreed by all ranks one step ahead, whichever of them asks, and is part of saved
// state.
#include <gtest/gtest.h>

#include <cstring>

#include "support/even_codec.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}};
constexpr uint32_t kWorld = 3;

class Flush : public testing::TestWithParam<std::tuple<const char*, StrategyKind>> {
 protected:
  static Ranks ranks() {
    const auto& [spec, strategy] = GetParam();
    static Even even;
    test::Setup setup{spec, kWorld, kModel, strategy, 64, 1, kAllSums};
    setup.codec = [](uint32_t) { return even.table(); };
    return Ranks(setup);
  }
  static const Layout& front() {
    static const Layout layout = back_to_back(kModel, {2, 1});
    return layout;
  }
  static const Layout& back() {
    static const Layout layout = back_to_back(kModel, {0});
    return layout;
  }
  /// Both buckets of a step; `between` runs after the first.
  static void step(
      Ranks& group, uint64_t number, const std::function<void()>& between = [] {}) {
    for (const Layout* layout : {&front(), &back()}) {
      auto g = gradients(kWorld, layout->elements, number * 2 + layout->parameters[0]);
      for (const auto& r : group.exchange(*layout, g, number)) ASSERT_TRUE(r) << r.error().message;
      if (layout == &front()) between();
    }
  }
  static void expect_left(Ranks& group, uint64_t left) {
    for (uint32_t r = 0; r < kWorld; ++r)
      EXPECT_EQ(group.session(r).stats().flush_steps_left, left) << "rank " << r;
  }
};

/// An engine that adds what ranks report adds bits.
TEST_P(Flush, LargestRequestOfAllRanksWins) {
  Ranks group = ranks();
  const bool summed = collective::sums_lanes(std::get<1>(GetParam()));
  step(group, 0);
  ASSERT_TRUE(group.session(0).flush(5));
  ASSERT_TRUE(group.session(2).flush(3));
  step(group, 1);
  expect_left(group, summed ? 7 : 5);
}

TEST_P(Flush, RequestMidStepTakesEffectNextStep) {
  Ranks group = ranks();
  step(group, 0, [&] { ASSERT_TRUE(group.session(1).flush(2)); });
  expect_left(group, 2);
  EXPECT_GT(group.session(0).stats().residual_norm, 0.0);
  step(group, 1);
  expect_left(group, 1);
  step(group, 2);
  expect_left(group, 0);
  for (uint32_t r = 0; r < kWorld; ++r) {
    EXPECT_EQ(group.session(r).stats().residual_norm, 0.0);
    EXPECT_EQ(group.session(r).stats().flushes, 4U) << "two buckets, two steps";
  }
}

TEST_P(Flush, DrainingFlushContinuesAndAnotherMayFollow) {
  Ranks group = ranks();
  ASSERT_TRUE(group.session(1).flush(3));
  step(group, 0);
  step(group, 1);
  expect_left(group, 2);
  ASSERT_TRUE(group.session(1).flush(9));  // two to come: no effect
  step(group, 2);
  step(group, 3);
  expect_left(group, 0);
  step(group, 4);
  EXPECT_GT(group.session(0).stats().residual_norm, 0.0);
  ASSERT_TRUE(group.session(2).flush(1));
  step(group, 5);
  step(group, 6);
  EXPECT_EQ(group.session(0).stats().residual_norm, 0.0);
}

/// A state saved in the middle of it goes on with it, bit for bit.
TEST_P(Flush, FlushIsSavedInState) {
  Ranks group = ranks();
  Ranks resumed = ranks();
  ASSERT_TRUE(group.session(0).flush(3));
  step(group, 0);
  step(group, 1);
  for (uint32_t r = 0; r < kWorld; ++r) {
    auto to = resumed.session(r).active().store.entries().begin();
    for (const auto& e : group.session(r).active().store.entries()) {
      ASSERT_EQ(to->name, e.name);
      std::copy(e.values.begin(), e.values.end(), to->values.begin());
      ++to;
    }
  }
  expect_left(resumed, 2);
  for (uint64_t number = 2; number < 6; ++number) {
    for (const Layout* layout : {&front(), &back()}) {
      auto a = gradients(kWorld, layout->elements, number);
      auto b = a;
      for (const auto& r : group.exchange(*layout, a, number)) ASSERT_TRUE(r);
      for (const auto& r : resumed.exchange(*layout, b, number)) ASSERT_TRUE(r);
      EXPECT_EQ(std::memcmp(a[0].data(), b[0].data(), layout->elements * sizeof(float)), 0)
          << "step " << number;
    }
  }
}

TEST_P(Flush, NumbersOutOfRangeAreRefused) {
  Ranks group = ranks();
  EXPECT_EQ(group.session(0).flush(0).error().code, Errc::value_out_of_range);
  EXPECT_EQ(group.session(0).flush(65536).error().code, Errc::value_out_of_range);
  EXPECT_TRUE(group.session(0).flush(65535));
  step(group, 0);
  expect_left(group, 65535);
}

INSTANTIATE_TEST_SUITE_P(All, Flush,
                         testing::Values(std::tuple{"3lc", StrategyKind::two_shot},
                                         std::tuple{"even", StrategyKind::gather_all},
                                         std::tuple{"topk:ratio=0.1", StrategyKind::gather_all},
                                         std::tuple{"powersgd:rank=2", StrategyKind::native_sum},
                                         std::tuple{"fp16+ef", StrategyKind::native_sum},
                                         std::tuple{"thc:block=256", StrategyKind::server_sum},
                                         std::tuple{"bf16+ef", StrategyKind::native_sum}));

TEST(FlushWithoutFeedback, FlushDoesNothing) {
  Ranks group({"topk:ratio=0.1+noef", kWorld, kModel, StrategyKind::gather_all, 64, 1, kAllSums});
  ASSERT_TRUE(group.session(0).flush(3));
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 0U);
}

}  // namespace
}  // namespace laconic::test

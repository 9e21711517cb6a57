// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Payloads of varying length take about their length; one that exceeds its capacity costs only a
// repeat round.
#include <gtest/gtest.h>

#include <cstring>

#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{
    {"a", 300, 100}, {"bias", 50, 1}, {"b", 5000, 1}, {"c", 70, 900}};

/// Gradients of which 3lc makes few bytes (one spike) or many (all alike).
std::vector<std::vector<float>> shaped(uint32_t world, uint64_t n, uint64_t step, bool dense) {
  auto g = gradients(world, n, step);
  for (auto& rank : g) {
    for (size_t i = 0; i < rank.size(); ++i) {
      if (dense) rank[i] = rank[i] > 0 ? 1.0F + rank[i] : -1.0F + rank[i];
      if (!dense && i % 997 == 0) rank[i] = 100.0F;
    }
  }
  return g;
}

class Growing : public testing::TestWithParam<std::tuple<StrategyKind, uint32_t>> {};

TEST_P(Growing, OverflowIsRepeatedWithSameBits) {
  const auto [strategy, world] = GetParam();
  const test::Setup setup{"3lc+noef", world, kModel, strategy, 64, 1, kAllSums};
  Ranks settled(setup);
  Ranks fresh(setup);
  const Layout layout = back_to_back(kModel, {3, 2, 1, 0});
  for (uint64_t step = 0; step < 4; ++step) {  // learns small lengths
    auto g = shaped(world, layout.elements, step, false);
    for (const auto& r : settled.exchange(layout, g, step)) ASSERT_TRUE(r) << r.error().message;
  }
  const uint64_t before = settled.session(0).stats().counters.overflow_repeats;
  auto a = shaped(world, layout.elements, 9, true);
  auto b = a;
  for (const auto& r : settled.exchange(layout, a, 9)) ASSERT_TRUE(r) << r.error().message;
  for (uint64_t i = 0; i < 4;
       ++i) {  // brings the counter of exchanges level, at the bound's capacity
    auto g = shaped(world, layout.elements, 20 + i, true);
    for (const auto& r : fresh.exchange(layout, g, 20 + i)) ASSERT_TRUE(r) << r.error().message;
  }
  for (const auto& r : fresh.exchange(layout, b, 9)) ASSERT_TRUE(r) << r.error().message;
  EXPECT_GT(settled.session(0).stats().counters.overflow_repeats, before);
  for (uint32_t r = 0; r < world; ++r) {
    EXPECT_EQ(std::memcmp(a[r].data(), b[0].data(), layout.elements * sizeof(float)), 0)
        << "rank " << r;
  }
}

TEST_P(Growing, SteadyStateSendsAboutActualLength) {
  const auto [strategy, world] = GetParam();
  Ranks group({"3lc:s=1.75", world, kModel, strategy, 64, 1, kAllSums});
  const Layout layout = back_to_back(kModel, {0, 1, 2, 3});
  uint64_t bytes = 0;
  for (uint64_t step = 0; step < 30; ++step) {
    if (step == 20) bytes = group.session(0).stats().counters.wire_bytes;
    auto g = gradients(world, layout.elements, step);
    for (const auto& r : group.exchange(layout, g, step)) ASSERT_TRUE(r) << r.error().message;
  }
  const uint64_t steady = (group.session(0).stats().counters.wire_bytes - bytes) / 10;
  collective::Options options;
  options.world = world;
  options.small_elements = 64;
  const auto volume = collective::volume_of(*Spec::parse("3lc:s=1.75"), kModel, options, strategy);
  const uint64_t bound = collective::predicted_bytes(strategy, world, volume).at_most;
  EXPECT_LT(steady, bound / 3) << "the bound is 1.6 bits an element";
}

INSTANTIATE_TEST_SUITE_P(
    All, Growing,
    testing::Combine(testing::Values(StrategyKind::gather_all, StrategyKind::two_shot),
                     testing::ValuesIn(kOneWorld ? std::vector{2U} : std::vector{2U, 5U})));

TEST_P(Growing, ShortSendsAreExactAndKeepBits) {
  const auto [strategy, world] = GetParam();
  Ranks predicted({"3lc", world, kModel, strategy, 64, 1, kAllSums});
  Ranks exact({"3lc", world, kModel, strategy, 64, 1, kAllSums, true});
  const Layout layout = back_to_back(kModel, {3, 2, 1, 0});
  for (uint64_t step = 0; step < 12; ++step) {
    auto a = shaped(world, layout.elements, step, step % 3 == 2);
    auto b = a;
    for (const auto& r : predicted.exchange(layout, a, step)) ASSERT_TRUE(r) << r.error().message;
    for (const auto& r : exact.exchange(layout, b, step)) ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(std::memcmp(a[0].data(), b[0].data(), layout.elements * sizeof(float)), 0);
  }
  const auto counters = exact.session(0).stats().counters;
  EXPECT_EQ(counters.overflow_repeats, 0U);
  EXPECT_EQ(counters.rounds, 1 + (strategy == StrategyKind::two_shot ? 24U : 12U));
  EXPECT_LE(counters.wire_bytes, predicted.session(0).stats().counters.wire_bytes);
  EXPECT_EQ(counters.wire_bytes, exact.hub().sent_bytes(0)) << "counted is what is sent";
}

TEST(ExactSizes, ExactSizesNeedNoExtraRound) {
  for (const auto& [spec, strategy, rounds] :
       {std::tuple{"topk:ratio=0.1", StrategyKind::gather_all, 1U},
        std::tuple{"int8", StrategyKind::two_shot, 2U},
        std::tuple{"powersgd:rank=2", StrategyKind::native_sum, 2U},
        std::tuple{"randomk", StrategyKind::native_sum, 1U}}) {
    Ranks group({spec, 4, kModel, strategy, 64, 1, kAllSums});
    const Layout layout = back_to_back(kModel, {0, 1, 2, 3});
    for (uint64_t step = 0; step < 5; ++step) {
      auto g = gradients(4, layout.elements, step);
      for (const auto& r : group.exchange(layout, g, step)) ASSERT_TRUE(r);
    }
    EXPECT_EQ(group.session(0).stats().counters.rounds, 1 + 5U * rounds)  // 1: enrols the layout
        << spec;
  }
}

TEST(Threads, NumberOfThreadsNeverChangesAResult) {
  for (const char* spec : {"3lc", "3lc:scale=chunk", "topk:ratio=0.1", "int8:round=stochastic",
                           "powersgd", "sidco:ratio=0.05"}) {
    const std::vector<Parameter> model{{"a", 700, 300}, {"b", 5000, 1}};
    Ranks one({spec, 2, model, StrategyKind::automatic, 64, 1, kAllSums});
    Ranks three({spec, 2, model, StrategyKind::automatic, 64, 3, kAllSums});
    const Layout layout = back_to_back(model, {0, 1});
    for (uint64_t step = 0; step < 3; ++step) {
      auto a = gradients(2, layout.elements, step);
      auto b = a;
      for (const auto& r : one.exchange(layout, a, step)) ASSERT_TRUE(r);
      for (const auto& r : three.exchange(layout, b, step)) ASSERT_TRUE(r);
      EXPECT_EQ(std::memcmp(a[0].data(), b[0].data(), layout.elements * sizeof(float)), 0) << spec;
    }
  }
}

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/plan/model.h"

#include <gtest/gtest.h>

#include "collective/plan/capacity.h"

namespace laconic::collective {
namespace {

std::vector<Parameter> model() {
  return {{"fc1.weight", 1024, 64},
          {"fc1.bias", 1024, 1},
          {"fc2.weight", 1024, 1024},
          {"odd", 4099, 1},
          {"head", 10, 1024}};
}

Options options(uint32_t world, StrategyKind strategy = StrategyKind::automatic) {
  Options o;
  o.world = world;
  o.strategy = strategy;
  o.caps.sums = kAllSums;
  return o;
}

Choice choice(const std::string& spec, const Options& o) {
  auto c = choose_strategy(*Spec::parse(spec), model(), o);
  EXPECT_TRUE(c) << c.error().message;
  return c ? *c : Choice{};
}

TEST(Planner, ContractWorldAndBytesDecideStrategy) {
  EXPECT_EQ(choice("none", options(4)).strategy, StrategyKind::native_sum);
  EXPECT_EQ(choice("bf16", options(4)).strategy, StrategyKind::native_sum);
  EXPECT_EQ(choice("powersgd", options(4)).strategy, StrategyKind::native_sum);
  EXPECT_EQ(choice("topk:ratio=0.01", options(4)).strategy, StrategyKind::gather_all);
  EXPECT_EQ(choice("topk:ratio=0.1", options(64)).strategy, StrategyKind::two_shot);
  EXPECT_EQ(choice("3lc", options(4)).strategy, StrategyKind::two_shot);
  EXPECT_EQ(choice("int8", options(4)).strategy, StrategyKind::two_shot);
  EXPECT_EQ(choice("int8", options(2)).strategy, StrategyKind::gather_all);
}

TEST(Planner, OneRoundLessIsWorthSomeBytes) {
  const auto by_size = [](uint64_t elements) {
    return choose_strategy(*Spec::parse("int8"), {{"w", elements, 1}}, options(3))->strategy;
  };
  // At three ranks gather_all sends half as much again as two_shot: here 3 kB, there 700 kB.
  EXPECT_EQ(by_size(5000), StrategyKind::gather_all);
  EXPECT_EQ(by_size(1 << 20), StrategyKind::two_shot);
}

TEST(Planner, BytesThatLeaveAHostDecide) {
  const auto by_hosts = [](uint32_t ranks_per_host) {
    Options o = options(16);
    o.ranks_per_host = ranks_per_host;
    return choice("topk:ratio=0.005", o);
  };
  EXPECT_EQ(by_hosts(1).strategy, StrategyKind::gather_all);
  EXPECT_EQ(by_hosts(8).strategy, StrategyKind::two_shot);
  EXPECT_NE(by_hosts(8).reason.find("(bytes a host's 8 ranks are expected to send to other hosts"),
            std::string::npos)
      << by_hosts(8).reason;
  EXPECT_EQ(by_hosts(16).strategy, StrategyKind::gather_all) << "on one host as without hosts";
  EXPECT_EQ(by_hosts(16).reason, by_hosts(1).reason);
}

TEST(Planner, EngineWithoutAdditionGetsFrames) {
  Options o = options(4);
  o.caps.sums = 0b001;  // f32 only
  EXPECT_NE(choice("bf16", o).strategy, StrategyKind::native_sum);
}

TEST(Planner, QuantizedSumsMustFitElementsAndEngine) {
  const auto refusal = [](const char* spec, Options o) {
    auto c = choose_strategy(*Spec::parse(spec), model(), o);
    return c ? std::string() : c.error().message;
  };
  EXPECT_EQ(choice("thc", options(17)).strategy, StrategyKind::native_sum);
  EXPECT_EQ(refusal("thc:lane=8", options(17)), "");
  EXPECT_EQ(refusal("thc:lane=8", options(18)),
            "thc:lane=8: its elements hold sums of at most 17 ranks, there are 18");
  EXPECT_EQ(refusal("thc", options(4369)), "");
  EXPECT_EQ(refusal("thc", options(4370)),
            "thc: its elements hold sums of at most 4369 ranks, there are 4370");
  EXPECT_EQ(refusal("thc:bits=2,lane=8", options(85)), "");
  Options floats = options(4);
  floats.caps.sums = 0b111;
  EXPECT_EQ(refusal("thc", floats), "thc: this engine cannot sum int32 elements");
}

TEST(Planner, StrategiesAgainstContractAreRefused) {
  const auto refused = [](const char* spec, StrategyKind kind) {
    return choose_strategy(*Spec::parse(spec), model(), options(4, kind)).error();
  };
  EXPECT_EQ(refused("topk", StrategyKind::native_sum).code, Errc::unsupported);
  EXPECT_EQ(refused("powersgd", StrategyKind::two_shot).code, Errc::unsupported);
  EXPECT_NE(refused("powersgd", StrategyKind::gather_all).message.find("rounds"),
            std::string::npos);
}

TEST(Model, OwnersCoverEveryLargeParameterOnceInBlocks) {
  for (const uint32_t world : {2U, 3U, 4U, 7U, 8U}) {
    auto m = Model::create(*Spec::parse("int8:block=256"), model(),
                           options(world, StrategyKind::two_shot));
    ASSERT_TRUE(m);
    for (uint32_t p = 0; p < m->parameters().size(); ++p) {
      if (m->assignment(p).raw) continue;
      uint64_t at = 0;
      for (const Piece& piece : m->assignment(p).pieces) {
        EXPECT_EQ(piece.unit.offset, at);
        EXPECT_EQ(at % 256, 0U);
        EXPECT_LT(piece.owner, world);
        at += piece.unit.count;
      }
      EXPECT_EQ(at, m->parameters()[p].count());
    }
    EXPECT_TRUE(m->assignment(1).raw) << "1024 elements are few";
  }
}

TEST(Model, WholeParameterCodecsAreNeverCut) {
  auto m = Model::create(*Spec::parse("powersgd"), model(), options(4));
  ASSERT_TRUE(m);
  EXPECT_EQ(m->assignment(2).pieces.size(), 1U);
  EXPECT_EQ(m->assignment(2).pieces[0].unit.cols, 1024U);
}

TEST(Model, AgreementChangesWithEverythingThatMatters) {
  const auto agreement = [](const std::string& spec, std::vector<Parameter> p, Options o) {
    return Model::create(*Spec::parse(spec), std::move(p), o)->agreement();
  };
  const uint64_t base = agreement("3lc", model(), options(4));
  EXPECT_EQ(agreement("3lc", model(), options(4)), base);
  EXPECT_NE(agreement("3lc:s=1.5", model(), options(4)), base);
  EXPECT_NE(agreement("3lc", model(), options(3)), base);
  auto renamed = model();
  renamed[0].name = "fc1.weights";
  EXPECT_NE(agreement("3lc", renamed, options(4)), base);
  Options seeded = options(4);
  seeded.seed = 1;
  EXPECT_NE(agreement("3lc", model(), seeded), base);
  Options mine = options(4);
  mine.rank = 3;
  EXPECT_EQ(agreement("3lc", model(), mine), base) << "ranks agree";
}

/// Saved states are hashed with what was planned when one rank still compressed.
TEST(Model, OneRankKeepsItsAgreement) {
  const auto alone = [](const char* spec, StrategyKind strategy) {
    Options o = options(1, strategy);
    o.seed = 7;
    o.small_elements = 64;
    auto m = Model::create(*Spec::parse(spec), {{"w", 64, 80}, {"b", 17, 1}}, o);
    EXPECT_EQ(m->choice().strategy, StrategyKind::native_sum);
    EXPECT_TRUE(m->assignment(0).raw && m->assignment(0).pieces.empty());
    EXPECT_FALSE(m->feedback() || m->layout_matters());
    return m->agreement();
  };
  EXPECT_EQ(alone("3lc", StrategyKind::automatic), 13496816636224466067U);
  EXPECT_EQ(alone("3lc", StrategyKind::two_shot), 2604469044581502926U);
  EXPECT_EQ(alone("powersgd:rank=2", StrategyKind::automatic), 10354829913267519747U);
}

TEST(Model, ImpossibleArgumentsAreRefused) {
  auto twice = model();
  twice[1].name = twice[0].name;
  EXPECT_FALSE(Model::create(*Spec::parse("3lc"), twice, options(4)));
  Options outside = options(4);
  outside.rank = 4;
  EXPECT_FALSE(Model::create(*Spec::parse("3lc"), model(), outside));
  EXPECT_FALSE(
      Model::create(*Spec::parse("3lc"), {{"huge", uint64_t{1} << 40, 1 << 20}}, options(4)));
}

TEST(Model, PartsTooLargeForBundleAreRefused) {
  Options o = options(2, StrategyKind::gather_all);
  const auto result =
      Model::create(*Spec::parse("topk"), {{"embedding", uint64_t{1} << 20, 4096}}, o);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Errc::shape_unsupported);
  EXPECT_NE(result.error().message.find("embedding"), std::string::npos);
}

TEST(Model, WorldsTooLargeForHeaderAreRefused) {
  EXPECT_TRUE(Model::create(*Spec::parse("int8"), model(), options(kMaxWorld)));
  const auto refused = Model::create(*Spec::parse("int8"), model(), options(kMaxWorld + 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
}

/// The length of a lane segment has 32 bits, packing had 64: more than 4 GiB overran the buffer.
TEST(Model, ElementsTooWideForBundleAreRefused) {
  Options o = options(3, StrategyKind::gather_all);
  o.small_elements = uint64_t{1} << 40;
  const auto code = [&](uint64_t elements) {
    const auto made = Model::create(*Spec::parse("topk"), {{"w", elements, 1}}, o);
    return made ? Errc::ok : made.error().code;
  };
  EXPECT_EQ(code(kMaxSlotBytes / 4), Errc::ok);
  EXPECT_EQ(code(kMaxSlotBytes / 4 + 1), Errc::shape_unsupported);
  o.strategy = StrategyKind::native_sum;
  const auto bare = Model::create(*Spec::parse("bf16"), {{"w", kMaxSlotBytes, 1}}, o);
  EXPECT_TRUE(bare) << "lanes travel bare";
}

TEST(Model, UnindexableSparseUnitsAreRefusedByEveryStrategy) {
  const auto code = [&](const char* spec, uint64_t elements, StrategyKind strategy) {
    const auto made = Model::create(*Spec::parse(spec), {{"w", elements, 1}}, options(2, strategy));
    return made ? Errc::ok : made.error().code;
  };
  const uint64_t many = (uint64_t{1} << 32) + 1;
  EXPECT_EQ(code("randomk:ratio=0.001", many, StrategyKind::native_sum), Errc::shape_unsupported);
  EXPECT_EQ(code("topk:ratio=0.001", many, StrategyKind::gather_all), Errc::shape_unsupported);
  EXPECT_EQ(code("bf16", many, StrategyKind::native_sum), Errc::ok);
}

TEST(Capacity, ExactSizesKeepTheBound) {
  Capacity c(5000, true);
  c.saw(100);
  EXPECT_EQ(c.bytes(), 5000U);
}

TEST(Capacity, CapacityFollowsSeenLengthsWithMargin) {
  Capacity c(100000, false);
  EXPECT_EQ(c.bytes(), 100000U) << "nothing known: the bound";
  c.saw(10000);
  EXPECT_GT(c.bytes(), 10000U);
  EXPECT_LT(c.bytes(), 12000U);
  c.saw(15000);
  EXPECT_GT(c.bytes(), 20000U) << "it grew by half: expect as much again";
  for (int i = 0; i < 40; ++i) c.saw(15000);
  EXPECT_LT(c.bytes(), 17500U) << "growth is forgotten";
  c.saw(99999999);
  EXPECT_EQ(c.bytes(), 100000U) << "never above the bound";
  c.saw(0);
  EXPECT_GE(c.bytes(), kMinCapacity);
}

TEST(PredictedBytes, HeadersTablesAndSeenLengthsAreCounted) {
  Volume v;
  v.payload = 1000;
  v.expected = 400;
  v.raw = 200;
  v.units = 8;
  const auto sent = [&](StrategyKind kind, uint32_t world) {
    const Prediction p = predicted_bytes(kind, world, v);
    return std::pair{p.expected, p.at_most};
  };
  EXPECT_EQ(sent(StrategyKind::gather_all, 4),
            (std::pair{uint64_t{3 * (600 + 32 + 76)}, uint64_t{3 * (1200 + 32 + 76)}}));
  EXPECT_EQ(sent(StrategyKind::two_shot, 4),
            (std::pair{uint64_t{2 * 3 * (632 / 4 + 76)}, uint64_t{2 * 3 * (1232 / 4 + 76)}}));
  v.exact = false;  // the seen length in every owner's mean
  EXPECT_EQ(sent(StrategyKind::two_shot, 4).first, 2U * 3 * (632 / 4 + 76) + 3 * 4);
  v.exact = true;
  v.down = Prediction{100, 300};  // of means that have another codec
  EXPECT_EQ(sent(StrategyKind::two_shot, 4),
            (std::pair{uint64_t{3 * (632 / 4 + 76) + 3 * (332 / 4 + 76)},
                       uint64_t{3 * (1232 / 4 + 76) + 3 * (532 / 4 + 76)}}));
  v.down.reset();
  const auto leaves = [&](StrategyKind kind) { return predicted_bytes(kind, 6, v, 2).expected; };
  EXPECT_EQ(leaves(StrategyKind::gather_all), 2U * 4 * (600 + 32 + 76)) << "two ranks, to four";
  EXPECT_EQ(leaves(StrategyKind::two_shot), 2U * (632 * 4 / 6 + 4 * 76 + 4 * (632 / 6 + 76)));
  EXPECT_EQ(leaves(StrategyKind::native_sum), 2U * 5 * 600 / 6) << "a ring passes a port once";
  EXPECT_EQ(sent(StrategyKind::gather_all, 1).first, 0U);
  EXPECT_EQ(sent(StrategyKind::two_shot, 1).first, 0U);
}

}  // namespace
}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Settings that change between two steps: on all ranks in the same step, without loss or
// allocation, and the same again from a saved state.
#include <gtest/gtest.h>

#include <cmath>

#include "support/clocked.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> parameters{
      {"a.weight", 120, 40},
      {"b.weight", 61, 67},
      {"c.weight", 90, 33},
      {"bias", 9, 1},
      {"d.weight", 12, 50}};  // too small for PowerSGD's largest ranks
  return parameters;
}
const std::vector<uint32_t> kAll{4, 3, 2, 1, 0};

struct Case {
  std::string spec;
  StrategyKind strategy = StrategyKind::automatic;
  std::string schedule;  ///< goes up and down again
  bool short_sends = false;
};

/// Every codec with something to move, by every strategy that carries it; for ThreadSanitizer the
/// first of each way through an exchange.
std::vector<Case> cases() {
  const std::string ratio = "schedule:0=0.05,3=0.2,6=0.01,9=0.05";
  std::vector<Case> all{
      {"topk:ratio=0.05", StrategyKind::gather_all, ratio},
      {"topk:ratio=0.05", StrategyKind::two_shot, ratio},
      {"topk:ratio=0.05", StrategyKind::gather_all, ratio, true},
      {"randomk:ratio=0.05", StrategyKind::native_sum, ratio},
      {"powersgd:rank=2", StrategyKind::native_sum, "schedule:0=2,3=7,6=1,9=2"},
      {"powersgd:rank=4,warm=off", StrategyKind::native_sum, "schedule:0=4,3=16,6=2,9=4"},
      {"dgc:ratio=0.05", StrategyKind::gather_all, ratio},
      {"sidco:ratio=0.05", StrategyKind::gather_all, ratio},
      {"sidco:ratio=0.05", StrategyKind::two_shot, ratio},
      {"adaq:ratio=0.05", StrategyKind::gather_all, ratio},
      {"3lc", StrategyKind::two_shot, "schedule:0=1,3=1.9,6=1.2,9=1"},
      {"3lc", StrategyKind::gather_all, "schedule:0=1,3=1.9,6=1.2,9=1", true},
      {"qsgd", StrategyKind::gather_all, "schedule:0=64,3=3,6=127,9=64"},
      {"sketchml", StrategyKind::gather_all, "schedule:0=64,3=8,6=256,9=64"},
      {"inceptionn", StrategyKind::gather_all, "schedule:0=10,3=4,6=8,9=10"}};
  if (kOnlyDefaults) {
    std::erase_if(all, [](const Case& c) {
      return c.short_sends || c.spec.find(',') != std::string::npos ||
             !in_exchanges(c.spec.substr(0, c.spec.find(':')));
    });
  }
  return all;
}
/// The steps, of 12, that run under a sanitizer.
constexpr uint64_t kStride = kSanitized ? 5 : 1;

Setup setup(const Case& c, uint32_t world) {
  test::Setup made{c.spec, world, model(), c.strategy, 16, 1, kAllSums, c.short_sends};
  made.control = c.schedule;
  return made;
}

class Steered : public testing::TestWithParam<std::tuple<uint32_t, Case>> {
 protected:
  [[nodiscard]] static uint32_t world() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Case of() { return std::get<1>(GetParam()); }
};

double sum_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double x : values) sum += x;
  return sum;
}

/// Sum of the residuals, as a mean over ranks; an owner's residual stands for all.
double kept(Ranks& group) {
  double sum = 0;
  for (uint32_t r = 0; r < group.world(); ++r) {
    for (const auto& e : group.session(r).active().store.entries()) {
      const double weight = e.kind == feedback::StateKind::owner_residual ? group.world() : 1;
      if (e.kind != feedback::StateKind::residual && e.kind != feedback::StateKind::owner_residual)
        continue;
      for (const float x : e.values) sum += weight * static_cast<double>(x);
    }
  }
  return sum / group.world();
}

TEST_P(Steered, ReplicasStayEqualAndNothingIsLost) {
  Ranks group(setup(of(), world()));
  const Layout layout = back_to_back(model(), kAll);
  const bool conserves = group.session(0).model().spec().memory().kind == MemoryKind::residual;
  std::vector<uint64_t> bytes;
  double in = 0, out = 0, magnitude = 0;
  for (uint64_t step = 0; step < 14; ++step) {
    auto buffers = gradients(world(), layout.elements, step + 1);
    const auto mean = exact_mean(buffers);
    in += sum_of(mean);
    for (const double x : mean) magnitude += std::abs(x);
    const uint64_t before = group.session(0).stats().counters.wire_bytes;
    for (const auto& result : group.exchange(layout, buffers, step))
      ASSERT_TRUE(result) << result.error().message;
    bytes.push_back(group.session(0).stats().counters.wire_bytes - before);
    for (uint32_t r = 1; r < world(); ++r) ASSERT_TRUE(same_bits(buffers[0], buffers[r]));
    for (const float x : buffers[0]) out += static_cast<double>(x);
  }
  EXPECT_EQ(group.session(0).stats().setting_changes, 3U);
  if (conserves) {
    EXPECT_NEAR(in, out + kept(group), 2e-5 * magnitude);
  }
  EXPECT_NE(bytes[5], bytes[2]);  // what travels has changed, and changes back
  if (group.session(0).model().spec().contract().exact_size) {
    EXPECT_EQ(bytes[13], bytes[2]);
  }
}

/// Policies keep the strategy of the first setting: where that gathers, they end where the planner
/// would have owners compute the means. Bounds by the call of one rank among `world`.
TEST(Bounds, GatheredSettingEndsWherePlannerLeavesIt) {
  const std::vector<Parameter> whole{{"a.weight", 1200, 400}, {"other", 80, 80}, {"bias", 9, 1}};
  const auto options = [](uint32_t world, StrategyKind asked = StrategyKind::automatic) {
    collective::Options made;
    made.world = world;
    made.strategy = asked;
    return made;
  };
  const auto most = [&](const std::string& spec, const collective::Options& asked) {
    const auto session = session::Session::create(spec, whole, asked, {}, "dc2");
    EXPECT_TRUE(session) << session.error().message;
    return (*session)->active().steering->run().rules[0].range->max;
  };
  const auto gathers = [&](const std::string& spec, uint32_t world) {
    const auto parsed = Spec::parse(spec);
    if (!parsed) return false;
    const auto made = collective::Model::create(*parsed, whole, options(world));
    return made->choice().strategy == StrategyKind::gather_all;
  };
  for (const uint32_t world : {4U, 8U, 16U}) {
    const double found = most("topk:ratio=0.005", options(world));
    EXPECT_LT(found, 0.08) << world;
    EXPECT_TRUE(gathers("topk:ratio=" + std::to_string(found), world)) << found;
    EXPECT_FALSE(gathers("topk:ratio=" + std::to_string(1.02 * found), world)) << found;
    const double keep = most("blocktopk:block=4096,keep=16", options(world));
    if (world == 4) {
      EXPECT_EQ(keep, 256);  // gathered to the end
      continue;
    }
    EXPECT_TRUE(gathers("blocktopk:keep=" + std::to_string(static_cast<int>(keep)), world));
    EXPECT_FALSE(gathers("blocktopk:keep=" + std::to_string(static_cast<int>(keep) + 1), world));
  }
  EXPECT_EQ(most("topk:ratio=0.01", options(2)), 0.25);   // two always gather
  EXPECT_EQ(most("topk:ratio=0.01", options(64)), 0.25);  // by owners from the start
  EXPECT_EQ(most("topk:ratio=0.01", options(8, StrategyKind::gather_all)), 0.125);
  Rule moves;
  moves.match = "other";
  moves.spec = "topk:ratio=0.01";
  moves.control = "dc2";
  const auto still =
      session::Session::create("topk:ratio=0.005", whole, options(8), std::vector{moves}, "fixed");
  ASSERT_TRUE(still) << still.error().message;
  EXPECT_EQ((*still)->model().spec().canonical(), "topk:ratio=0.005");
}

/// A schedule's step is the one in which the value holds, on every rank.
TEST(Schedule, SettingAppliesFromItsStep) {
  test::Setup made{"topk:ratio=0.05", 2, model(), StrategyKind::gather_all, 16};
  made.control = "schedule:0=0.04,3=0.2,4=0.1,9=0.01";
  Ranks group(made);
  const Layout layout = back_to_back(model(), kAll);
  const std::map<uint64_t, double> points{{0, 0.04}, {3, 0.2}, {4, 0.1}, {9, 0.01}};
  for (uint64_t step = 0; step < 12; ++step) {
    auto buffers = gradients(2, layout.elements, step + 1);
    for (const auto& result : group.exchange(layout, buffers, step)) ASSERT_TRUE(result);
    const double wanted = std::prev(points.upper_bound(step))->second;
    for (uint32_t r = 0; r < 2; ++r) {
      const Spec& spec = group.session(r).model().spec();
      EXPECT_FLOAT_EQ(static_cast<float>(spec.codec().fields[0].get(spec.params())),
                      static_cast<float>(wanted))
          << "step " << step;
    }
  }
}

/// The engine fails in the step in which a change comes into force, and in each batch of it: what
/// was not delivered is in the residuals, whose plans are the new ones.
TEST(Schedule, LostPeerInStepOfChangeLosesNothing) {
  const std::vector<Case> all{
      {"topk:ratio=0.05", StrategyKind::gather_all, "schedule:0=0.05,3=0.25"},
      {"topk:ratio=0.05", StrategyKind::two_shot, "schedule:0=0.05,3=0.25"},
      {"3lc", StrategyKind::two_shot, "schedule:0=1,3=1.9"},
      {"powersgd:rank=2", StrategyKind::native_sum, "schedule:0=2,3=7"}};
  const Layout layout = back_to_back(model(), kAll);
  for (const Case& c : all) {
    for (uint32_t failing = 0; failing < (c.strategy == StrategyKind::gather_all ? 1U : 2U);
         ++failing) {
      Ranks group(setup(c, 3));
      for (uint64_t step = 0; step < 3; ++step) {
        auto buffers = gradients(3, layout.elements, step + 1);
        for (const auto& result : group.exchange(layout, buffers, step)) ASSERT_TRUE(result);
      }
      const double before = kept(group);
      auto buffers = gradients(3, layout.elements, 4);
      double lost = 0;
      for (size_t i = 0; i < layout.parameters.size(); ++i) {
        if (model()[layout.parameters[i]].name == "bias") continue;  // it has no residual
        const auto mean = exact_mean(buffers);
        for (uint64_t k = 0; k < model()[layout.parameters[i]].count(); ++k)
          lost += mean[layout.offsets[i] + k];
      }
      group.on_all([&](uint32_t r) {
        const auto until = [&](std::span<Step>, uint32_t number) { return number != failing; };
        const auto failed = group.drive(r, layout, buffers[r], 3, {.issues = until});
        ASSERT_FALSE(failed);
        EXPECT_EQ(failed.error().code, Errc::engine_failed) << failed.error().message;
        EXPECT_EQ(group.session(r).active().version(), 1U);
      });
      EXPECT_NEAR(kept(group), before + lost, 1e-4) << c.spec << " batch " << failing;
    }
  }
}

/// A rank whose settings are others (a fault in memory, say) is refused where the bundles differ.
TEST(Schedule, OtherSettingsAreRefused) {
  test::Setup made{"3lc", 2, model(), StrategyKind::gather_all, 16};  // of one length by any s
  made.control = "schedule:0=1,2=1.9,9=1";
  Ranks group(made);
  const Layout layout = back_to_back(model(), kAll);
  for (uint64_t step = 0; step < 8; ++step) {
    auto buffers = gradients(2, layout.elements, step + 1);
    if (step == 4) {  // rank 1 goes on from another past
      for (const auto& e : group.session(1).active().store.entries()) {
        if (e.name != "control/laws") continue;
        for (const auto& other : group.session(0).active().store.entries()) {
          if (other.name == e.name) std::ranges::copy(other.values, e.values.begin());
        }
        e.values[4] += 7;  // steps: the schedule's point has passed
      }
    }
    const auto results = group.exchange(layout, buffers, step);
    for (const auto& result : results) {
      if (step < 4) {
        ASSERT_TRUE(result) << result.error().message;
      }
    }
    if (!results[0]) {
      for (const auto& result : results)
        EXPECT_NE(result.error().message.find("agreement"), std::string::npos)
            << result.error().message;
      const std::string where =
          ", in step " + std::to_string(step) + " with this rank's settings 1";
      EXPECT_TRUE(results[0].error().message.ends_with(where)) << results[0].error().message;
      return;
    }
  }
  ADD_FAILURE() << "ranks with other settings went on";
}

/// A step's payload is that of a session which never had another setting: only what is remembered
/// differs. Without feedback, and with a codec that draws nothing from before, all bits are.
TEST_P(Steered, StepUsesItsSetting) {
  const Case c = of();
  const auto plain_spec = Spec::parse(c.spec + "+noef");
  if (!plain_spec || plain_spec->memory().kind != MemoryKind::none) return;
  Case without = c;
  without.spec += "+noef";
  // Thresholds and warm starts follow what was before.
  if (c.spec.starts_with("sidco") || c.spec == "powersgd:rank=2") return;
  Ranks group(setup(without, world()));
  const Layout layout = back_to_back(model(), kAll);
  for (uint64_t step = 0; step < 12; ++step) {
    auto buffers = gradients(world(), layout.elements, step + 1);
    auto same = buffers;
    for (const auto& result : group.exchange(layout, buffers, step)) ASSERT_TRUE(result);
    if (step % kStride != 0) continue;
    test::Setup fixed = setup(without, world());
    fixed.control.clear();
    fixed.spec = group.session(0).model().spec().moved_text();
    Ranks other(fixed);
    for (const auto& result : other.exchange(layout, same, step)) ASSERT_TRUE(result);
    ASSERT_TRUE(same_bits(buffers[0], same[0])) << fixed.spec << " in step " << step;
  }
}

TEST_P(Steered, SavedRunContinues) {
  const Layout layout = back_to_back(model(), kAll);
  const auto run = [&](Ranks& group, uint64_t from, uint64_t to) {
    std::vector<std::vector<float>> last;
    for (uint64_t step = from; step < to; ++step) {
      last = gradients(world(), layout.elements, step + 1);
      for (const auto& result : group.exchange(layout, last, step)) EXPECT_TRUE(result);
    }
    return last;
  };
  // A change is in force, or decided.
  for (const uint64_t stop :
       kSanitized ? std::vector<uint64_t>{5} : std::vector<uint64_t>{4, 5, 7}) {
    Ranks whole(setup(of(), world()));
    run(whole, 0, stop);
    Ranks resumed(setup(of(), world()));
    for (uint32_t r = 0; r < world(); ++r) {
      const auto& theirs = resumed.session(r).active().store.entries();
      const auto& ours = whole.session(r).active().store.entries();
      ASSERT_EQ(theirs.size(), ours.size());
      for (size_t i = 0; i < ours.size(); ++i) {
        ASSERT_EQ(theirs[i].name, ours[i].name);
        std::ranges::copy(ours[i].values, theirs[i].values.begin());
      }
    }
    // Reports of the last step are not saved; this policy depends on the step number alone.
    const auto a = run(whole, stop, 12);
    const auto b = run(resumed, stop, 12);
    EXPECT_TRUE(same_bits(a[0], b[0])) << "saved before step " << stop;
    EXPECT_EQ(whole.session(0).model().spec().moved_text(),
              resumed.session(0).model().spec().moved_text());
  }
}

std::string case_name(const testing::TestParamInfo<Steered::ParamType>& info) {
  std::string name = std::get<1>(info.param).spec + "_" +
                     std::string(collective::strategy_name(std::get<1>(info.param).strategy)) +
                     "_" + std::to_string(std::get<0>(info.param)) +
                     (std::get<1>(info.param).short_sends ? "_short" : "");
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}
INSTANTIATE_TEST_SUITE_P(All, Steered,
                         testing::Combine(testing::ValuesIn(kOneWorld
                                                                ? std::vector<uint32_t>{2}
                                                                : std::vector<uint32_t>{2, 3}),
                                          testing::ValuesIn(cases())),
                         case_name);

// ---- DC2-R, with its own clock ----

/// A simulated network with this many bytes per second, as all ranks' clocks measure it.
class Dc2 : public testing::Test {
 protected:
  static constexpr uint32_t kWorld = 3;
  void run(Ranks& group, uint64_t steps, double bytes_in_a_second) {
    for (uint64_t i = 0; i < steps; ++i, ++step_) {
      auto buffers = gradients(kWorld, layout_.elements, step_ + 1);
      group.on_all([&](uint32_t r) {
        const auto done = drive_clocked(group, r, layout_, buffers[r], step_, [&](double sent) {
          return sent / bytes_in_a_second + (r == 1 ? late_ : 0);
        });
        ASSERT_TRUE(done) << done.error().message;
        clocks_[r] = static_cast<double>(step_) + 1;
      });
      for (uint32_t r = 1; r < kWorld; ++r) ASSERT_TRUE(same_bits(buffers[0], buffers[r]));
    }
  }
  test::Setup steered(const std::string& control) {
    test::Setup made{"topk:ratio=0.05", kWorld, model(), StrategyKind::gather_all, 16};
    made.control = control;
    made.now = [this](uint32_t r) { return clocks_[r]; };
    return made;
  }
  static double ratio(Ranks& group, uint32_t r = 0) {
    const Spec& spec = group.session(r).model().spec();
    return spec.codec().fields[0].get(spec.params());
  }

  Layout layout_ = back_to_back(model(), kAll);
  std::array<double, kWorld> clocks_{};
  uint64_t step_ = 0;
  double late_ = 0;
};

TEST_F(Dc2, DecisionsFollowNetwork) {
  Ranks group(steered("dc2"));
  run(group, 60, 1e6);
  const double start = ratio(group);
  EXPECT_GT(start, 0.03);
  EXPECT_LT(start, 0.1);
  run(group, 60, 1e5);
  EXPECT_LT(ratio(group), start / 4);
  for (uint32_t r = 1; r < kWorld; ++r) EXPECT_EQ(ratio(group), ratio(group, r));
  EXPECT_GT(group.session(0).stats().setting_changes, 1U);
  if (kSanitized) return;
  run(group, 200, 1e6);
  EXPECT_GT(ratio(group), start / 2);
  EXPECT_GT(group.session(0).stats().setting_changes, 8U);
  EXPECT_EQ(group.session(0).stats().held_steps, 0U);
}

/// A slow rank is not a slow network.
TEST_F(Dc2, StragglerChangesNoDecision) {
  Ranks group(steered("dc2"));
  run(group, 60, 1e6);
  const double start = ratio(group);
  late_ = 0.2;
  run(group, kSanitized ? 20 : 100, 1e6);
  EXPECT_GT(ratio(group), start / 1.5);
}

TEST_F(Dc2, RefusalsAreCompleteMessages) {
  const auto refused = [&](const std::string& spec, const std::string& control,
                           std::vector<Rule> rules = {}, uint64_t small_elements = 16) {
    collective::Options o;
    o.world = 2;
    o.small_elements = small_elements;
    o.caps.sums = kAllSums;
    const auto made = Session::create(spec, model(), o, rules, control);
    return made ? std::string() : made.error().message;
  };
  EXPECT_EQ(refused("topk", "dc2"), "");
  EXPECT_EQ(refused("topk", "fixed"), "");
  EXPECT_EQ(refused("fp16", "fixed"), "");
  EXPECT_NE(refused("fp16", "dc2").find("nothing to change"), std::string::npos);
  EXPECT_NE(refused("thc:bits=4", "dc2").find("'thc' cannot change its keys"), std::string::npos);
  EXPECT_NE(refused("thc:bits=3", "schedule:0=3").find("how elements add"), std::string::npos);
  EXPECT_NE(refused("powersgd:rank=2", "dc2", {}, 1U << 30U).find("none of these parameters"),
            std::string::npos);
  EXPECT_EQ(refused("powersgd", "dc2"), "");
  EXPECT_NE(refused("topk", "dc3").find("dc3"), std::string::npos);
  EXPECT_NE(refused("topk", "dc2:min=0.2,max=0.1"), "");
  EXPECT_NE(refused("topk", "replay:no/such.jsonl").find("cannot read it"), std::string::npos);
  Rule own;
  own.match = "a.*";
  own.spec = "fp16";
  EXPECT_EQ(refused("topk", "dc2", {own}), "");  // it moves what can be moved
  own.control = "dc2";
  EXPECT_NE(refused("topk", "", {own}).find("nothing to change"), std::string::npos);
}

TEST_F(Dc2, DamagedStateIsRefusedOnAllRanksAndTrainingContinues) {
  Ranks group(steered("dc2"));
  run(group, 3, 1e6);
  for (uint32_t r = 0; r < kWorld; ++r) {
    for (const auto& e : group.session(r).active().store.entries()) {
      if (e.name == "control/laws") e.values[5] = 0.5F;
    }
  }
  auto buffers = gradients(kWorld, layout_.elements, 9);
  for (const auto& result : group.exchange(layout_, buffers, step_)) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("state of the control"), std::string::npos);
  }
}

}  // namespace
}  // namespace laconic::test

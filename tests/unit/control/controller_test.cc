// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/controller.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "support/control_loop.h"

namespace laconic::control {
namespace {

struct Params {
  double x = 0;
};
Field field(FieldType type, double min, double max, bool max_open = false) {
  Field f = real_field<&Params::x>("x", 1, min, max, "", max_open);
  f.type = type;
  return f;
}
Range ratio(double start = 0.01) {
  return range_of(field(FieldType::real, 1e-9, 1).controlled(Sends::more, Growth::log, 0.001, 0.25),
                  start, 2);
}
Range rank_of_a_factor(double start = 4) {
  return range_of(field(FieldType::integer, 1, 64).controlled(Sends::more, Growth::step, 1, 16),
                  start, 8);
}
Range sparsity() {
  return range_of(field(FieldType::real, 1, 2, true).controlled(Sends::less, Growth::log, 1, 1.9),
                  1.5, 8);
}
Range levels() {
  return range_of(field(FieldType::integer, 1, 32767).controlled(Sends::more, Growth::log, 1, 127),
                  64, 8);
}

Observation seen_at(uint64_t step, double network_s, uint64_t bytes = 1000000) {
  const std::vector<Figures> ranks{{network_s, 0, 0, 0.2 + network_s, 1}};
  return observe(step, ranks, bytes);
}

std::string refusal(std::vector<Controlled> rules) {
  const auto made = Controller::create(std::move(rules));
  return made ? "" : made.error().message;
}

TEST(Range, MovesStayInsideAndIntegersMoveByAtLeastOne) {
  EXPECT_EQ(shrunk(ratio(), 0.01, 0.5), 0.005);
  EXPECT_EQ(shrunk(ratio(), 0.0015, 0.5), 0.001);
  EXPECT_DOUBLE_EQ(grown(ratio(), 0.01, 0.1), 0.011);
  EXPECT_EQ(grown(ratio(), 0.24, 0.1), 0.25);
  EXPECT_EQ(shrunk(rank_of_a_factor(), 7, 0.5), 3);
  EXPECT_EQ(shrunk(rank_of_a_factor(), 2, 0.9), 1);
  EXPECT_EQ(grown(rank_of_a_factor(), 7, 0.1), 8);
  EXPECT_EQ(grown(rank_of_a_factor(), 16, 0.1), 16);
  EXPECT_EQ(grown(levels(), 64, 0.1), 70);
  EXPECT_EQ(grown(levels(), 3, 0.1), 4);
  EXPECT_EQ(shrunk(sparsity(), 1.2, 0.5), 1.9);  // larger sends less
  EXPECT_DOUBLE_EQ(grown(sparsity(), 1.32, 0.1), 1.2);
  EXPECT_EQ(most(sparsity()), 1);
  EXPECT_EQ(least(sparsity()), 1.9);
}

TEST(Range, GatheringSendsAtMostAnAllReduce) {
  const Field f = field(FieldType::real, 1e-9, 1).controlled(Sends::more, Growth::log, 0.001, 0.25);
  EXPECT_EQ(range_of(f, 0.01, 2).max, 0.25);
  EXPECT_EQ(range_of(f, 0.01, 8).max, 0.125);
  EXPECT_EQ(range_of(f, 0.3, 8).max, 0.3);  // where the user begins
  EXPECT_EQ(range_of(f, 1e-5, 8).min, 1e-5);
  EXPECT_EQ(range_of(f, 0.01, 1).max, 0.25);  // summed by the engine
}

TEST(Controller, ContradictoryControlIsRefused) {
  const std::vector<std::pair<std::string, std::string>> cases{
      {"dc2:min=0.25,max=0.001", "control 'dc2:min=0.25,max=0.001': min=0.25 is above max=0.001"},
      {"dc2:mean=0.3", "control 'dc2:mean=0.3': mean=0.3 is above max=0.25"},
      {"dc2:mean=0.0001", "control 'dc2:mean=1e-4': mean=1e-4 is below min=0.001"},
      {"dc2:max=2", "control 'dc2:max=2': x does not accept max=2"},
      {"dc2:min=0.02",
       "control 'dc2:min=0.02': the spec's x=0.01 is not between min=0.02 and max=0.25"},
      {"schedule:0=2", "control 'schedule:0=2': x does not accept 2"},
      {"dc3", "unknown control 'dc3'"},
  };
  for (const auto& [text, message] : cases) {
    EXPECT_EQ(refusal({{text, false, "topk", ratio()}}), message);
  }
  EXPECT_EQ(refusal({{"dc2:max=2.5", false, "powersgd", rank_of_a_factor(2)}}),
            "control 'dc2:max=2.5': x does not accept max=2.5");
  EXPECT_EQ(refusal({{"dc2", false, "fp16", {}}}),
            "control 'dc2' has nothing to change: 'fp16' has no setting that can change "
            "during training");
}

TEST(Controller, DefaultControlAppliesToRulesWithActuators) {
  const auto made = Controller::create({{"dc2", true, "fp16", {}}, {"dc2", true, "topk", ratio()}});
  ASSERT_TRUE(made) << made.error().message;
  EXPECT_EQ(made->text(0), "fixed");
  EXPECT_EQ(made->text(1), "dc2");
  EXPECT_FALSE(made->bounds(0));
  EXPECT_EQ(refusal({{"dc2", true, "fp16", {}}}).substr(0, 35),
            "control 'dc2' has nothing to change");
  EXPECT_EQ(refusal({{"fixed", true, "fp16", {}}}), "");
}

TEST(Controller, TargetIsLowerQuartileOfFirstTwentySteps) {
  auto made = Controller::create({{"dc2", false, "topk", ratio()}});
  for (uint64_t step = 1; step <= 20; ++step) {
    EXPECT_EQ(made->target(0), 0);
    EXPECT_TRUE(made->observe(seen_at(step, 0.001 * static_cast<double>(21 - step))).empty());
  }
  EXPECT_EQ(made->target(0), 0.005);
}

TEST(Controller, TargetMayBeShareOfRestOfStep) {
  for (const auto& [options, target] :
       {std::pair{"", 0.066}, {",share=1", 0.2}, {",share=2", 0.4}}) {
    auto made =
        Controller::create({{std::string("dc2:target=compute") + options, false, "topk", ratio()}});
    for (uint64_t step = 1; step <= 20; ++step) made->observe(seen_at(step, 0.1));
    EXPECT_NEAR(made->target(0), target, 1e-12) << options;
  }
}

TEST(Controller, LearningPhaseSendsLess) {
  // 200 ms of the step are not the network's: a target of 100 ms.
  struct Case {
    std::string target;
    double network_s;
    uint64_t moves;  // step of the first move
    double to;
  };
  for (const Case& c :
       {Case{"compute,share=0.5", 0.16, 5, 0.005}, Case{"compute,share=0.5", 0.14, 0, 0},
        Case{"compute,share=0.5", 0.01, 25, 0.02}, Case{"start", 0.16, 25, 0.01 / 0.731072}}) {
    auto made = Controller::create({{"dc2:target=" + c.target, false, "topk", ratio()}});
    uint64_t moved = 0;
    double to = 0;
    for (uint64_t step = 1; step <= 25 && moved == 0; ++step) {
      // The time of the first steps is its own target: something to grow by.
      const double network_s = c.target == "start" && step > 20 ? c.network_s * 0.6 : c.network_s;
      if (!made->observe(seen_at(step, network_s)).empty()) {
        moved = step;
        to = made->value(0);
      }
      EXPECT_EQ(made->target(0) > 0, step >= 20) << step;
    }
    EXPECT_EQ(moved, c.moves) << c.target << c.network_s;
    EXPECT_NEAR(to, c.to, 1e-9) << c.target << c.network_s;
  }
}

TEST(Controller, LearningPhaseHalvesOnceAtATime) {
  auto made = Controller::create({{"dc2:target=compute,share=0.5", false, "topk", ratio()}});
  for (uint64_t step = 1; step <= 7; ++step) made->observe(seen_at(step, step < 6 ? 0.14 : 0.9));
  EXPECT_DOUBLE_EQ(made->value(0), 0.005);  // two steps of nine times the target would be an eighth
}

TEST(Controller, TargetIsLearnedFromTwentyStepsDespiteMoves) {
  auto made = Controller::create({{"dc2:target=compute,share=1", false, "topk", ratio()}});
  // The rest of the step: 20, 19, … 1 ms; their lower quartile is 5.
  uint64_t samples = 0;
  for (uint64_t step = 1; made->target(0) == 0; ++step) {
    ASSERT_LE(step, 20U);
    const double rest = 0.001 * static_cast<double>(20 - samples++);
    const std::vector<Figures> ranks{{0.02, 0, 0, 0.02 + rest, 1}};
    made->observe(observe(step, ranks, 1000000));
  }
  EXPECT_DOUBLE_EQ(made->target(0), 0.005);
  EXPECT_LT(made->value(0), 0.01);
}

/// Reports of steps `from` to `to`.
void observe_all(Controller& laws, uint64_t from, uint64_t to, double network_s) {
  for (uint64_t step = from; step <= to; ++step) laws.observe(seen_at(step, network_s));
}
Result<Controller> at_100_ms(const std::string& options = "") {
  return Controller::create({{"dc2:deadline_ms=100" + options, false, "topk", ratio()}});
}

TEST(Controller, SettingHalvesAboveOneAndAHalfAndGrowsBelowOnePointOne) {
  struct Case {
    double network_s;
    double to;
  };
  for (const Case& c : {Case{0.151, 0.005}, Case{0.149, 0.01}, Case{0.111, 0.01},
                        Case{0.109, 0.011}, Case{0.05, 0.011}}) {
    auto made = at_100_ms();
    const auto decisions = made->observe(seen_at(1, c.network_s));
    EXPECT_DOUBLE_EQ(made->value(0), c.to) << c.network_s;
    ASSERT_EQ(decisions.size(), c.to == 0.01 ? 0U : 1U);
    // The next four steps change nothing.
    const double value = made->value(0);
    for (uint64_t step = 2; step <= 5; ++step) {
      EXPECT_TRUE(made->observe(seen_at(step, c.network_s)).empty());
    }
    EXPECT_EQ(made->value(0), value);
    EXPECT_EQ(made->observe(seen_at(6, c.network_s)).empty(), c.to <= 0.01);
  }
}

TEST(Controller, HalvingHalvesRAndDiscardsOlderReports) {
  struct Case {
    double then_s;  // what steps take that it holds in
    double to;
  };
  // r is 1.6, then 0.8; after the reports of steps 4, 5 and 6 it is 0.8 + 0.488 (T/τ - 0.8).
  for (const Case& c : {Case{0.08, 0.005 / 0.8}, Case{0.141, 0.0055}, Case{0.142, 0.005},
                        Case{0.223, 0.005}, Case{0.224, 0.0025}}) {
    auto made = at_100_ms();
    made->observe(seen_at(1, 0.16));
    EXPECT_DOUBLE_EQ(made->value(0), 0.005);
    observe_all(*made, 2, 3, 100);
    observe_all(*made, 4, 6, c.then_s);
    EXPECT_NEAR(made->value(0), c.to, 1e-12) << c.then_s;
  }
}

TEST(Controller, SettingFallsAsFarAsLastTwoStepsAgree) {
  struct Case {
    std::array<double, 2> network_s;
    double to;
  };
  for (const Case& c : {Case{{0.31, 0.4}, 0.0025},  // half of it would leave 1.55 of the target
                        Case{{0.31, 0.3}, 0.01},  // 1.5: no longer slow; the update is a step later
                        Case{{0.29, 0.9}, 0.01},  // one of them does not agree
                        Case{{1, 1}, 0.00125},    // 10, 5, 2.5, 1.25
                        Case{{100, 100}, 0.001}}) {  // the bound
    auto made = at_100_ms();
    observe_all(*made, 1, 3, 0.12);
    for (uint64_t i = 0; i < 2; ++i) made->observe(seen_at(4 + i, c.network_s[i]));
    EXPECT_DOUBLE_EQ(made->value(0), c.to) << c.network_s[0];
    if (c.to == 0.01) continue;
    // Reports on the steps before it holds are not about it, nor is the slowdown so far.
    observe_all(*made, 6, 7, c.network_s[0]);
    observe_all(*made, 8, 11, 0.12);
    EXPECT_DOUBLE_EQ(made->value(0), c.to);
  }
}

TEST(Controller, SettingGrowsByWhatRAndLastThreeStepsLeave) {
  struct Case {
    std::array<double, 6> network_s;
    double to;
  };
  for (const Case& c :
       {Case{{0.02, 0.02, 0.02, 0.03, 0.06, 0.05}, 0.011 / 0.6},  // one of them: 0.6 of the target
        Case{{0.02, 0.02, 0.02, 0.02, 0.02, 0.02}, 0.022},        // twice, not five times as much
        Case{{0.12, 0.12, 0.12, 0.03, 0.03, 0.051}, 0.01 / 0.8028},  // r, which remembers
        Case{{0.12, 0.12, 0.12, 0.03, 0.03, 0.05}, 0.02},  // all within half: no trend any more
        Case{{0.14, 1.6, 0.05, 0.05, 0.05, 0.05}, 0.02},   // though r is 2.1
        Case{{0.02, 0.02, 0.02, 0.02, 0.02, 0.105}, 0.0121}}) {  // a tenth in any case
    auto made = at_100_ms();
    for (uint64_t i = 0; i < 6; ++i) made->observe(seen_at(i + 1, c.network_s[i]));
    EXPECT_NEAR(made->value(0), c.to, 1e-9) << c.network_s[3];
  }
  // A step without a report leaves nothing.
  auto made = at_100_ms();
  for (const uint64_t step : {1U, 2U, 3U, 4U, 6U}) made->observe(seen_at(step, 0.02));
  EXPECT_DOUBLE_EQ(made->value(0), 0.0121);
  // Nor do the others say that r, which is 2.1, is out of date.
  made = at_100_ms();
  for (const uint64_t step : {1U, 2U, 3U, 4U, 6U})
    made->observe(seen_at(step, step == 1 ? 0.14 : step == 2 ? 1.6 : 0.05));
  EXPECT_DOUBLE_EQ(made->value(0), 0.005);
}

TEST(Controller, SettingDoublesUpToWhereTimesRose) {
  const auto near = [](const std::vector<double>& found, const std::vector<double>& expected) {
    ASSERT_EQ(found.size(), expected.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], 1e-12) << i;
  };
  // Times that hardly depend on what is sent leave r no range.
  const auto values = [](Controller& laws, uint64_t from, double network_s, int updates) {
    std::vector<double> found;
    for (int i = 0; i < updates; ++i, from += 5) {
      observe_all(laws, from, from + 4, network_s);
      found.push_back(laws.value(0));
    }
    return found;
  };
  auto made = at_100_ms();
  observe_all(*made, 1, 6, 0.12);  // 0.01 is not slow
  observe_all(*made, 7, 8, 1);
  EXPECT_DOUBLE_EQ(made->value(0), 0.00125);
  const double tenth = 1 / 0.9;
  near(values(*made, 9, 0.09, 4), {0.0025, 0.005, 0.01, 0.01 * tenth});

  // Slow again immediately: it is not the network.
  made = at_100_ms();
  observe_all(*made, 1, 6, 0.12);
  observe_all(*made, 7, 8, 1);
  near(values(*made, 9, 0.09, 3), {0.0025, 0.005, 0.01});
  near(values(*made, 24, 0.16, 2), {0.01, 0.005});
  near(values(*made, 34, 0.09, 2), {0.005 * tenth, 0.005 * tenth * tenth});

  // A tenth more, which no update has looked at yet, is not why.
  made = at_100_ms();
  observe_all(*made, 1, 6, 0.105);
  EXPECT_NEAR(made->value(0), 0.0121, 1e-12);
  observe_all(*made, 7, 8, 1);
  near(values(*made, 9, 0.09, 3), {0.0121 / 4, 0.0121 / 2, 0.0121});

  // A time that has risen by less says nothing about where to go back to.
  made = at_100_ms();
  observe_all(*made, 1, 6, 0.12);
  near(values(*made, 7, 0.2, 2), {0.005, 0.005});
}

TEST(Controller, SmallestSettingForgetsSlowness) {
  auto made = at_100_ms(",min=0.01");
  observe_all(*made, 1, 30, 1);
  EXPECT_EQ(made->counts().changes, 0U);
  observe_all(*made, 31, 35, 0.09);
  EXPECT_DOUBLE_EQ(made->value(0), 0.01 / 0.9);
}

TEST(Controller, StepWithoutReportChangesNothing) {
  auto made = at_100_ms();
  made->observe(seen_at(1, 0.12));
  for (const uint64_t step : {3U, 5U}) made->observe(seen_at(step, 1));
  EXPECT_DOUBLE_EQ(made->value(0), 0.01);
  made->observe(seen_at(7, 1));  // an update waits for one step, not for two that agree
  EXPECT_DOUBLE_EQ(made->value(0), 0.005);
}

TEST(Controller, UpdateWaitsForTwoSteps) {
  // The first of two steps of ten times the target; an update is due in step 6.
  for (const uint64_t slow : {3U, 5U, 6U, 7U}) {
    for (const std::string mean : {"", ",mean=0.004"}) {
      auto made = at_100_ms(mean);
      uint64_t fell = 0;
      for (uint64_t step = 1; step < 12 && fell == 0; ++step) {
        made->observe(seen_at(step, step >= slow ? 1 : 0.12));
        if (made->value(0) != 0.01) fell = step;
      }
      // A mean counts in updates of five steps: these neither wait nor come before their time.
      EXPECT_EQ(fell, mean.empty() ? slow + 1 : slow == 7 ? 11 : 6) << slow << mean;
      EXPECT_DOUBLE_EQ(made->value(0), !mean.empty() && slow == 6 ? 0.005 : 0.00125);
    }
  }
  // One slow step was all.
  auto made = at_100_ms();
  for (uint64_t step = 1; step <= 7; ++step) {
    made->observe(seen_at(step, step == 6 ? 1 : 0.12));
    EXPECT_DOUBLE_EQ(made->value(0), step < 7 ? 0.01 : 0.005);
  }
}

TEST(Controller, DecisionRecordsItsFigures) {
  auto made = Controller::create({{"dc2:deadline_ms=62", false, "topk", ratio()}});
  const auto decisions = made->observe(seen_at(205, 0.143));
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decision_text(decisions[0], "topk:ratio=0.01", "ratio"),
            "topk:ratio=0.01: ratio 0.01 -> 0.005 from step 207: network 143 ms, 2.31 times the "
            "target of 62 ms");
  // They are what was decided by, not always r: two steps that rose, three within half the target.
  struct Case {
    std::array<double, 6> network_s;
    double slowdown;
  };
  for (const Case& c : {Case{{0.12, 0.12, 0.12, 0.12, 0.5, 0.4}, 4},
                        Case{{0.14, 1.6, 0.05, 0.03, 0.05, 0.05}, 0.5}}) {
    auto laws = at_100_ms();
    std::vector<double> found;
    for (uint64_t i = 0; i < 6; ++i) {
      for (const Decision& d : laws->observe(seen_at(i + 1, c.network_s[i])))
        found.push_back(d.slowdown);
    }
    EXPECT_EQ(found, std::vector<double>{c.slowdown});
  }
}

TEST(Controller, IntegerAvoidsStepsThatWouldBeReverted) {
  auto made = Controller::create({{"dc2:deadline_ms=100", false, "powersgd", rank_of_a_factor(1)}});
  made->observe(seen_at(1, 0.09));  // twice the bytes would be 1.8 of the target
  EXPECT_EQ(made->value(0), 1);
  for (uint64_t step = 2; step < 40; ++step) made->observe(seen_at(step, 0.05));
  EXPECT_GT(made->value(0), 1);
}

TEST(Controller, UnusableReportsHoldAndAreCounted) {
  auto made = Controller::create({{"dc2:deadline_ms=100", false, "topk", ratio()}});
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const Observation& bad :
       {seen_at(1, nan), seen_at(2, -1), seen_at(3, 1e9), seen_at(4, 1, 0)}) {
    EXPECT_TRUE(made->observe(bad).empty());
  }
  EXPECT_EQ(made->value(0), 0.01);
  EXPECT_EQ(made->counts().held_steps, 4U);
  EXPECT_EQ(made->counts().reports_missing, 3U);
  made->observe(observe(5, std::span<const Figures>(), 10));  // no reports were due
  EXPECT_EQ(made->counts().held_steps, 4U);
  made->observe(seen_at(6, 1));
  EXPECT_EQ(made->value(0), 0.005);
}

TEST(Controller, OneOutlierIsNoTrend) {
  auto made = Controller::create({{"dc2:deadline_ms=100", false, "topk", ratio()}});
  for (uint64_t step = 1; step < 50; ++step) made->observe(seen_at(step, 0.12));
  made->observe(seen_at(50, 80000));  // a clock that jumped
  for (uint64_t step = 51; step < 80; ++step) made->observe(seen_at(step, 0.12));
  EXPECT_GE(made->value(0), 0.01 / 8);
}

TEST(Controller, ScheduleIsKeptToTheStep) {
  auto made = Controller::create({{"schedule:0=0.25,200=0.02", false, "topk", ratio()}});
  EXPECT_EQ(made->value(0), 0.25);
  EXPECT_EQ(made->bounds(0)->min, 0.01);
  EXPECT_EQ(made->bounds(0)->max, 0.25);
  for (uint64_t step = 0; step < 198; ++step) ASSERT_TRUE(made->observe(seen_at(step, 1)).empty());
  // Also in a step without reports: what is decided at 198 holds from 200 on.
  const auto decisions = made->observe(observe(198, std::span<const Figures>(), 0));
  ASSERT_EQ(decisions.size(), 1U);
  EXPECT_EQ(decisions[0].to, 0.02);
}

test::Loop wild_loop(const std::string& control) {
  test::Loop loop;
  loop.control = control;
  loop.steps = 1500;
  loop.link.jitter = 0.3;
  loop.link.mbit = [](uint64_t step) { return step / 100 % 3 == 0 ? 5000 : 40.0; };
  return loop;
}

const std::vector<std::string> kTexts{
    "dc2", "dc2:target=compute",       "dc2:mean=0.01", "dc2:deadline_ms=60,max=0.5", "aimd",
    "bdp", "schedule:0=0.25,200=0.01", "fixed"};

TEST(Controller, EveryPolicyHasATestText) {
  for (const PolicyTable* law : all_policies()) {
    const bool tried = std::any_of(kTexts.begin(), kTexts.end(), [law](const std::string& text) {
      return parse_control(text)->policy == law;
    });
    EXPECT_TRUE(tried || law->info.name == "replay") << law->info.name;
  }
}

TEST(Controller, EveryDecisionStaysInBounds) {
  for (const std::string& text : kTexts) {
    auto loop = wild_loop(text);
    const auto run = loop.run();
    ASSERT_EQ(run.steps.size(), loop.steps) << text;
    auto made = Controller::create({{text, false, "topk", loop.range()}});
    double last = made->value(0);
    for (const Decision& d : run.decisions) {
      ASSERT_EQ(d.from, last) << text;
      ASSERT_GE(d.to, made->bounds(0)->min) << text;
      ASSERT_LE(d.to, made->bounds(0)->max) << text;
      last = d.to;
    }
    const bool wild = text != "fixed" && text != kTexts[6];
    EXPECT_GE(run.decisions.size(), wild ? 10U : 0U) << text;
  }
}

TEST(Controller, SameReportsGiveSameDecisionsAcrossSaveAndLoad) {
  for (const std::string& text : kTexts) {
    auto loop = wild_loop(text);
    const auto run = loop.run();
    for (const uint64_t cut : {uint64_t{0}, uint64_t{7}, uint64_t{612}, loop.steps}) {
      std::vector<Decision> again;
      auto first = Controller::create({{text, false, "topk", loop.range()}});
      for (uint64_t step = 0; step < cut; ++step) {
        for (const Decision& d : first->observe(run.seen[step])) again.push_back(d);
      }
      std::vector<uint64_t> state(first->state_words());
      first->save(state);
      auto second = Controller::create({{text, false, "topk", loop.range()}});
      const auto loaded = second->load(state);
      ASSERT_TRUE(loaded) << text << " " << cut << " " << loaded.error().message;
      for (uint64_t step = cut; step < loop.steps; ++step) {
        for (const Decision& d : second->observe(run.seen[step])) again.push_back(d);
      }
      ASSERT_EQ(again, run.decisions) << text << " " << cut;
    }
  }
}

TEST(Controller, ReplayRepeatsDecisionsForAnyReports) {
  auto loop = wild_loop("dc2:max=0.5");
  const auto run = loop.run();
  auto replay =
      Controller::create({{"replay:run.jsonl", false, "topk", loop.range()}}, run.decisions);
  ASSERT_TRUE(replay) << replay.error().message;
  std::size_t next = 0;
  for (uint64_t step = 0; step < loop.steps; ++step) {
    for (const Decision& d : replay->observe(observe(step, std::span<const Figures>(), 0))) {
      ASSERT_EQ(d.step, run.decisions[next].step);
      ASSERT_EQ(d.to, run.decisions[next].to);
      ASSERT_EQ(d.uncompressed, run.decisions[next].uncompressed);
      ++next;
    }
  }
  EXPECT_EQ(next, run.decisions.size());
  double largest = 0;
  for (const Decision& d : run.decisions) largest = std::max(largest, d.to);
  EXPECT_GE(replay->bounds(0)->max, largest);
}

/// From where the recorded run was: also when the next decision leads back to where it began.
TEST(Controller, ReplayContinuesFromRecordedRun) {
  for (const std::string text : {"dc2:max=0.5", "schedule:0=0.25,200=0.01,700=0.25"}) {
    auto loop = wild_loop(text);
    const auto run = loop.run();
    const double first = Controller::create({{text, false, "topk", loop.range()}})->value(0);
    for (const uint64_t cut : {0U, 7U, 250U, 612U}) {
      auto recorded = Controller::create({{text, false, "topk", loop.range()}});
      for (uint64_t step = 0; step < cut; ++step) recorded->observe(run.seen[step]);
      auto replay =
          Controller::create({{"replay:x", false, "topk", loop.range(), first}}, run.decisions);
      ASSERT_TRUE(replay->follow(*recorded));
      EXPECT_EQ(replay->value(0), recorded->value(0));
      std::size_t next = 0;
      while (next < run.decisions.size() && run.decisions[next].step < cut) ++next;
      for (uint64_t step = cut; step < loop.steps; ++step) {
        for (const Decision& d : replay->observe(observe(step, std::span<const Figures>(), 0))) {
          ASSERT_LT(next, run.decisions.size());
          ASSERT_EQ(d.step, run.decisions[next].step) << text << " from " << cut;
          ASSERT_EQ(d.from, run.decisions[next].from) << text << " from " << cut;
          ASSERT_EQ(d.to, run.decisions[next].to) << text << " from " << cut;
          ++next;
        }
      }
      EXPECT_EQ(next, run.decisions.size()) << text << " from " << cut;
    }
  }
}

TEST(Controller, DamagedStateChangesNothing) {
  for (const std::string& text : kTexts) {
    auto loop = wild_loop(text);
    const auto run = loop.run();
    auto made = Controller::create({{text, false, "topk", loop.range()}});
    for (const Observation& seen : run.seen) made->observe(seen);
    std::vector<uint64_t> good(made->state_words());
    made->save(good);
    auto other = Controller::create({{text, false, "topk", loop.range()}});
    std::vector<uint64_t> before(other->state_words());
    other->save(before);
    std::size_t refused = 0;
    const std::vector<uint64_t> hostile{
        ~uint64_t{0}, uint64_t{1} << 63U, std::bit_cast<uint64_t>(1e300),
        std::bit_cast<uint64_t>(std::numeric_limits<double>::infinity())};
    for (std::size_t i = 0; i < good.size(); ++i) {
      for (const uint64_t word : hostile) {
        auto bad = good;
        bad[i] = word;
        const bool loaded = other->load(bad).ok();
        std::vector<uint64_t> after(other->state_words());
        other->save(after);
        if (loaded) {  // then it may be used, and stays inside the bounds
          for (uint64_t step = 0; step < 50; ++step) other->observe(run.seen[step + 1000]);
          if (made->bounds(0)) {
            ASSERT_GE(other->value(0), made->bounds(0)->min);
            ASSERT_LE(other->value(0), made->bounds(0)->max);
          }
          ASSERT_TRUE(other->load(before).ok());
        } else {
          ++refused;
          ASSERT_EQ(after, before) << text << " word " << i;
        }
      }
    }
    EXPECT_GE(refused, 2 * 4U) << text;
    auto older = good;
    --older[0];
    EXPECT_EQ(other->load(older).error().code, Errc::state_version);
    auto shorter = good;
    shorter.pop_back();
    EXPECT_EQ(other->load(shorter).error().code, Errc::state_corrupt);
    EXPECT_EQ(other->load({}).error().code, Errc::state_version);
  }
  auto one = Controller::create({{"dc2", false, "topk", ratio()}});
  auto two = Controller::create({{"dc2:mean=0.01", false, "topk", ratio()}});
  std::vector<uint64_t> state(one->state_words());
  one->save(state);
  EXPECT_EQ(two->load(state).error().code, Errc::state_spec);
}

TEST(Controller, StateWithTooManySamplesIsRefused) {
  auto made = Controller::create({{"dc2:mean=0.01", false, "topk", ratio()}});
  std::vector<uint64_t> fresh(made->state_words());
  made->save(fresh);
  for (uint64_t step = 0; step < 19; ++step) made->observe(seen_at(step, 0.1));
  std::vector<uint64_t> state(fresh.size());
  made->save(state);
  const auto count = std::find(state.begin() + 4, state.end(), uint64_t{19});  // after the head
  ASSERT_NE(count, state.end());
  ASSERT_TRUE(made->load(state));
  *count = 20;  // with the next one it would be the target
  EXPECT_FALSE(made->load(state));
}

TEST(Controller, RulesMoveTheirActuatorsByOneSlowdown) {
  auto made = Controller::create({{"dc2:deadline_ms=100", true, "topk", ratio()},
                                  {"dc2:deadline_ms=100", true, "powersgd", rank_of_a_factor(8)},
                                  {"fixed", false, "topk", ratio()},
                                  {"dc2:deadline_ms=100", true, "3lc", sparsity()}});
  ASSERT_TRUE(made) << made.error().message;
  const auto decisions = made->observe(seen_at(1, 0.3));
  EXPECT_EQ(decisions.size(), 3U);
  EXPECT_EQ(made->value(0), 0.005);
  EXPECT_EQ(made->value(1), 4);
  EXPECT_EQ(made->value(2), 0.01);
  EXPECT_EQ(made->value(3), 1.9);
}

/// If float32 of either fits, the second waits until the first is part of what is seen, also across
/// save and load, and in a replay from there.
TEST(Controller, RulesSwitchToFloat32OneByOne) {
  Range range = ratio(0.25);  // at the most that it may send
  range.most_bytes = range.dense_bytes = 1000;
  const auto create = [&] {
    return Controller::create({{"dc2:deadline_ms=100", false, "topk", range},
                               {"dc2:deadline_ms=100", false, "topk", range}});
  };
  auto made = create();
  auto again = create();
  ASSERT_TRUE(made && again);
  std::vector<uint64_t> words(made->state_words());
  std::array<uint64_t, 2> turned{};
  for (uint64_t step = 1; step < 20; ++step) {
    made->save(words);
    ASSERT_TRUE(again->load(words));
    const auto decided = made->observe(seen_at(step, 0.05, 2000));
    EXPECT_TRUE(std::ranges::equal(decided, again->observe(seen_at(step, 0.05, 2000))));
    for (const Decision& d : decided) turned[d.rule] = step;
  }
  EXPECT_EQ(turned[0], 1U);
  EXPECT_EQ(turned[1], 6U);  // its next update
  // No sooner than it is seen, even where an update is due.
  const auto create_late = [&] {
    return Controller::create(
        {{"dc2:deadline_ms=100", false, "topk", range}, {"replay:x", false, "topk", range}},
        {{.step = 5, .rule = 1, .from = 0.25, .to = 0.25, .uncompressed = true}});
  };
  auto late = create_late();
  auto later = create_late();
  ASSERT_TRUE(late && later);
  words.assign(late->state_words(), 0);
  turned = {};
  for (uint64_t step = 4; step < 20; ++step) {
    // The first rule's updates begin in step 6.
    const auto seen = step < 6 ? Observation{} : seen_at(step, 0.05, 2000);
    const auto told = step < 6 ? observe(step, std::vector<Figures>{}, 0) : seen;
    late->save(words);
    ASSERT_TRUE(later->load(words));
    auto replay = create_late();
    ASSERT_TRUE(replay->follow(*late));
    const auto decided = late->observe(told);
    EXPECT_TRUE(std::ranges::equal(decided, later->observe(told)));
    EXPECT_TRUE(std::ranges::equal(decided, replay->observe(told)));
    for (const Decision& d : decided) turned[d.rule] = step;
  }
  EXPECT_EQ(turned[1], 5U);
  EXPECT_EQ(turned[0], 11U);
}

/// The first reports are about the settings before.
TEST(Controller, SwitchToFloat32IsJudgedAfterFiveSteps) {
  Range range = ratio(0.25);
  range.most_bytes = range.dense_bytes = 1000;
  auto made = Controller::create({{"dc2:deadline_ms=100", false, "topk", range}});
  ASSERT_TRUE(made);
  std::vector<std::pair<uint64_t, bool>> turns;
  for (uint64_t step = 1; step < 12; ++step) {
    const double network_s = step == 1 ? 0.05 : 5;
    for (const Decision& d : made->observe(seen_at(step, network_s, 2000)))
      turns.emplace_back(step, d.uncompressed);
  }
  ASSERT_GE(turns.size(), 2U);
  EXPECT_EQ(turns[0], std::pair(uint64_t{1}, true));
  EXPECT_EQ(turns[1], std::pair(uint64_t{6}, false));
}

TEST(History, SmallExchangesDoNotPredictLargeOnes) {
  History history;
  Observation seen = seen_at(1, 0.001, 60000);  // a token bucket's burst
  history.add(seen);
  seen = seen_at(2, 0.1, 600000);
  history.add(seen);
  EXPECT_DOUBLE_EQ(history.predict(3, 1200000), 0.2);
  EXPECT_DOUBLE_EQ(history.predict(3, 60000), 0.001);
  EXPECT_DOUBLE_EQ(history.predict(600, 1200000), 0);  // too long ago
}

}  // namespace
}  // namespace laconic::control

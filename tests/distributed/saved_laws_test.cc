// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Saved state of policies, and of a flush, that differs on one rank: ranks would decide differently
// some steps later. All of them fail in the first exchange.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "control/state_floats.h"
#include "support/clocked.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{
    {"a.weight", 120, 40}, {"b.weight", 61, 67}, {"c.weight", 90, 33}, {"bias", 9, 1}};
const Layout kLayout = back_to_back(kModel, {3, 2, 1, 0});

double fast(uint64_t /*step*/) { return 1e8; }
double changing(uint64_t step) { return step / 15 % 2 == 0 ? 1e6 : 1e5; }

std::span<float> entry(Session& session, const std::string& name) {
  for (const auto& e : session.active().store.entries()) {
    if (e.name == name) return e.values;
  }
  ADD_FAILURE() << "there is no " << name;
  return {};
}
std::vector<uint64_t> laws_of(Session& session) {
  const auto saved = entry(session, "control/laws");
  std::vector<uint64_t> words(saved.size() / control::kFloatsPerWord);
  EXPECT_TRUE(control::floats_to_words(saved, words));
  return words;
}

using States = std::vector<std::vector<uint8_t>>;
States saved_by(Clocked& group, uint32_t world) {
  States states;
  for (uint32_t r = 0; r < world; ++r) states.push_back(*session::save_state(group.session(r)));
  return states;
}
void load(Ranks& group, const States& states) {
  for (uint32_t r = 0; r < group.world(); ++r) {
    const auto loaded = session::load_state(group.session(r), states[r]);
    ASSERT_TRUE(loaded) << loaded.error().message;
  }
}

std::vector<Result<void>> exchange(Ranks& group, uint64_t step) {
  auto buffers = gradients(group.world(), kLayout.elements, step + 1);
  return group.exchange(kLayout, buffers, step);
}

/// One error, and every rank has it. `ok`: none, and then all ranks' laws are in the same state.
Errc told(Ranks& group, uint64_t step, const std::string& what) {
  const auto results = exchange(group, step);
  const auto code_of = [](const Result<void>& r) { return r ? Errc::ok : r.error().code; };
  for (const auto& result : results) {
    EXPECT_EQ(code_of(result), code_of(results[0])) << what;
    if (result) continue;
    const std::string said = result.error().message + result.error().hint;
    EXPECT_TRUE(said.find("state") + 1 != 0 || said.find("agreement") + 1 != 0) << said;
  }
  for (uint32_t r = 1; results[0] && group.session(0).active().steering && r < group.world(); ++r)
    EXPECT_EQ(laws_of(group.session(r)), laws_of(group.session(0))) << what;
  return code_of(results[0]);
}

struct Case {
  const char* name;
  const char* spec;
  StrategyKind strategy;
  const char* control;
  Clocked::Rate rate;
  uint64_t early, late;  ///< steps before which states are saved
};

class SavedLaws : public testing::TestWithParam<std::tuple<uint32_t, Case>> {
 protected:
  [[nodiscard]] static uint32_t world() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Case of() { return std::get<1>(GetParam()); }
  [[nodiscard]] static test::Setup setup() {
    test::Setup made{of().spec, world(), kModel, of().strategy, 16};
    made.control = of().control;
    return made;
  }
};

/// Each word in which the states of two steps differ, on one rank. The next step replaces some.
TEST_P(SavedLaws, StateOnOneRankOnlyIsRefusedByAll) {
  Clocked run(setup(), of().rate);
  run.steps(0, of().early);
  const States states = saved_by(run, world());
  const auto early = laws_of(run.session(0));
  for (uint32_t r = 1; r < world(); ++r) ASSERT_EQ(laws_of(run.session(r)), early);
  run.steps(of().early, of().late);
  const auto late = laws_of(run.session(0));
  size_t differ = 0, disagree = 0, same = 0;
  for (size_t i = 0; i < early.size(); ++i) {
    if (early[i] == late[i]) continue;
    Ranks resumed(setup());
    load(resumed, states);
    auto words = early;
    words[i] = late[i];
    const auto only = static_cast<uint32_t>(i % world());
    control::words_to_floats(words, entry(resumed.session(only), "control/laws"));
    const Errc code = told(resumed, of().early, "word " + std::to_string(i));
    ++differ;
    disagree += code == Errc::ranks_disagree ? 1 : 0;
    same += code == Errc::ok ? 1 : 0;
    // State that no policy can have left is that rank's own failure.
    EXPECT_TRUE(code == Errc::ranks_disagree || code == Errc::ok || code == Errc::peer_failed) << i;
  }
  EXPECT_GE(disagree, 2U);
  EXPECT_LE(same, 2U) << "of " << differ;
  Ranks resumed(setup());
  load(resumed, states);
  EXPECT_EQ(told(resumed, of().early, "the same"), Errc::ok);
}

INSTANTIATE_TEST_SUITE_P(
    All, SavedLaws,
    testing::Combine(
        testing::ValuesIn(kOneWorld ? std::vector<uint32_t>{2} : std::vector<uint32_t>{2, 3}),
        testing::Values(Case{"gather_all", "topk:ratio=0.05", StrategyKind::gather_all,
                             "dc2:deadline_ms=20", changing, 20, 23},
                        Case{"two_shot", "topk:ratio=0.05", StrategyKind::two_shot,
                             "dc2:deadline_ms=20", changing, 20, 23},
                        Case{"native_sum", "randomk:ratio=0.05", StrategyKind::native_sum,
                             "dc2:deadline_ms=20", changing, 20, 23},
                        Case{"schedule", "topk:ratio=0.05", StrategyKind::gather_all,
                             "schedule:0=0.05,3=0.2,6=0.01", changing, 4, 5},
                        Case{"dense", "topk:ratio=0.05", StrategyKind::gather_all,
                             "dc2:deadline_ms=20,max=0.06", fast, 14, 16})),
    [](const auto& of) {
      return std::string(std::get<1>(of.param).name) + "_" + std::to_string(std::get<0>(of.param));
    });

/// Layouts that ranks know already: bundles carry the error.
struct Running : testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    SavedLaws, Running,
    testing::Values(Case{"gather_all", "topk:ratio=0.05", StrategyKind::gather_all, "", fast, 3, 0},
                    Case{"two_shot", "topk:ratio=0.05", StrategyKind::two_shot, "", fast, 3, 0},
                    Case{"native_sum", "randomk:ratio=0.05", StrategyKind::native_sum, "", fast, 3,
                         0}),
    [](const auto& of) { return of.param.name; });

TEST_P(Running, RanksAreInformedOfLoadOrDamage) {
  for (const bool damaged : {false, true}) {
    if (!damaged && GetParam().strategy == StrategyKind::native_sum) continue;  // lanes are bare
    test::Setup setup{GetParam().spec, 3, kModel, GetParam().strategy, 16};
    setup.control = "schedule:0=0.05,50=0.2";
    Ranks group(setup);
    for (uint64_t step = 0; step < GetParam().early; ++step) {
      for (const auto& result : exchange(group, step)) ASSERT_TRUE(result);
    }
    auto words = laws_of(group.session(2));
    words[5] = 50;  // a decision that no other rank knows
    words[4] = words[2];
    const auto laws = entry(group.session(2), "control/laws");
    control::words_to_floats(words, laws);
    if (damaged) laws[5] = 0.5F;
    const Errc code = told(group, GetParam().early, GetParam().name);
    // In two_shot an owner has it, and reports it to the others.
    EXPECT_TRUE(code == Errc::peer_failed || (code == Errc::ranks_disagree && !damaged));
  }
}

/// The steps that a flush has still to drain; what a rank asks for is its own.
TEST(SavedFlush, StateOnOneRankOnlyIsRefusedByAll) {
  for (const uint32_t world : {2U, 3U}) {
    for (const auto& [spec, strategy] : {std::pair{"topk:ratio=0.05", StrategyKind::gather_all},
                                         {"topk:ratio=0.05", StrategyKind::two_shot},
                                         {"randomk:ratio=0.05", StrategyKind::native_sum}}) {
      const test::Setup setup{spec, world, kModel, strategy, 16};
      Clocked run(setup, fast);
      run.steps(0, 3);
      ASSERT_TRUE(run.session(0).flush(4));
      run.steps(3, 5);
      const States states = saved_by(run, world);
      ASSERT_EQ(entry(run.session(1), "state/flush")[1], 3.0F);
      for (const float other : {0.0F, 2.0F, 5.0F}) {
        Ranks resumed(setup);
        load(resumed, states);
        entry(resumed.session(world - 1), "state/flush")[1] = other;
        EXPECT_EQ(told(resumed, 5, spec), Errc::ranks_disagree) << other;
      }
      Ranks resumed(setup);
      load(resumed, states);
      entry(resumed.session(world - 1), "state/flush")[0] = 2.0F;
      for (const auto& result : exchange(resumed, 5)) EXPECT_TRUE(result);
    }
  }
}

}  // namespace
}  // namespace laconic::test

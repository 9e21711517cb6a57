// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A law that takes float32 where that fits into its target, and leaves it when it no longer does:
// what travels, what becomes of the residuals, and that nothing is lost.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>
#include <map>
#include <sstream>

#include "control/replay.h"
#include "session/describe.h"
#include "support/clocked.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{
    {"a.weight", 120, 40}, {"b.weight", 61, 67}, {"c.weight", 90, 33}, {"bias", 9, 1}};
constexpr const char* kLaw = "dc2:deadline_ms=20,max=0.06";

// Bytes in a second. Float32 takes 0.6 ms of the first, 63 ms of the second.
double fast(uint64_t /*step*/) { return 1e8; }
double slow_from_40(uint64_t step) { return step < 40 ? 1e8 : 1e6; }
double slow_from_16(uint64_t step) { return step < 16 ? 1e8 : 1e6; }

struct Case {
  const char* name;
  const char* spec;
  StrategyKind strategy;
};
class Dense : public testing::TestWithParam<Case> {
 protected:
  static test::Setup with(const std::string& control, const std::string& record = "") {
    test::Setup made{GetParam().spec, kWorld, kModel, GetParam().strategy, 16};
    made.control = control;
    made.record = record;
    return made;
  }
  static std::string file_of(const std::string& name) {
    return testing::TempDir() + "laconic_dense_" + GetParam().name + name;
  }
  /// A new one.
  static std::string file(const std::string& name) {
    std::remove(file_of(name).c_str());
    return file_of(name);
  }
};

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

bool uncompressed(Clocked& group, uint32_t rank = 0) {
  return session::explain(group.session(rank)).find("\"strategy\": \"uncompressed\"") !=
         std::string::npos;
}

/// The engine's sum in rank order, of gradients that were divided first.
std::vector<float> float32_mean(const Layout& layout, uint64_t step) {
  const auto all = gradients(kWorld, layout.elements, step + 1);
  std::vector<float> mean(layout.elements);
  for (size_t i = 0; i < mean.size(); ++i) {
    for (const auto& g : all) mean[i] += g[i] * (1.0F / static_cast<float>(kWorld));
  }
  return mean;
}

/// For each element of the layout, the mean of all ranks' residuals; an owner's residual of the
/// mean is taken unchanged.
std::vector<double> kept(Clocked& group) {
  std::vector<double> sum(group.layout().elements);
  std::map<std::string, uint64_t> place;
  for (size_t i = 0; i < group.layout().parameters.size(); ++i)
    place[kModel[group.layout().parameters[i]].name] = group.layout().offsets[i];
  for (uint32_t r = 0; r < kWorld; ++r) {
    for (const auto& e : group.session(r).active().store.entries()) {
      const bool owned = e.kind == feedback::StateKind::owner_residual;
      if (!owned && e.kind != feedback::StateKind::residual) continue;
      const std::string name = e.name.substr(e.name.find('/') + 1);
      const size_t at = name.find('@');
      const uint64_t first = place.at(name.substr(0, at)) +
                             (at == std::string::npos ? 0 : std::stoul(name.substr(at + 1)));
      for (size_t k = 0; k < e.values.size(); ++k)
        sum[first + k] += static_cast<double>(e.values[k]) / (owned ? 1 : kWorld);
    }
  }
  return sum;
}

/// Over steps 0 to means.size(), what was sent plus what is kept equals the gradients.
void expect_balance(Clocked& group, const std::vector<std::vector<float>>& means) {
  auto found = kept(group);
  std::vector<double> in(found.size()), magnitude(found.size());
  for (uint64_t step = 0; step < means.size(); ++step) {
    const auto mean = exact_mean(gradients(kWorld, found.size(), step + 1));
    for (size_t i = 0; i < found.size(); ++i) {
      in[i] += mean[i];
      magnitude[i] += std::abs(mean[i]);
      found[i] += static_cast<double>(means[step][i]);
    }
  }
  for (size_t i = 0; i < found.size(); ++i)
    ASSERT_NEAR(found[i], in[i], 2e-6 * magnitude[i] + 1e-7) << "element " << i;
}

/// A replay that stops before a step, saves and goes on has the bits of the first run's 60 steps.
/// Gives how many parts of the residuals were still to go out there.
uint64_t expect_resumed(Clocked& first, const std::vector<std::vector<float>>& means,
                        const test::Setup& replay, uint64_t stop) {
  Clocked killed(replay, fast), resumed(replay, fast);
  const auto before = killed.steps(0, stop);
  const uint64_t left = killed.session(0).stats().flush_steps_left;
  resumed.load(killed);
  const auto rest = resumed.steps(stop, 60);
  for (uint64_t step = 0; step < 60; ++step) {
    const auto& mean = step < stop ? before[step] : rest[step - stop];
    EXPECT_TRUE(same_bits(mean, means[step])) << "stopped before " << stop << ": " << step;
  }
  EXPECT_EQ(resumed.session(0).stats().residual_norm, first.session(0).stats().residual_norm);
  return left;
}

uint64_t bytes_sent(Clocked& group) { return group.session(0).stats().counters.wire_bytes; }

/// It holds by then: the deadline is far, two updates reach the maximum, residuals go out.
constexpr uint64_t kTaken = 20;

TEST_P(Dense, DenseStartsAtMaximumAndEndsWhenItNoLongerFits) {
  Clocked group(with(kLaw), slow_from_40);
  auto means = group.steps(0, kTaken);
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_TRUE(uncompressed(group, r));
  const std::string told = session::explain(group.session(0));
  EXPECT_NE(told.find("float32 fits into the target of 20 ms"), std::string::npos) << told;
  EXPECT_EQ(group.session(0).stats().residual_norm, 0.0);
  const uint64_t before = bytes_sent(group);
  for (uint64_t step = kTaken; step < 40; ++step) {
    means.push_back(group.steps(step, step + 1)[0]);
    ASSERT_TRUE(same_bits(means.back(), float32_mean(group.layout(), step))) << "step " << step;
  }
  // A ring of float32; in addition 16 lanes for a flush request and 6 for each report.
  const uint64_t sent = 4 * (kWorld - 1) * 2 * group.layout().elements / kWorld;
  EXPECT_EQ(bytes_sent(group) - before,
            20 * (sent + 4 * (kWorld - 1) * 2 * (16 + 6 * kWorld) / kWorld));
  const auto rest = group.steps(40, 60);
  means.insert(means.end(), rest.begin(), rest.end());
  EXPECT_FALSE(uncompressed(group));
  EXPECT_NE(session::explain(group.session(0)).find("ratio"), std::string::npos);
  EXPECT_GT(group.session(0).stats().residual_norm, 0.0);
  EXPECT_EQ(group.session(0).stats().held_steps, 0U);
  EXPECT_EQ(group.session(0).stats().reports_missing, 0U);
  expect_balance(group, means);
}

/// The number of parts is the ratio of residuals to gradients; the parts are equal.
TEST_P(Dense, DenseReleasesResidualsInParts) {
  Clocked group(with(kLaw, file("parts.jsonl")), fast);
  std::vector<double> norms;
  std::vector<bool> dense;
  for (uint64_t step = 0; step < 30; ++step) {
    norms.push_back(group.session(0).stats().residual_norm);
    group.steps(step, step + 1);
    dense.push_back(uncompressed(group));
  }
  const auto first = static_cast<size_t>(std::ranges::find(dense, true) - dense.begin());
  const auto record = control::read_record(text_of(file_of("parts.jsonl")));
  ASSERT_TRUE(record) << record.error().message;
  const auto& decided = record->parts[0].steps[first - control::kDelay];
  ASSERT_EQ(decided.decisions.size(), 1U);
  EXPECT_EQ(decided.decisions[0].reason, control::Reason::dense);
  double ratio = 0;
  for (const auto& r : decided.reports) ratio = std::max(ratio, r.residual_ratio);
  const uint32_t parts = decided.decisions[0].parts;
  EXPECT_GT(parts, 1U);
  EXPECT_EQ(parts, std::ceil(ratio));
  if (GetParam().strategy != StrategyKind::two_shot) {  // where the owners' joins in the first part
    for (uint32_t i = 1; i <= parts; ++i)
      EXPECT_NEAR(norms[first + i], norms[first] * (parts - i) / parts, 1e-5 * norms[first]) << i;
  }
  EXPECT_GT(norms[first + parts - 1], 0.0);
  EXPECT_EQ(norms[first + parts], 0.0);
}

/// Gradients that are not sent when the network slows down stay in the residual.
TEST_P(Dense, DenseMayEndMidRelease) {
  test::Setup setup = with("replay:" + file_of("middle.jsonl"));
  {
    Clocked first(with(kLaw, file("middle.jsonl")), slow_from_16);
    auto means = first.steps(0, 50);
    expect_balance(first, means);
  }
  // As if the decision had been to take 64 steps.
  std::string text = text_of(file_of("middle.jsonl"));
  const size_t at = text.find("\"reason\": \"dense\"");
  ASSERT_NE(at, std::string::npos);
  const size_t parts = text.find("\"parts\": ", at) + 9;
  text.replace(parts, text.find('}', parts) - parts, "64");
  std::ofstream(file_of("middle.jsonl"), std::ios::binary) << text;
  Clocked group(setup, fast);
  auto means = group.steps(0, 18);
  ASSERT_TRUE(uncompressed(group));
  EXPECT_GT(group.session(0).stats().flush_steps_left, 50U);
  const auto rest = group.steps(18, 50);
  means.insert(means.end(), rest.begin(), rest.end());
  EXPECT_FALSE(uncompressed(group));
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 0U);
  expect_balance(group, means);
}

TEST_P(Dense, ReplayAndResumeGiveSameBits) {
  const std::string record = file("run.jsonl");
  Clocked first(with(kLaw, record), slow_from_40);
  const auto means = first.steps(0, 60);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  const auto again = control::recompute(*read);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(again->difference) << again->difference->what;
  for (const auto& step : read->parts[0].steps)
    EXPECT_EQ(step.settings[0].uncompressed, step.step >= 13 && step.step < 45) << step.step;
  for (const uint64_t stop : {11U, 12U, 13U, 15U, 25U, 44U}) {
    if (kSanitized && stop != 15) continue;
    expect_resumed(first, means, with("replay:" + record), stop);
  }
}

/// Decided by its own law, too.
TEST_P(Dense, SavedRunContinues) {
  Clocked whole(with(kLaw), slow_from_40);
  const auto means = whole.steps(0, 60);
  Clocked killed(with(kLaw), slow_from_40);
  killed.steps(0, 16);
  Clocked resumed(with(kLaw), slow_from_40);
  resumed.load(killed);
  const auto rest = resumed.steps(16, 60);
  // The first report is about a step that no rank has seen: a decision may come one step later.
  ASSERT_TRUE(same_bits(rest[0], means[16]));
  EXPECT_TRUE(same_bits(rest[20], means[36]));
  EXPECT_FALSE(uncompressed(resumed));
}

TEST_P(Dense, FailedStepKeepsGradient) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_TRUE(uncompressed(group));
  EXPECT_EQ(group.session(0).stats().residual_norm, 0.0);
  group.fail_on(1, 30);
  const auto lost = exact_mean(gradients(kWorld, group.layout().elements, 31));
  const auto found = kept(group);
  for (size_t i = 0; i < lost.size(); ++i) {
    if (i < 9) continue;  // "bias": it has no residual
    ASSERT_NEAR(found[i], lost[i], 1e-7) << i;
  }
}

/// A flush request reaches all ranks even if there is nothing to flush.
TEST_P(Dense, FlushEnds) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_TRUE(group.session(2).flush(2));
  group.steps(30, 31);
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 2U);
  const auto means = group.steps(31, 36);
  EXPECT_EQ(group.session(2).stats().flush_steps_left, 0U);
  EXPECT_TRUE(same_bits(means[0], float32_mean(group.layout(), 31)));
  EXPECT_TRUE(uncompressed(group));
}

INSTANTIATE_TEST_SUITE_P(
    All, Dense,
    testing::Values(Case{"gather_all", "topk:ratio=0.05", StrategyKind::gather_all},
                    Case{"two_shot", "topk:ratio=0.05", StrategyKind::two_shot},
                    Case{"native_sum", "randomk:ratio=0.05", StrategyKind::native_sum}),
    [](const auto& of) { return of.param.name; });

// ---- next to a rule that stays compressed ----

/// The call's parameters turn to float32, a's stay as they are.
struct Beside {
  const char* name;
  const char* spec;  ///< the call's
  StrategyKind strategy;
  const char* of_rule;  ///< empty: the call's spec and strategy
};
class DenseWithRules : public testing::TestWithParam<Beside> {
 protected:
  static test::Setup with(const std::string& control, const std::string& record = "",
                          const std::string& of_rule = "fixed") {
    test::Setup made{GetParam().spec, kWorld, kModel, GetParam().strategy, 16};
    made.control = control;
    made.record = record;
    Rule rule;
    rule.match = "a.*";
    rule.spec = GetParam().of_rule;
    rule.control = of_rule;
    made.rules = {rule};
    return made;
  }
  static std::string file(const std::string& name) {
    std::string file = testing::TempDir() + "laconic_beside_" + GetParam().name + name;
    std::remove(file.c_str());
    return file;
  }
};

/// How many of the two rules go uncompressed.
int uncompressed_rules(Clocked& group) {
  const std::string told = session::explain(group.session(0));
  int found = 0;
  for (size_t at = told.find("\"strategy\": \"uncompressed\""); at != std::string::npos;
       at = told.find("\"strategy\": \"uncompressed\"", at + 1))
    ++found;
  return found;
}

/// a.weight is last in the layout; any strategy may add small parameters.
constexpr size_t kSmall = 9;
size_t begin_of_a(Clocked& group) { return group.layout().elements - kModel[0].count(); }

void expect_turned(Clocked& group, const std::vector<float>& mean, uint64_t step) {
  const auto whole = float32_mean(group.layout(), step);
  for (size_t i = 0; i < begin_of_a(group); ++i) {
    if (i < kSmall) {
      ASSERT_NEAR(mean[i], whole[i], 1e-8);
    } else {
      ASSERT_EQ(mean[i], whole[i]) << "element " << i << " in step " << step;
    }
  }
}

void expect_same_of_a(Clocked& group, const std::vector<float>& mean,
                      const std::vector<float>& other, uint64_t step) {
  for (size_t i = begin_of_a(group); i < mean.size(); ++i)
    ASSERT_EQ(mean[i], other[i]) << "element " << i << " in step " << step;
}

/// Sum of squares of a.weight's residuals, or of all others.
double residuals(Clocked& group, bool of_a) {
  double sum = 0;
  for (uint32_t r = 0; r < kWorld; ++r) {
    for (const auto& e : group.session(r).active().store.entries()) {
      if (e.kind == feedback::StateKind::codec_state) continue;
      if ((e.name.find("/a.weight") != std::string::npos) != of_a) continue;
      for (const float x : e.values) sum += static_cast<double>(x) * static_cast<double>(x);
    }
  }
  return sum;
}

TEST_P(DenseWithRules, OneRuleSwitchesAndOtherStays) {
  Clocked group(with(kLaw), slow_from_40);
  Clocked fixed(with("fixed", file("fixed.jsonl")), slow_from_40);
  auto means = group.steps(0, kTaken);
  auto others = fixed.steps(0, kTaken);
  EXPECT_EQ(uncompressed_rules(group), 1);
  EXPECT_EQ(residuals(group, false), 0.0);
  EXPECT_GT(residuals(group, true), 0.0);
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 0U);
  for (uint64_t step = kTaken; step < 40; ++step) {
    means.push_back(group.steps(step, step + 1)[0]);
    expect_turned(group, means.back(), step);
    ASSERT_EQ(uncompressed_rules(group), 1) << step;
  }
  for (const auto& mean : group.steps(40, 60)) means.push_back(mean);
  for (const auto& mean : fixed.steps(kTaken, 60)) others.push_back(mean);
  for (uint64_t step = 0; step < 60; ++step)
    expect_same_of_a(group, means[step], others[step], step);
  EXPECT_EQ(uncompressed_rules(group), 0);
  EXPECT_GT(residuals(group, false), 0.0);
  EXPECT_EQ(group.session(0).stats().held_steps, 0U);
  EXPECT_EQ(group.session(0).stats().reports_missing, 0U);
  expect_balance(group, means);
}

TEST_P(DenseWithRules, ReplayAndResumeGiveSameBits) {
  const std::string record = file("run.jsonl");
  Clocked first(with(kLaw, record), slow_from_40);
  const auto means = first.steps(0, 60);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  const auto again = control::recompute(*read);
  ASSERT_TRUE(again) << again.error().message;
  EXPECT_FALSE(again->difference) << again->difference->what;
  uint64_t begins = 60;
  for (const auto& step : read->parts[0].steps) {
    EXPECT_FALSE(step.settings[1].uncompressed);
    if (step.settings[0].uncompressed) begins = std::min(begins, step.step);
  }
  ASSERT_LT(begins, kTaken);
  for (const uint64_t stop :
       {begins - 2, begins - 1, begins, begins + 1, begins + 2, uint64_t{44}}) {
    if (kSanitized && stop != begins + 1) continue;
    const uint64_t left = expect_resumed(first, means, with("replay:" + record), stop);
    if (stop == begins + 1) {  // in the middle of the release
      EXPECT_GT(left, 0U);
    }
  }
}

/// Step 30, which fails, leaves its gradient to the residuals.
template <class Step>
void expect_kept(Clocked& group, Step step) {
  const auto before = kept(group);
  step();
  const auto lost = exact_mean(gradients(kWorld, group.layout().elements, 31));
  const auto found = kept(group);
  for (size_t i = kSmall; i < lost.size(); ++i)
    ASSERT_NEAR(found[i], before[i] + lost[i], 1e-6) << i;
}

TEST_P(DenseWithRules, FailedStepKeepsGradient) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_EQ(uncompressed_rules(group), 1);
  expect_kept(group, [&] { group.fail_on(1, 30); });
  expect_turned(group, group.steps(31, 32)[0], 31);
}

TEST_P(DenseWithRules, LostPeerLosesNothing) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_EQ(uncompressed_rules(group), 1);
  expect_kept(group, [&] { group.lose_peers_in(30); });
}

/// In what has turned, and in the rest: the whole bucket goes uncompressed and nothing moves.
TEST_P(DenseWithRules, NonFiniteGradientSendsWholeBucketUncompressed) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_EQ(uncompressed_rules(group), 1);
  uint64_t step = 30;
  for (const size_t bad : {kSmall + 17, group.layout().elements - 5}) {
    const auto before = kept(group);
    auto buffers = gradients(kWorld, group.layout().elements, step + 1);
    buffers[kWorld - 1][bad] = std::numeric_limits<float>::infinity();
    const auto exact = exact_mean(buffers);
    const auto mean = group.step_of(step, std::move(buffers));
    for (size_t i = 0; i < mean.size(); ++i) {
      if (i == bad) continue;
      ASSERT_NEAR(mean[i], exact[i], 1e-6) << i;
    }
    EXPECT_FALSE(std::isfinite(mean[bad]));
    const auto found = kept(group);
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], before[i], 1e-6) << i;
    ++step;
    EXPECT_EQ(group.session(0).stats().fallbacks, step - 30);
  }
  expect_turned(group, group.steps(step, step + 1)[0], step);
}

/// Parts that were due in a step that was not finite stay, and are sent with the next ones.
TEST_P(DenseWithRules, ReleaseSurvivesNonFiniteStep) {
  Clocked group(with(kLaw), fast);
  uint64_t step = 0;
  while (group.session(0).stats().flush_steps_left == 0 && step < kTaken)
    group.steps(step, step + 1), ++step;
  ASSERT_EQ(uncompressed_rules(group), 1);
  const uint64_t left = group.session(0).stats().flush_steps_left;
  const auto before = kept(group);
  auto buffers = gradients(kWorld, group.layout().elements, step + 1);
  buffers[1][kSmall] = std::numeric_limits<float>::quiet_NaN();
  group.step_of(step, std::move(buffers));
  const auto found = kept(group);
  for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], before[i], 1e-6) << i;
  group.steps(step + 1, 30);
  EXPECT_EQ(residuals(group, false) == 0.0, left > 1);
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 0U);
}

TEST_P(DenseWithRules, FlushEmptiesOtherResiduals) {
  Clocked group(with(kLaw), fast);
  group.steps(0, 30);
  ASSERT_EQ(uncompressed_rules(group), 1);
  EXPECT_GT(residuals(group, true), 0.0);
  ASSERT_TRUE(group.session(2).flush(2));
  group.steps(30, 31);
  EXPECT_EQ(group.session(0).stats().flush_steps_left, 2U);
  group.steps(31, 33);
  EXPECT_EQ(group.session(0).stats().residual_norm, 0.0);
  EXPECT_EQ(uncompressed_rules(group), 1);
  expect_turned(group, group.steps(33, 34)[0], 33);
}

INSTANTIATE_TEST_SUITE_P(
    All, DenseWithRules,
    testing::Values(
        Beside{"one_strategy", "topk:ratio=0.05", StrategyKind::gather_all, "3lc"},
        Beside{"two_shot", "topk:ratio=0.05", StrategyKind::two_shot, ""},
        Beside{"of_lanes", "randomk:ratio=0.05", StrategyKind::native_sum, "powersgd:rank=2"},
        Beside{"codes", "randomk:ratio=0.05", StrategyKind::native_sum, "thc"},
        Beside{"two_strategies", "topk:ratio=0.05", StrategyKind::two_shot, "topk:ratio=0.1"}),
    [](const auto& of) { return of.param.name; });

test::Setup two_laws(const std::string& record = "") {
  test::Setup setup{"topk:ratio=0.05", kWorld, kModel, StrategyKind::gather_all, 16};
  setup.control = kLaw;
  setup.record = record;
  setup.rules = {rule("a.*", "")};  // with the call's law
  return setup;
}

/// Both have turned, one after the other: the bucket goes as a whole.
TEST(DenseRules, RulesSwitchOneByOne) {
  const std::string record = testing::TempDir() + "laconic_two_laws.jsonl";
  std::remove(record.c_str());
  Clocked group(two_laws(record), fast);
  group.steps(0, 40);
  EXPECT_EQ(uncompressed_rules(group), 2);
  EXPECT_TRUE(same_bits(group.steps(40, 41)[0], float32_mean(group.layout(), 40)));
  EXPECT_EQ(group.session(0).stats().residual_norm, 0.0);
  const auto read = control::read_record(text_of(record));
  ASSERT_TRUE(read) << read.error().message;
  std::map<uint32_t, uint64_t> turned;
  for (const auto& step : read->parts[0].steps) {
    for (const auto& d : step.decisions) {
      if (d.uncompressed) turned[d.rule] = d.step;
    }
  }
  ASSERT_EQ(turned.size(), 2U);
  EXPECT_GT(turned[1], turned[0] + control::kDelay);
}

/// The memory suffices for one of them, not for both.
TEST(DenseRules, OnlyOneRuleTakesSpareBandwidth) {
  Clocked group(two_laws(), [](uint64_t /*step*/) { return 2.2e6; });
  int most = 0;
  for (uint64_t step = 0; step < 80; ++step) {
    group.steps(step, step + 1);
    most = std::max(most, uncompressed_rules(group));
  }
  EXPECT_EQ(most, 1);
  EXPECT_EQ(uncompressed_rules(group), 1);
}

/// A rule that compresses nothing is no other.
TEST(DenseRules, RuleWithoutCompressionIsNotCounted) {
  test::Setup setup = two_laws();
  setup.rules = {rule("a.*", "none")};
  Clocked group(setup, fast);
  group.steps(0, 40);
  EXPECT_TRUE(uncompressed(group));
  EXPECT_TRUE(same_bits(group.steps(40, 41)[0], float32_mean(group.layout(), 40)));
}

/// 16-bit gradients: lanes are float32, and the mean is rounded once.
TEST(DenseRules, GradientsOf16BitsAreAccepted) {
  test::Setup setup = two_laws();
  setup.rules[0].control = "fixed";
  setup.control = "dc2:deadline_ms=1000000,max=0.06";
  Ranks group(setup);
  const Layout layout = back_to_back(kModel, {3, 2, 1, 0});
  for (uint64_t step = 0; step < 30; ++step) {
    const auto given = gradients(kWorld, layout.elements, step + 1);
    std::vector<std::vector<uint16_t>> half(kWorld, std::vector<uint16_t>(layout.elements));
    group.on_all([&](uint32_t r) {
      for (size_t i = 0; i < layout.elements; ++i) half[r][i] = float_to_bf16(given[r][i]);
      Bucket bucket;
      bucket.buffer = half[r].data();
      bucket.dtype = DType::bf16;
      bucket.step = step;
      ASSERT_TRUE(session::drive(group.session(r), bucket, layout, group.hub().engine(r)));
    });
    for (uint32_t r = 1; r < kWorld; ++r) ASSERT_EQ(half[0], half[r]);
    if (step < 25) continue;
    for (size_t i = kSmall; i < layout.elements - kModel[0].count(); ++i) {
      float sum = 0;
      for (const auto& g : given)
        sum += bf16_to_float(float_to_bf16(g[i])) * (1.0F / static_cast<float>(kWorld));
      ASSERT_EQ(half[0][i], float_to_bf16(sum)) << i;
    }
  }
}

/// Its sums are the engine's: saved state holds the buckets.
TEST(DenseWithRules, LayoutMattersIfFloat32IsAllowed) {
  test::Setup setup{"topk:ratio=0.05", kWorld, kModel, StrategyKind::gather_all, 16};
  for (const auto& [control, matters] : {std::pair{kLaw, true}, {"aimd", false}, {"", false}}) {
    setup.control = control;
    Clocked group(setup, fast);
    EXPECT_EQ(group.session(0).model().layout_matters(), matters) << control;
  }
}

TEST(DenseWithoutFeedback, NothingNeedsRelease) {
  test::Setup setup{"topk:ratio=0.05+noef", kWorld, kModel, StrategyKind::gather_all, 16};
  setup.control = kLaw;
  Clocked group(setup, fast);
  const auto means = group.steps(0, 20);
  EXPECT_TRUE(uncompressed(group));
  EXPECT_TRUE(same_bits(means[14], float32_mean(group.layout(), 14)));
}

/// A flush of the user's is float32 for some steps, which says nothing about the setting.
TEST(Laws, FlushIsHiddenFromPolicies) {
  test::Setup setup{"topk:ratio=0.05", kWorld, kModel, StrategyKind::gather_all, 16};
  setup.control = "dc2:deadline_ms=20,max=0.05";
  Clocked group(setup, [](uint64_t /*step*/) { return 6e5; });  // 14 ms; float32: 105 ms
  group.steps(0, 12);
  ASSERT_TRUE(group.session(0).flush(3));
  group.steps(12, 30);
  EXPECT_EQ(group.session(0).stats().setting_changes, 0U);
  EXPECT_GE(group.session(0).stats().flushes, 3U);
}

}  // namespace
}  // namespace laconic::test

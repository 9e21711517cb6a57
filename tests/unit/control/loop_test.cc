// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Laws in a closed loop with a link, in virtual time: what docs/results/control.md promises.
#include <gtest/gtest.h>

#include "support/control_loop.h"

namespace laconic::test {
namespace {

constexpr uint64_t kFall = scenario::kFall;
constexpr uint64_t kRise = scenario::kRise;

class ClosedLoop : public testing::TestWithParam<uint32_t> {
 protected:
  /// Over three seeds the mean of `measure`.
  template <class Measure>
  double mean_of(const Link& link, Measure&& measure, const std::string& control = "dc2") {
    double sum = 0;
    for (uint64_t seed = 1; seed <= 3; ++seed) sum += measure(run(link, control, seed));
    return sum / 3;
  }
  Loop::Run run(Link link, const std::string& control = "dc2", uint64_t seed = 1) {
    link.ranks = GetParam();
    link.delay_s *= (GetParam() - 1) / 7.0;  // in proportion to the time
    Loop loop;
    loop.link = link;
    loop.control = control;
    loop.seed = seed;
    auto done = loop.run();
    EXPECT_EQ(done.steps.size(), loop.steps);
    return done;
  }
};

Link jittery(double jitter) {
  Link link;
  link.jitter = jitter;
  return link;
}

TEST_P(ClosedLoop, SettingStaysNearOracleOnConstantLink) {
  EXPECT_GE(mean_of(Link{}, share_of_oracle), 0.88);
  EXPECT_GE(mean_of(jittery(0.05), share_of_oracle), 0.88);
  EXPECT_GE(mean_of(jittery(0.3), share_of_oracle), 0.80);
  Link delayed;
  delayed.delay_s = 0.01;
  EXPECT_GE(mean_of(delayed, share_of_oracle), 0.80);
  // It stands still, too.
  EXPECT_EQ(mean_of(jittery(0.05), [](const Loop::Run& r) { return share_above(r); }), 0);
  EXPECT_LE(mean_of(jittery(0.05), swing), 0.02);
}

TEST_P(ClosedLoop, SettingFollowsFallAndRise) {
  Link link = jittery(0.05);
  link.mbit = scenario::fall_and_rise;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const Loop::Run done = run(link, "dc2", seed);
    EXPECT_LE(steps_until_near(done, kFall, 0.35), 5U);
    EXPECT_LE(steps_until_near(done, kRise, 0.35), 40U);
    EXPECT_LE(share_above(done, {{kFall, kFall + 10}, {kRise, kRise + 40}}), 0.02);
    EXPECT_GE(share_of_oracle(done), 0.85);
  }
}

TEST_P(ClosedLoop, SettingFollowsSquareWave) {
  Link link = jittery(0.05);
  link.mbit = scenario::square;
  EXPECT_GE(mean_of(link, share_of_oracle), 0.85);
}

TEST_P(ClosedLoop, LateRankChangesNothing) {
  Link link = jittery(0.05);
  const Loop::Run without = run(link);
  link.late_s = 0.1;
  link.late_from = kFall;
  const Loop::Run with = run(link);
  for (std::size_t i = 0; i < with.steps.size(); ++i) {
    ASSERT_EQ(with.steps[i].value, without.steps[i].value) << i;
  }
  // The same link judged by the slowest rank: what the minimum over ranks is there for.
  link.maximum = true;
  EXPECT_LT(run(link).steps.back().value, 0.7 * without.steps.back().value);
}

TEST_P(ClosedLoop, Float32IsUsedWhileItFits) {
  Link link = jittery(0.05);
  link.mbit = scenario::wide_in_the_middle;
  Loop loop;
  loop.link = link;
  loop.link.ranks = GetParam();
  loop.control = "dc2:deadline_ms=" + std::to_string(7 * (GetParam() - 1));
  const Loop::Run done = loop.run();
  const auto& steps = done.steps;
  EXPECT_FALSE(steps[kFall - 1].uncompressed);
  EXPECT_TRUE(steps[kRise - 1].uncompressed);  // 10 Gbit/s
  EXPECT_FALSE(steps[kRise + 20].uncompressed);
  for (const control::Decision& d : done.decisions) {
    if (d.reason != control::Reason::dense_is_slow) continue;
    EXPECT_GT(d.slowdown, 1.5);
    EXPECT_EQ(d.to, loop.range().max);  // back to where it left
  }
}

TEST_P(ClosedLoop, ComparedPoliciesDoWorse) {
  const auto above = [](const Loop::Run& r) { return share_above(r); };
  EXPECT_GE(mean_of(jittery(0.05), above, "aimd"), 0.2);
  EXPECT_LE(mean_of(jittery(0.05), share_of_oracle, "bdp"), 0.6);
}

TEST_P(ClosedLoop, MeanIsKeptOverEveryThousandSteps) {
  Link link = jittery(0.05);
  link.mbit = [](uint64_t step) { return step < 300 ? 200 : 5.0; };
  Loop loop;
  loop.link = link;
  loop.link.ranks = GetParam();
  loop.control = "dc2:mean=0.006";
  loop.steps = 6000;
  const Loop::Run done = loop.run();
  double sum = 0;
  double least = 1;
  ASSERT_FALSE(done.decisions.empty());
  // Whole updates: windows that begin where decisions begin to hold.
  const uint64_t phase = (done.decisions[0].step + control::kDelay) % 5;
  uint64_t windows = 0;
  for (std::size_t i = 0; i < done.steps.size(); ++i) {
    if (i >= 1000 && i % 5 == phase) {
      ++windows;
      ASSERT_GE(sum / 1000, 0.006 * (1 - 1e-9)) << i;
    }
    sum += done.steps[i].value;
    least = std::min(least, done.steps[i].value);
    if (i >= 1000) sum -= done.steps[i - 1000].value;
  }
  EXPECT_EQ(windows, 1000U);
  EXPECT_LT(least, 0.003);  // it is a floor of the mean, not of the value
}

INSTANTIATE_TEST_SUITE_P(Ranks, ClosedLoop, testing::Values(2, 8, 64),
                         [](const auto& ranks) { return std::to_string(ranks.param); });

}  // namespace
}  // namespace laconic::test

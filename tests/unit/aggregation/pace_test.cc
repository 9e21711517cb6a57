// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How long steps take, in virtual time: workers with wires of 100 Mbit/s.
#include <gtest/gtest.h>

#include "support/subset.h"
#include "unit/aggregation/network.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

/// Steps of 1,100 granules of 1,024 quantized values of 4 bits: 1.1 million parameters.
Plan model(uint8_t needed, uint32_t exchanges, uint16_t ring) {
  Plan plan;
  protocol::JobSettings& s = plan.job;
  s.world = 4;
  s.needed = needed;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = ring;
  s.values = 8;
  s.lanes = 1024;
  s.deadline_us = 20000;
  s.timeout_ms = 30000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  plan.seed = 5;
  plan.exchanges = exchanges;
  plan.granules = 1100;
  return plan;
}

Time time_of(const Plan& plan, const Weather& weather, uint64_t lag_one_in = 0) {
  Network network(plan, weather, 1);
  for (uint32_t w = 0; w < plan.job.world; ++w) {
    network.lag(w, lag_one_in == 0 ? 0 : 300 * kMillisecond);
  }
  network.max_steps = 10000000;
  network.compute = lag_one_in == 0 ? 0 : 40 * kMillisecond;
  network.lag_one_in = std::max<uint64_t>(lag_one_in, 1);
  EXPECT_TRUE(network.run(300 * kSecond));
  Time last = 0;
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->got().size(), plan.exchanges * plan.granules);
    last = std::max(last, worker->closing_since);
  }
  return last / plan.exchanges;
}

TEST(Pace, TimeoutShrinksWindowAndDoubles) {
  aggregation::Pace pace(1024, 10 * kSecond);
  Time now = kSecond;
  for (int i = 0; i < 1000; ++i) {
    pace.sample(now, 10 * kMillisecond);
    pace.delivered(now += kMillisecond / 10, true);
  }
  const Time timeout = pace.timeout();
  ASSERT_GT(pace.window(), 64U);
  pace.timed_out();
  EXPECT_EQ(pace.window(), 4U);
  EXPECT_EQ(pace.timeout(), 2 * timeout);
  pace.timed_out();
  EXPECT_EQ(pace.window(), 4U);
  EXPECT_EQ(pace.timeout(), 4 * timeout);
  EXPECT_EQ(pace.timeouts_in_a_row(), 2U);
  for (int i = 0; i < 100; ++i) pace.delivered(now += kMillisecond / 10, true);
  EXPECT_GT(pace.window(), 32U) << "it grows with what comes";
  EXPECT_EQ(pace.timeout(), timeout);
}

TEST(Pace, StepAtOnePercentLossTakesLittleLonger) {
  if (kOneWorld)
    GTEST_SKIP() << "virtual time is the same under a sanitizer, and these runs are long";
  Weather dry, rain;
  dry.rate = rain.rate = 100000000;
  rain.loss_up = rain.loss_down = 0.01;
  const Plan plan = model(4, 10, 1024);
  const Time without = time_of(plan, dry);
  EXPECT_LE(time_of(plan, rain), without + without / 4);
}

// After a restart windows are small: workers that begin at different granules wait for each other.
TEST(Pace, RestartedWorkersBeginWithSameBlocks) {
  if (kOneWorld)
    GTEST_SKIP() << "virtual time is the same under a sanitizer, and these runs are long";
  Weather rain;
  rain.rate = 100000000;
  rain.loss_up = rain.loss_down = 0.01;
  rain.jitter = 3 * kMillisecond;
  const Plan plan = model(4, 2, 1024);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    Network network(plan, rain, seed);
    network.max_steps = 10000000;
    network.compute = 200 * kMillisecond;
    for (uint32_t w = 0; w < plan.job.world; ++w) network.lag(w, w * 130 * kMillisecond);
    network.at(200 * kMillisecond, [&] { network.stop_server(); });
    network.at(700 * kMillisecond, [&] { network.start_server(); });
    ASSERT_TRUE(network.run(300 * kSecond));
    for (const auto& worker : network.workers()) {
      EXPECT_EQ(worker->got().size(), plan.exchanges * plan.granules);
      EXPECT_LT(worker->closing_since, 10 * kSecond) << "seed " << seed;
    }
  }
}

// The ring bounds how far the others run ahead: 300 ms are 2.5 steps of theirs.
TEST(Pace, QuorumHelpsAgainstHiccups) {
  if (kOneWorld)
    GTEST_SKIP() << "virtual time is the same under a sanitizer, and these runs are long";
  Weather weather;
  weather.rate = 100000000;
  const Time whole = time_of(model(4, 40, 4096), weather, 8);
  EXPECT_LE(time_of(model(3, 40, 4096), weather, 8), whole * 9 / 10);
}

}  // namespace
}  // namespace laconic::test

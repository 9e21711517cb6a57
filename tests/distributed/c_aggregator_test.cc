// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Aggregation servers through the C ABI.
#include <chrono>
#include <cstddef>

#include "engines/c_step.h"
#include "support/serving.h"
#include "unit/capi/world.h"

namespace laconic::test {
namespace {

using std::chrono::milliseconds;

TEST(AggregatorStep, StepPassesBlocksOn) {
  const std::vector<uint8_t> payload(5);
  std::vector<uint8_t> room(7);
  const std::vector<Contribution> out{{payload, 9, 8, kGranuleValues}, {{}, 10, 11, kGranuleEmpty}};
  std::vector<Aggregate> in{{room, 1, 2, 3, 4, 5, 6}, {}};
  Step step;
  step.kind = StepKind::aggregate;
  step.contributions = out;
  step.aggregates = in;

  const laconic_step c = engines::to_c(step);
  ASSERT_EQ(c.kind, static_cast<uint32_t>(LACONIC_AGGREGATE));
  ASSERT_EQ(c.granules, 2U);
  EXPECT_EQ(c.contributions[0].payload, payload.data());
  EXPECT_EQ(c.contributions[0].payload_bytes, 5U);
  EXPECT_EQ(c.contributions[0].settings, 9U);
  EXPECT_EQ(c.contributions[0].norm, 8U);
  EXPECT_EQ(c.contributions[0].flags, LACONIC_GRANULE_VALUES);
  EXPECT_EQ(c.contributions[1].payload_bytes, 0U);
  EXPECT_EQ(c.contributions[1].flags, LACONIC_GRANULE_EMPTY);
  EXPECT_EQ(c.aggregates[0].lanes, room.data());
  EXPECT_EQ(c.aggregates[0].room, 7U);
  EXPECT_EQ(c.aggregates[0].bitmap, 1U);
  EXPECT_EQ(c.aggregates[0].length, 2U);
  EXPECT_EQ(c.aggregates[0].norm, 3U);
  EXPECT_EQ(c.aggregates[0].flags, 4U);
  EXPECT_EQ(c.aggregates[0].added, 5U);
  EXPECT_EQ(c.aggregates[0].divisor, 6U);
  EXPECT_EQ(LACONIC_GRANULE_TROUBLE, static_cast<int>(kGranuleTrouble));

  c.aggregates[1].bitmap = 77;
  const Step back = engines::from_c(c);
  EXPECT_EQ(back.kind, StepKind::aggregate);
  EXPECT_EQ(back.contributions.data(), out.data());
  EXPECT_EQ(back.aggregates.data(), in.data());
  EXPECT_EQ(back.contributions.size() + back.aggregates.size(), 4U);
  EXPECT_EQ(in[1].bitmap, 77U);
}

constexpr uint32_t kRanks = 3;

/// Ranks whose codes a server adds.
class CAggregator : public testing::Test {
 protected:
  laconic_aggregator_options options() {
    servers_ = server_.address();
    laconic_aggregator_options o{};
    o.struct_size = sizeof o;
    o.world = kRanks;
    o.servers = servers_.c_str();
    o.timeout_ms = 60'000;
    return o;
  }
  static laconic_aggregator* open(const laconic_aggregator_options& o) {
    laconic_aggregator* made = nullptr;
    EXPECT_EQ(laconic_aggregator_open(&o, &made), 0) << laconic_last_message();
    return made;
  }
  void join_all() {
    const laconic_aggregator_options o = options();
    std::vector<std::thread> threads;
    for (World::Rank& rank : world_.ranks) {
      rank.aggregator = open(o);
      threads.emplace_back([&rank] {
        EXPECT_EQ(laconic_aggregator_join(rank.aggregator, rank.session, 12, 100'000), 0)
            << laconic_last_message();
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void TearDown() override {
    std::vector<std::thread> threads;  // each waits for the others
    for (World::Rank& rank : world_.ranks) {
      threads.emplace_back(
          [&rank] { laconic_aggregator_close(std::exchange(rank.aggregator, nullptr), 100'000); });
    }
    for (std::thread& thread : threads) thread.join();
  }

  Serving server_;
  std::string servers_;
  World world_{{"thc:block=256", kRanks, LACONIC_STRATEGY_AUTO,
                1U << LACONIC_F32 | 1U << LACONIC_I32, true}};
};

TEST_F(CAggregator, ServerAddsForSessions) {
  EXPECT_NE(std::string(laconic_session_explain(world_.ranks[0].session)).find("server_sum"),
            std::string::npos);
  join_all();
  for (int step = 0; step < 4; ++step) {
    ASSERT_EQ(world_.exchange(), 0) << laconic_last_message();
    for (uint32_t r = 1; r < kRanks; ++r) {
      EXPECT_EQ(std::memcmp(world_.ranks[r].buffer.data(), world_.ranks[0].buffer.data(),
                            World::kElements * sizeof(float)),
                0);
    }
    std::vector<float> mean(World::kElements);
    for (uint32_t r = 0; r < kRanks; ++r) {
      const auto given =
          wave(World::kElements, static_cast<float>(r + 10 * static_cast<uint32_t>(step)));
      for (size_t i = 0; i < mean.size(); ++i) mean[i] += given[i] / kRanks;
    }
    double off = 0, all = 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      off += std::pow(mean[i] - world_.ranks[0].buffer[i], 2);
      all += std::pow(mean[i], 2);
    }
    EXPECT_LT(off, 0.5 * all) << "the mean of other gradients";
  }
  for (const World::Rank& rank : world_.ranks) {
    const std::string stats = laconic_aggregator_stats(rank.aggregator);
    EXPECT_NE(stats.find("\"joined\": 1"), std::string::npos) << stats;
    EXPECT_EQ(stats.find("\"rtt_us\": 0}"), std::string::npos) << stats;
  }
}

TEST_F(CAggregator, ServerIsInterruptedFromAnotherThread) {
  join_all();
  laconic_aggregator* const alone = world_.ranks[0].aggregator;
  std::vector<uint8_t> room(4 * 32);
  laconic_contribution out{};
  out.flags = LACONIC_GRANULE_EMPTY;
  laconic_aggregate in{};
  in.lanes = room.data();
  in.room = room.size();
  laconic_step step{};
  step.kind = LACONIC_AGGREGATE;
  step.granules = 1;
  step.contributions = &out;
  step.aggregates = &in;
  std::thread other([&] {
    std::this_thread::sleep_for(milliseconds(50));
    laconic_aggregator_interrupt(alone);
  });
  EXPECT_EQ(laconic_aggregator_run(alone, &step, sizeof step),
            static_cast<int32_t>(Errc::engine_failed));
  other.join();
  EXPECT_NE(std::string(laconic_aggregator_stats(alone)).find("\"joined\": 0"), std::string::npos);
  EXPECT_EQ(laconic_aggregator_run(alone, &step, sizeof step),
            static_cast<int32_t>(Errc::engine_failed));
  // Its socket is closed: the other ranks report which rank it was.
  EXPECT_EQ(laconic_aggregator_run(world_.ranks[1].aggregator, &step, sizeof step),
            static_cast<int32_t>(Errc::peer_failed));
  EXPECT_NE(std::string(laconic_last_message()).find("rank 0"), std::string::npos)
      << laconic_last_message();
}

TEST_F(CAggregator, ServerRefusesImpossibleOptions) {
  const auto refused = [&](auto change) {
    laconic_aggregator_options o = options();
    change(o);
    laconic_aggregator* made = nullptr;
    const int32_t code = laconic_aggregator_open(&o, &made);
    EXPECT_EQ(made, nullptr);
    laconic_aggregator_close(made, 0);
    return code;
  };
  constexpr auto kInvalid = static_cast<int32_t>(Errc::invalid_argument);
  EXPECT_EQ(refused([](auto& o) { o.servers = ""; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.token = "/nowhere/job.token"; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.quorum = 1.01; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.quorum = -0.5; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.deadline_us = 3'600'000'001; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.timeout_ms = 3'600'001; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.full_tags = 2; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.multicast = 2; }), kInvalid);
  EXPECT_EQ(refused([](auto& o) { o.world = 65; }), static_cast<int32_t>(Errc::unsupported));

  join_all();
  World::Rank& rank = world_.ranks[0];
  EXPECT_EQ(laconic_aggregator_join(rank.aggregator, rank.session, 13, 100),
            static_cast<int32_t>(Errc::exchange_order));
  laconic_step step{};
  step.kind = LACONIC_ALL_REDUCE;
  EXPECT_EQ(laconic_aggregator_run(rank.aggregator, &step, sizeof step), kInvalid);
  step.kind = LACONIC_AGGREGATE;
  EXPECT_EQ(laconic_aggregator_run(rank.aggregator, &step, offsetof(laconic_step, granules)),
            kInvalid);

  World by_group(
      {"thc:block=256", 1, LACONIC_STRATEGY_AUTO, 1U << LACONIC_F32 | 1U << LACONIC_I32});
  laconic_aggregator* const idle = open(options());
  EXPECT_EQ(laconic_aggregator_join(idle, by_group.ranks[0].session, 14, 100),
            static_cast<int32_t>(Errc::unsupported));
  laconic_aggregator_close(idle, 0);
}

TEST_F(CAggregator, SessionNamesMissingOptions) {
  laconic_session_options o = world_.options(0);
  laconic_session* made = nullptr;
  o.aggregates = 2;
  EXPECT_NE(laconic_session_create(&o, World::parameters(), 2, &made), 0);
  o.aggregates = 0;
  o.strategy = LACONIC_STRATEGY_SERVER_SUM;
  EXPECT_NE(laconic_session_create(&o, World::parameters(), 2, &made), 0);
  EXPECT_NE(std::string(laconic_last_message()).find("no aggregator"), std::string::npos);
  o.aggregates = 1;
  o.spec = "3lc";
  EXPECT_NE(laconic_session_create(&o, World::parameters(), 2, &made), 0);
  EXPECT_NE(std::string(laconic_last_message()).find("not quantized values that add"),
            std::string::npos);
}

}  // namespace
}  // namespace laconic::test

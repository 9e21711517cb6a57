// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The Gloo engine and its plug-in: the table, sums, one rank.
#include <sched.h>

#include <set>
#include <thread>

#include "engines/engine_table.h"
#include "engines/plugin/plugin.h"
#include "gloo_ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

// ---- the table ----

class GlooTable : public testing::TestWithParam<uint32_t> {};

TEST_P(GlooTable, GlooPassesTable) {
  const uint32_t world = GetParam();
  const Place place;
  const std::string where = world == 4 ? Place::port() : place.folder();
  Processes ranks(world, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, world, where));
    test::TableOptions wanted{.rank_order_sums = false};
    wanted.stride = test::kOneWorld ? 9 : 1;
    const auto outcome = test::run_engine_table(*engine, wanted);
    stage.say(outcome.passed() ? "passed" : outcome.first_failure);
  });
  for (uint32_t r = 0; r < world; ++r) EXPECT_EQ(ranks.heard(r), "passed");
}
INSTANTIATE_TEST_SUITE_P(Ranks, GlooTable, testing::Values(3, 4),
                         testing::PrintToStringParamName());

// ---- threads ----

/// "mine: 0, others: 3 0": of this thread, and of the others in the order of their numbers.
std::string policies() {
  std::set<pid_t> others;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    others.insert(std::stoi(entry.path().filename()));
  others.erase(::gettid());
  std::string said = "mine: " + std::to_string(::sched_getscheduler(0)) + ", others:";
  for (const pid_t other : others) said += " " + std::to_string(::sched_getscheduler(other));
  return said;
}

/// Gloo's own thread is the one that takes no core from another; the caller, and threads that begin
/// later, are as they were. Who has given all its threads another policy keeps it.
TEST(GlooThreads, ThreadsTakeNoCoreFromOthers) {
  static_assert(SCHED_OTHER == 0 && SCHED_BATCH == 3 && SCHED_IDLE == 5);
  const Place place, idle;
  Processes ranks(4, [&](uint32_t rank, const Stage& stage) {
    const sched_param none{};
    if (rank >= 2) (void)::sched_setscheduler(0, SCHED_IDLE, &none);
    const auto engine =
        join(stage, options(rank % 2, 2, rank < 2 ? place.folder() : idle.folder()));
    stage.say(policies());
    std::thread later([&] { stage.say("mine: " + std::to_string(::sched_getscheduler(0))); });
    later.join();
    const Batch batch(StepKind::all_reduce, rank % 2, 2, 3U << 20U, 2);
    stage.say(text(engine->run(batch.steps())));
  });
  for (uint32_t r = 0; r < 4; ++r) {
    const std::string usual = r < 2 ? "0" : "5", said = ranks.heard(r);
    EXPECT_TRUE(said.starts_with("mine: " + usual + ", others: ")) << said;
    const std::string others = said.substr(said.find("others: "));
    EXPECT_EQ(std::count(others.begin(), others.end(), '3'), r < 2 ? 1 : 0) << said;
    EXPECT_GE(std::count(others.begin(), others.end(), '5'), r < 2 ? 0 : 1) << said;
    EXPECT_EQ(ranks.heard(r), "mine: " + usual);
    EXPECT_EQ(ranks.heard(r), "ok");
  }
}

// ---- batches in flight ----

/// Rank 2 comes to the first batch when rank 1 has what rank 0 sends it in the second.
TEST(GlooInFlight, LaterBatchRunsWhileEarlierOneWaits) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 3, place.folder()));
    uint8_t sent = static_cast<uint8_t>(40 + rank), got[2] = {};
    const auto with = [&](uint32_t peer, uint8_t* at) { return Message{peer, &sent, 1, at, 1}; };
    const Message first = with(rank == 0 ? 2 : 0, got), second = with(rank == 0 ? 1 : 0, got + 1);
    Step steps[2];
    for (Step& step : steps) step.kind = StepKind::messages;
    steps[1].tag = 1;
    if (rank != 1) steps[0].messages = {&first, 1};
    if (rank != 2) steps[1].messages = {&second, 1};
    if (rank == 2) stage.await_go();
    const auto earlier = engine->start({steps, 1}), later = engine->start({steps + 1, 1});
    if (rank == 1) {
      const auto done = engine->wait(*later, Clock::now() + kLong);
      stage.say(text(done) + std::to_string(got[1]));
      stage.say(text(engine->wait(*earlier, Clock::now() + kLong)));
      return;
    }
    for (const auto& ticket : {earlier, later})
      stage.say(text(engine->wait(*ticket, Clock::now() + kLong)));
    stage.say(std::to_string(got[0]) + " " + std::to_string(got[1]));
  });
  EXPECT_EQ(ranks.heard(1), "ok40");
  ranks.go(2);
  EXPECT_EQ(ranks.heard(1), "ok");
  for (const uint32_t r : {0U, 2U}) {
    EXPECT_EQ(ranks.heard(r), "ok");
    EXPECT_EQ(ranks.heard(r), "ok");
    EXPECT_EQ(ranks.heard(r), r == 0 ? "42 41" : "40 0");
  }
}

/// The largest number of batches in flight, with sums between, waited for in another order.
TEST(GlooInFlight, SumsAndMessagesDoNotInterfere) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 3, place.folder()));
    constexpr StepKind kKinds[] = {StepKind::messages, StepKind::all_reduce, StepKind::all_gather,
                                   StepKind::all_reduce, StepKind::all_to_all};
    uint32_t tag = 0, wrong = 0;
    for (uint32_t round = 0; round < 20; ++round) {
      std::vector<std::unique_ptr<Batch>> batches;
      std::vector<Ticket> tickets;
      for (uint32_t i = 0; i < kMaxTickets; ++i) {
        const uint64_t bytes = 1 + (i * 7919 + round * 104729) % 300000;
        batches.push_back(std::make_unique<Batch>(kKinds[(i + round) % 5], rank, 3, bytes, ++tag));
        const auto ticket = engine->start(batches.back()->steps());
        if (!ticket) return stage.say(text(ticket));
        tickets.push_back(*ticket);
      }
      for (uint32_t i = 0; i < kMaxTickets; ++i) {
        const uint32_t k = (i * 5 + rank) % kMaxTickets;
        const auto done = engine->wait(tickets[k], Clock::now() + kLong);
        if (!done) return stage.say(text(done));
        wrong += batches[k]->complete() ? 0U : 1U;
      }
    }
    stage.say(std::to_string(wrong) + " wrong");
  });
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.heard(r), "0 wrong");
}

/// Before rank 2 has come to the sum, what rank 0 sends after it does not reach rank 1.
TEST(GlooInFlight, NothingStartsAfterUnfinishedSum) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 3, place.folder()));
    const Batch sum(StepKind::all_reduce, rank, 3, 1000, 1);
    Batch behind(StepKind::messages, rank, 3, 1000, 2);
    if (rank == 2) stage.await_go();
    const auto first = engine->start(sum.steps()), second = engine->start(behind.steps());
    if (rank < 2) {
      std::this_thread::sleep_for(milliseconds(200));
      stage.say(behind.is_all(0) ? "" : "arrived");
    }
    for (const auto& ticket : {first, second})
      stage.say(text(engine->wait(*ticket, Clock::now() + kLong)));
    stage.say(sum.complete() && behind.complete() ? "complete" : "wrong");
  });
  EXPECT_EQ(ranks.heard(0) + ranks.heard(1), "");
  ranks.go(2);
  for (uint32_t r = 0; r < 3; ++r) {
    EXPECT_EQ(ranks.heard(r), "ok");
    EXPECT_EQ(ranks.heard(r), "ok");
    EXPECT_EQ(ranks.heard(r), "complete");
  }
}

/// Names, of two missing ranks, the one that a batch of messages needs.
TEST(GlooInFlight, TimeoutNamesRanksNeededByBatch) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 3, place.folder()));
    uint8_t sent = 1, got = 0;
    const Message message{1, &sent, 1, &got, 1};
    Step step;
    step.kind = StepKind::messages;
    step.messages = {&message, 1};
    if (rank != 0) return stage.await_go();
    const auto ticket = engine->start({&step, 1});
    stage.say(text(engine->wait(*ticket, Clock::now() + milliseconds(300))));
  });
  const std::string said = ranks.heard(0);
  EXPECT_TRUE(said.starts_with("timed_out: rank 1 did not answer")) << said;
}

/// Rank 0 waits for both others. Rank 1 reports that it waits as well, a tenth of a second after
/// the timeout: one run of several has to show it, where the machine lets it be in time.
TEST(GlooInFlight, RankAboutToReportItsWaitIsNotNamed) {
  constexpr int kRuns = 8;
  std::string said;
  for (int run = 0; run < kRuns && !said.starts_with("timed_out: rank 2 did not answer"); ++run) {
    const Place place;
    Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
      const auto engine = join(stage, options(rank, 3, place.folder()));
      std::array<uint8_t, 3> sent{}, got{};
      const std::array messages{Message{1, &sent[1], 1, &got[1], 1},
                                Message{2, &sent[2], 1, &got[2], 1}};
      Step step;
      step.kind = StepKind::messages;
      step.messages = messages;
      if (rank == 0) {
        const auto ticket = engine->start({&step, 1});
        return stage.say(text(engine->wait(*ticket, Clock::now() + seconds(1))));
      }
      if (rank == 1) {
        const auto end = Clock::now() + kLong;
        const auto board = rendezvous::open(place.folder(), 1, 3, end);
        // At three quarters of its timeout.
        while (board && (*board)->get("waits.0.1", end)->empty() && Clock::now() < end)
          std::this_thread::sleep_for(milliseconds(1));
        std::this_thread::sleep_for(milliseconds(350));
        (void)(*board)->put("waits.1.1", "1", end);
      }
      stage.await_go();
    });
    said = ranks.heard(0);
  }
  EXPECT_TRUE(said.starts_with("timed_out: rank 2 did not answer")) << said;
}

/// A thread that closes a connection waits for Gloo's thread, which then waits for no one.
TEST(GlooInFlight, EndDoesNotRaceWithPosting) {
  constexpr uint32_t kRounds = 25;
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    for (uint32_t round = 0; round < kRounds; ++round) {
      auto engine = join(stage, options(rank, 2, place.folder(std::to_string(round))));
      std::vector<std::unique_ptr<Batch>> batches;
      for (uint32_t i = 0; i < kMaxTickets; ++i) {
        batches.push_back(std::make_unique<Batch>(StepKind::messages, rank, 2, 1U << 20U, i));
        (void)engine->start(batches.back()->steps());
      }
      std::this_thread::sleep_for(std::chrono::microseconds(97 * round));
      engine.reset();
    }
    stage.say("ended");
  });
  for (uint32_t r = 0; r < 2; ++r) EXPECT_EQ(ranks.heard(r), "ended");
}

/// Neither by a batch that was in flight after the one that failed nor by one that begins later.
TEST(GlooInFlight, MemoryIsUnusedAfterEndOfGroup) {
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 2, place.folder()));
    Batch first(StepKind::all_gather, rank, 2, 1000, 1),
        second(StepKind::all_gather, rank, 2, 1U << 20U, 2),
        third(StepKind::all_gather, rank, 2, 1000, 3);
    if (rank == 1) return stage.await_go();
    const auto one = engine->start(first.steps()), two = engine->start(second.steps());
    stage.say("started");
    stage.say(text(engine->wait(*one, Clock::now() + kLong)));
    for (Batch* batch : {&first, &second, &third}) batch->overwrite(0x5A);
    const auto three = engine->start(third.steps());
    stage.say(text(engine->wait(*two, Clock::now() + kLong)));
    stage.say(text(engine->wait(*three, Clock::now() + kLong)));
    std::this_thread::sleep_for(milliseconds(50));
    for (const Batch* batch : {&first, &second, &third})
      stage.say(batch->is_all(0x5A) ? "untouched" : "written to");
  });
  EXPECT_EQ(ranks.heard(0), "started");
  ranks.send(1, SIGKILL);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ranks.heard(0), "peer_failed: rank 1 is gone");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ranks.heard(0), "untouched");
}

// ---- the plug-in ----

engines::PluginOptions plugged(uint32_t rank, uint32_t world, const std::string& where) {
  engines::PluginOptions wanted;
  wanted.timeout = kLong;
  wanted.rank = rank;
  wanted.world = world;
  wanted.rendezvous = where;
  wanted.interface = "lo";
  return wanted;
}

std::string plugin_file() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../lib" /
         LACONIC_GLOO_PLUGIN;
}

TEST(GlooPlugin, PluginPassesTable) {
  const Place place;
  Processes ranks(3, [&](uint32_t rank, const Stage& stage) {
    auto engine = engines::open_plugin(plugin_file(), plugged(rank, 3, place.folder()));
    if (!engine) return stage.say(text(engine));
    test::TableOptions options{.rank_order_sums = false};
    options.stride = test::kOneWorld ? 15 : 5;
    const auto outcome = test::run_engine_table(**engine, options);
    stage.say(outcome.passed() ? "passed" : outcome.first_failure);
  });
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(ranks.heard(r), "passed");
}

TEST(GlooPlugin, PluginDescribesItselfAndErrors) {
  Processes ranks(1, [&](uint32_t, const Stage& stage) {
    const auto table = engines::load_plugin(plugin_file());
    stage.say(table ? std::string((*table)->engine) + ", " + (*table)->library : text(table));
    stage.say(text(engines::open_plugin(plugin_file(), plugged(3, 3, "file:x"))));
    stage.say(text(engines::open_plugin(plugin_file(), plugged(0, 3, "x"))));
    stage.say(text(engines::open_plugin(plugin_file(), plugged(0, 0, "file:x"))));
  });
  EXPECT_EQ(ranks.heard(0), "gloo, " + GlooEngine::library());
  EXPECT_TRUE(ranks.heard(0).ends_with("there is no rank 3 in a world of 3"));
  EXPECT_TRUE(ranks.heard(0).ends_with("invalid rendezvous 'x'"));
  EXPECT_TRUE(ranks.heard(0).ends_with("there is no rank 0 in a world of 0"));
}

/// An exception of Gloo is caught in the plug-in, which reports its fault.
TEST(GlooPlugin, PluginNamesLostRank) {
  constexpr uint32_t kWorld = 3;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    auto engine = engines::open_plugin(plugin_file(), plugged(rank, kWorld, place.folder()));
    if (!engine) return stage.say(text(engine));
    const Batch batch(StepKind::all_gather, rank, kWorld, 3 << 20, 2);
    stage.say("ready");
    if (rank == 2) stage.await_go();
    stage.say(text(batch.run(**engine)));
    stage.say(text(batch.run(**engine)));
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 0U, 1U}) {
    const std::string said = ranks.heard(r);
    EXPECT_TRUE(said.ends_with("rank 2 is gone")) << said;
  }
}

// ---- sums ----

/// Two ranks have one order of summing: 16-bit lanes are those of one rounded addition.
TEST(GlooSums, SumsRoundLikeAddition) {
  constexpr uint64_t kCount = 5001;
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, 2, place.folder()));
    for (const DType type : {DType::f16, DType::bf16}) {
      const auto narrow = [&](float x) {
        return type == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
      };
      const auto wide = [&](uint16_t x) {
        return type == DType::f16 ? f16_to_float(x) : bf16_to_float(x);
      };
      std::vector<uint16_t> lanes, expected;
      for (uint64_t i = 0; i < kCount; ++i) {
        lanes.push_back(narrow(noise(rank, i)));
        expected.push_back(narrow(wide(narrow(noise(0, i))) + wide(narrow(noise(1, i)))));
      }
      auto* at = reinterpret_cast<uint8_t*>(lanes.data());
      const Step step{.dtype = type, .tag = 1, .count = kCount, .send = at, .recv = at};
      if (auto done = engine->run({&step, 1}); !done) stage.say(text(done));
      stage.say(lanes == expected ? "equal" : "different");
    }
  });
  for (const uint32_t r : {0U, 1U, 0U, 1U}) EXPECT_EQ(ranks.heard(r), "equal");
}

TEST(GlooSums, SumsHaveSameBitsOnAllRanks) {
  constexpr uint32_t kWorld = 4;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    std::vector<float> lanes;
    for (uint64_t i = 0; i < 100'003; ++i) lanes.push_back(noise(rank, i));
    auto* at = reinterpret_cast<uint8_t*>(lanes.data());
    const Step step{.dtype = DType::f32, .tag = 1, .count = lanes.size(), .send = at, .recv = at};
    if (auto done = engine->run({&step, 1}); !done) stage.say(text(done));
    uint64_t hash = 0;
    for (size_t i = 0; i < lanes.size() * 4; ++i) hash = hash * 1099511628211U + at[i];
    stage.say(std::to_string(hash));
  });
  const std::string first = ranks.heard(0);
  for (uint32_t r = 1; r < kWorld; ++r) EXPECT_EQ(ranks.heard(r), first);
}

// ---- one rank ----

TEST(GlooEngineAlone, OneRankNeedsNoPeer) {
  auto engine = GlooEngine::create({});
  ASSERT_TRUE(engine) << text(engine);
  for (const StepKind kind :
       {StepKind::all_reduce, StepKind::all_gather, StepKind::all_to_all, StepKind::messages}) {
    const Batch batch(kind, 0, 1, 100, 1);
    EXPECT_EQ(text(batch.run(**engine)), "ok");
    EXPECT_TRUE(batch.complete());
    EXPECT_EQ(text((*engine)->run(batch.steps())), "ok");
  }
}

}  // namespace
}  // namespace laconic::test

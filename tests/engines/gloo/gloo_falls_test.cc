// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks over Gloo that die, stop, or end: which ranks report it, and what is kept.
#include <cmath>

#include "gloo_ranks.h"
#include "laconic/session.h"

namespace laconic::test {
namespace {

// ---- a rank dies, a rank stops ----

/// When it happens: no batch yet, between two, or in the middle of one.
struct Phase {
  const char* name;
  bool in_batch;
  bool first;
  StepKind kind;
};
const Phase kPhases[] = {{"before_the_first", false, true, StepKind::all_reduce},
                         {"between_batches", false, false, StepKind::all_gather},
                         {"in_all_reduce", true, false, StepKind::all_reduce},
                         {"in_all_gather", true, false, StepKind::all_gather},
                         {"in_all_to_all", true, false, StepKind::all_to_all},
                         {"in_messages", true, false, StepKind::messages}};
constexpr uint64_t kBytes = 3 << 20;  // more than sockets hold

struct Fall {
  Phase phase;
  bool tcp;
  uint32_t victim;
};
std::string name_of(const testing::TestParamInfo<Fall>& info) {
  return std::string(info.param.phase.name) + (info.param.tcp ? "_tcp" : "_file") + "_rank" +
         std::to_string(info.param.victim);
}
std::vector<Fall> falls(const std::vector<std::pair<bool, uint32_t>>& kinds) {
  std::vector<Fall> all;
  for (const Phase& phase : kPhases) {
    for (const auto& [tcp, victim] : kinds) all.push_back({phase, tcp, victim});
  }
  return all;
}

class GlooFall : public testing::TestWithParam<Fall> {
 protected:
  static constexpr uint32_t kWorld = 4;
  /// Ranks run until `victim` has got `signal` in its phase; survivors report how their batch
  /// ended, then do what `after` requests. In the middle of a batch `held` begin it later, so that
  /// no rank can have completed it before.
  void fall(int signal, milliseconds timeout, const std::vector<uint32_t>& held,
            const std::function<void(uint32_t, const Stage&, std::unique_ptr<GlooEngine>, Batch&)>&
                after) {
    const Phase phase = GetParam().phase;
    const bool tcp = GetParam().tcp;
    const uint32_t victim = GetParam().victim;
    const std::string where = tcp ? Place::port() : place_.folder();
    ranks_ = std::make_unique<Processes>(kWorld, [&](uint32_t rank, const Stage& stage) {
      auto engine = join(stage, options(rank, kWorld, where));
      if (!phase.first) {
        const Batch batch(StepKind::all_reduce, rank, kWorld, 1000, 1);
        if (const auto done = batch.run(*engine); !done || !batch.complete()) stage.say(text(done));
      }
      Batch batch(phase.kind, rank, kWorld, kBytes, 2);
      Result<Ticket> ticket = Errc::internal;
      const bool later = !phase.in_batch || std::count(held.begin(), held.end(), rank) != 0;
      if (!later) ticket = engine->start(batch.steps());
      stage.say("ready");
      if (later) stage.await_go();
      if (later) ticket = engine->start(batch.steps());
      // One after the other, so that the first has to report to the others why it leaves.
      const auto limit = rank == victim ? kLong : timeout + rank * milliseconds(40);
      stage.say(text(engine->wait(*ticket, Clock::now() + limit)));
      after(rank, stage, std::move(engine), batch);
    });
    for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks_->heard(r), "ready");
    ranks_->send(victim, signal);
    if (!phase.in_batch) survivors([&](uint32_t r) { ranks_->go(r); });
  }
  void survivors(const std::function<void(uint32_t)>& act) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      if (r != GetParam().victim) act(r);
    }
  }
  Place place_;
  std::unique_ptr<Processes> ranks_;
};

class GlooKill : public GlooFall {};

TEST_P(GlooKill, DeathIsReportedWithRankAndNewGroupWorks) {
  const uint32_t victim = GetParam().victim;
  const std::string next = GetParam().tcp ? Place::port() : place_.folder("b");
  fall(SIGKILL, kLong, {1},
       [&](uint32_t rank, const Stage& stage, std::unique_ptr<GlooEngine> engine, Batch& batch) {
         stage.say(text(batch.run(*engine)));  // and ever after
         engine.reset();
         const uint32_t fewer = rank - (rank > victim ? 1 : 0);
         engine = join(stage, options(fewer, kWorld - 1, next));
         const Batch again(StepKind::all_reduce, fewer, kWorld - 1, 1000, 1);
         const auto done = again.run(*engine);
         stage.say(text(done) + (again.complete() ? "" : ", but wrong"));
       });
  const std::string gone = "peer_failed: rank " + std::to_string(victim) + " is gone";
  for (const uint32_t r : {0U, 2U, 3U, 1U}) {
    if (r == victim) continue;
    if (r == 1 && GetParam().phase.in_batch) ranks_->go(1);
    EXPECT_EQ(ranks_->heard(r), gone);
    EXPECT_EQ(ranks_->heard(r), gone);
  }
  survivors([&](uint32_t r) { EXPECT_EQ(ranks_->heard(r), "ok"); });
}
INSTANTIATE_TEST_SUITE_P(Phases, GlooKill,
                         testing::ValuesIn(falls({{false, 2}, {true, 2}, {true, 0}})), name_of);

class GlooStall : public GlooFall {};

TEST_P(GlooStall, StallTimesOutWithRankAndMemoryStays) {
  const uint32_t victim = GetParam().victim;
  std::vector<uint32_t> others;
  survivors([&](uint32_t r) { others.push_back(r); });
  fall(SIGSTOP, milliseconds(600), others,
       [&](uint32_t rank, const Stage& stage, std::unique_ptr<GlooEngine>, Batch& batch) {
         if (rank == victim) return;
         batch.overwrite(0x5A);
         stage.await_go();
         stage.say(batch.is_all(0x5A) ? "untouched" : "written to");
       });
  if (GetParam().phase.in_batch) survivors([&](uint32_t r) { ranks_->go(r); });
  survivors([&](uint32_t r) {
    const std::string said = ranks_->heard(r);
    const std::string rank = "timed_out: rank " + std::to_string(victim) + " did not answer";
    EXPECT_TRUE(said.starts_with(rank)) << "rank " << r << ": " << said;
  });
  ranks_->send(victim, SIGCONT);
  if (!GetParam().phase.in_batch) ranks_->go(victim);
  const std::string said = ranks_->heard(victim);  // all have left it
  EXPECT_TRUE(said.find(": rank") != std::string::npos) << said;
  survivors([&](uint32_t r) {
    ranks_->go(r);
    EXPECT_EQ(ranks_->heard(r), "untouched");
  });
}
INSTANTIATE_TEST_SUITE_P(Phases, GlooStall, testing::ValuesIn(falls({{false, 2}, {true, 0}})),
                         name_of);

/// run() itself, without start and wait.
TEST(GlooRun, DeathIsDetected) {
  constexpr uint32_t kWorld = 4;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    const Batch batch(StepKind::all_reduce, rank, kWorld, kBytes, 2);
    stage.say("ready");
    if (rank == 2) stage.await_go();
    stage.say(text(engine->run(batch.steps())));
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 3U}) EXPECT_EQ(ranks.heard(r), "peer_failed: rank 2 is gone");
}

/// Gloo itself ends no wait for a message of which a part has arrived.
TEST(GlooRun, DeathMidMessageIsDetected) {
  constexpr uint32_t kWorld = 2;
  constexpr uint64_t kBig = uint64_t{256} << 20;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    auto engine = join(stage, options(rank, kWorld, place.folder()));
    auto sender = static_cast<float>(rank == 1 ? ::getpid() : 0);  // exact below 2^24
    auto* at = reinterpret_cast<uint8_t*>(&sender);
    const Step tell{.dtype = DType::f32, .tag = 1, .count = 1, .send = at, .recv = at};
    if (auto done = engine->run({&tell, 1}); !done) stage.say(text(done));
    std::vector<uint8_t> data(kBig, static_cast<uint8_t>(rank));
    Message message{1 - rank, nullptr, 0, data.data(), kBig};
    if (rank == 1) message = {0, data.data(), kBig, nullptr, 0};
    const Step step{.kind = StepKind::messages, .tag = 2, .messages = {&message, 1}};
    auto ticket = engine->start({&step, 1});
    if (rank == 0) {
      const volatile uint8_t* part = data.data() + 1'000'000;
      while (*part == 0) std::this_thread::yield();
      ::kill(static_cast<pid_t>(sender), SIGKILL);
    }
    stage.say(text(engine->wait(*ticket, Clock::now() + kLong)));
    engine.reset();
    stage.say("ended");
  });
  EXPECT_EQ(ranks.heard(0), "peer_failed: rank 1 is gone");
  EXPECT_EQ(ranks.heard(0), "ended");
}

// ---- the end ----

/// Rank 0 ends its engine while others still need each other, but not rank 0.
TEST(GlooEnd, NormalEndDisturbsNoRank) {
  constexpr uint32_t kWorld = 3;
  for (const bool tcp : {false, true}) {
    const Place place;
    const std::string where = tcp ? Place::port() : place.folder();
    Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
      auto engine = join(stage, options(rank, kWorld, where));
      std::vector<uint8_t> out(1000, static_cast<uint8_t>(rank)), in(1000);
      std::vector<Message> messages;
      if (rank != 0) messages = {{3 - rank, out.data(), 1000, in.data(), 1000}};
      const Step step{.kind = StepKind::messages, .tag = 1, .messages = messages};
      stage.say("ready");
      if (rank == 2) stage.await_go();
      auto ticket = engine->start({&step, 1});
      // Long enough for a false alarm to arrive.
      const auto done = engine->wait(*ticket, Clock::now() + kLong);
      stage.say(text(done) + (rank == 0 || in[999] == 3 - rank ? "" : ", but wrong"));
      if (rank == 0) {
        engine.reset();
        stage.say("ended");
      }
      if (rank != 0) {
        engine->run({&step, 1}) ? stage.say("ok") : stage.say("not again");
        const Batch all(StepKind::all_gather, rank, kWorld, 10, 2);
        stage.say(text(all.run(*engine)));
      }
    });
    for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ready");
    EXPECT_EQ(ranks.heard(0), "ok");
    EXPECT_EQ(ranks.heard(0), "ended");
    EXPECT_EQ(ranks.heard(0), "(ended)");
    ranks.go(2);
    for (const uint32_t r : {1U, 2U}) {
      EXPECT_EQ(ranks.heard(r), "ok");
      EXPECT_EQ(ranks.heard(r), "ok");
      EXPECT_EQ(ranks.heard(r), "peer_failed: rank 0 has ended before the others");
    }
  }
}

TEST(GlooEnd, EndMidBatchMakesItReturn) {
  const Place place;
  Processes ranks(2, [&](uint32_t rank, const Stage& stage) {
    auto engine = join(stage, options(rank, 2, place.folder()));
    const Batch batch(StepKind::all_reduce, rank, 2, kBytes, 1);
    stage.say("ready");
    stage.await_go();
    if (rank == 0) {
      EXPECT_TRUE(engine->start(batch.steps()));
      engine.reset();
      stage.say("ended");
    } else {
      stage.say(text(batch.run(*engine)));
    }
  });
  for (const uint32_t r : {0U, 1U}) ASSERT_EQ(ranks.heard(r), "ready");
  ranks.go(0);
  EXPECT_EQ(ranks.heard(0), "ended");
  ranks.go(1);
  const std::string said = ranks.heard(1);
  EXPECT_TRUE(said.starts_with("peer_failed: rank 0 ")) << said;
}

/// The last batch of a group that ends immediately, many times.
TEST(GlooEnd, EndLosesNothingOfLastBatch) {
  constexpr uint32_t kWorld = 4, kTimes = 8;
  const Place place;
  for (uint32_t turn = 0; turn < kTimes; ++turn) place.folder(std::to_string(turn));
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    for (uint32_t turn = 0; turn < kTimes; ++turn) {
      const auto engine = join(stage, options(rank, kWorld, place.folder(std::to_string(turn))));
      const Batch batch(turn % 2 == 0 ? StepKind::all_reduce : StepKind::all_to_all, rank, kWorld,
                        300'000, 1);
      const auto done = batch.run(*engine);
      if (!done || !batch.complete()) stage.say(text(done));
    }
    stage.say("ended");
  });
  for (uint32_t r = 0; r < kWorld; ++r) EXPECT_EQ(ranks.heard(r), "ended");
}

// ---- sessions ----

struct Training {
  const char* spec;
  const char* plan;
};
class GlooSession : public testing::TestWithParam<Training> {};

/// Rank 2 dies in the first exchange: all that the others were to send stays in their residuals.
TEST_P(GlooSession, DeadRankCostsSurvivorsNothing) {
  constexpr uint32_t kWorld = 4;
  constexpr uint64_t kRows = 300, kCols = 700;
  const Place place;
  Processes ranks(kWorld, [&](uint32_t rank, const Stage& stage) {
    const auto engine = join(stage, options(rank, kWorld, place.folder()));
    auto session =
        Session::create(GetParam().spec, {{"w", kRows, kCols}}, *engine, {.plan = GetParam().plan});
    std::vector<float> gradient;
    double squares = 0;
    for (uint64_t i = 0; i < kRows * kCols; ++i) {
      gradient.push_back(noise(rank, i));
      squares += std::pow(static_cast<double>(gradient.back()), 2);
    }
    stage.say(text(session));
    if (!session) return;
    if (rank == 2) stage.await_go();
    const auto done = (*session)->average(0, gradient);
    const std::string stats = (*session)->stats(), key = "\"residual_norm\":";
    const double norm = std::strtod(stats.c_str() + stats.find(key) + key.size(), nullptr);
    stage.say(text(done));
    stage.say(std::fabs(norm / std::sqrt(squares) - 1) < 1e-6 ? "kept" : stats);
  });
  for (uint32_t r = 0; r < kWorld; ++r) ASSERT_EQ(ranks.heard(r), "ok");
  ranks.send(2, SIGKILL);
  for (const uint32_t r : {0U, 1U, 3U}) {
    EXPECT_EQ(ranks.heard(r), "peer_failed: rank 2 is gone");
    EXPECT_EQ(ranks.heard(r), "kept");
  }
}
INSTANTIATE_TEST_SUITE_P(Strategies, GlooSession,
                         testing::Values(Training{"fp16+ef", "native_sum"},
                                         Training{"topk:ratio=0.05", "gather_all"},
                                         Training{"3lc", "two_shot"}),
                         [](const auto& training) { return std::string(training.param.plan); });

}  // namespace
}  // namespace laconic::test

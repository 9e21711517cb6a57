// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The driver of C programs, over an engine that is a table of callbacks.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "laconic/laconic.h"
#include "laconic/loopback.h"
#include "support/forked.h"
#include "support/on_all.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 2;
constexpr uint64_t kSizes[] = {400, 300, 200};

constexpr int32_t code_of(Errc code) { return static_cast<int32_t>(code); }

/// An engine of the hub behind the C callbacks; `fails_at`: the start that fails.
struct Ring {
  explicit Ring(LoopbackHub& hub, uint32_t rank) : engine(&hub.engine(rank)) {
    table.struct_size = sizeof table;
    table.rank = rank;
    table.world = kWorld;
    table.context = this;
    table.timeout = 60;
    table.start = [](void* self, const laconic_step* steps, uint32_t size, uint32_t count,
                     uint64_t* ticket, char* message, uint64_t room) {
      return static_cast<Ring*>(self)->start(steps, size, count, ticket, message, room);
    };
    table.wait = [](void* self, uint64_t ticket, double, char*, uint64_t) {
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
      const auto done = static_cast<Ring*>(self)->engine->wait({ticket}, deadline);
      return done ? 0 : static_cast<int32_t>(done.error().code);
    };
    table.settle = [](void* self, uint64_t) { ++static_cast<Ring*>(self)->settled; };
  }
  int32_t start(const laconic_step* steps, uint32_t size, uint32_t count, uint64_t* ticket,
                char* message, uint64_t room) {
    if (starts++ == fails_at) {
      std::strncpy(message, "the cable is cut", room);
      return code_of(Errc::engine_failed);
    }
    EXPECT_EQ(size, sizeof(laconic_step));
    std::vector<Step> batch;
    for (const laconic_step& s : std::span(steps, count)) {
      Step step{.kind = static_cast<StepKind>(s.kind),
                .dtype = static_cast<DType>(s.dtype),
                .tag = s.tag,
                .count = s.count,
                .send = static_cast<uint8_t*>(s.send),
                .recv = static_cast<uint8_t*>(s.recv)};
      if (step.kind != StepKind::all_reduce) {
        step.send_counts = {s.send_counts, kWorld};
        step.recv_counts = {s.recv_counts, kWorld};
        step.send_offsets = {s.send_offsets, kWorld};
        step.recv_offsets = {s.recv_offsets, kWorld};
      }
      batch.push_back(step);
    }
    const auto started = engine->start(batch);
    if (!started) return static_cast<int32_t>(started.error().code);
    *ticket = started->number;
    return 0;
  }

  laconic_engine_table table{};
  Engine* engine;
  int starts = 0, fails_at = -1, settled = 0;
};

struct Rank {
  Rank(LoopbackHub& hub, uint32_t rank, const char* spec = "3lc") : ring(hub, rank) {
    laconic_session_options options{};
    options.struct_size = sizeof options;
    options.rank = rank;
    options.world = kWorld;
    options.spec = spec;
    options.small_elements = 16;
    options.engine_sums = 1U << LACONIC_F32;
    options.window = 2;
    options.strategy = LACONIC_STRATEGY_GATHER_ALL;
    laconic_parameter parameters[] = {
        {"a", kSizes[0], 1}, {"b", kSizes[1], 1}, {"c", kSizes[2], 1}};
    EXPECT_EQ(laconic_session_create(&options, parameters, 3, &session), 0);
    for (const uint64_t size : kSizes) values.emplace_back(size, 1.0F + static_cast<float>(rank));
  }
  ~Rank() {
    laconic_driver_destroy(driver);
    laconic_session_destroy(session);
  }
  void agree() {
    std::vector<uint8_t> cards(kWorld * LACONIC_AGREEMENT_BYTES);
    ASSERT_EQ(laconic_agree(&ring.table, session, nullptr, "begin", cards.data()), 0)
        << laconic_last_message();
    ASSERT_EQ(laconic_session_check_agreement(session, cards.data()), 0);
    laconic_driver_options options{};
    options.struct_size = sizeof options;
    options.engine = &ring.table;
    options.context = this;
    options.ended = [](void* self, const laconic_ending* ending) {
      Rank& rank = *static_cast<Rank*>(self);
      for (uint32_t i = 0; i < ending->count; ++i) {
        rank.ended.push_back(ending->tokens[i]);
        EXPECT_EQ(ending->parts[i], 1U);
        if (ending->code != 0) rank.said[ending->tokens[i]] = ending->message;
      }
      rank.inside = laconic_driver_drain(rank.driver);
    };
    ASSERT_EQ(laconic_driver_create(session, &options, &driver), 0) << laconic_last_message();
  }
  laconic_bucket bucket(uint32_t p, uint64_t step) {
    laconic_bucket b{};
    b.struct_size = sizeof b;
    b.step = step;
    b.index = p;
    b.buffer = values[p].data();
    b.elements = kSizes[p];
    b.count = 1;
    b.parameters = kWhich + p;
    b.offsets = &kOffset;
    return b;
  }
  int32_t submit(uint32_t p, uint64_t step, const laconic_failure* failure = nullptr) {
    const laconic_bucket b = bucket(p, step);
    return laconic_driver_submit(driver, &b, 0, 10 + p, failure);
  }

  static constexpr uint32_t kWhich[] = {0, 1, 2};
  static constexpr uint64_t kOffset = 0;
  Ring ring;
  laconic_session* session = nullptr;
  laconic_driver* driver = nullptr;
  std::vector<std::vector<float>> values;
  std::vector<uint64_t> ended;
  std::map<uint64_t, std::string> said;
  int32_t inside = 0;
};

TEST(CDriver, MeansComeInOrderOfSubmissionAndDrainWithinAStep) {
  LoopbackHub hub(kWorld);
  on_all(kWorld, [&](uint32_t r) {
    Rank rank(hub, r);
    rank.agree();
    const laconic_bucket buckets[] = {rank.bucket(2, 0), rank.bucket(1, 0), rank.bucket(0, 0)};
    uint32_t numbers[3] = {};
    ASSERT_EQ(laconic_driver_exchanges(rank.driver, buckets, 3, 0, numbers), 0);
    EXPECT_EQ(numbers[0] + numbers[1] + numbers[2], 0U);
    ASSERT_EQ(laconic_driver_exchanges(rank.driver, buckets, 3, LACONIC_SUBMIT_APART, numbers), 0);
    EXPECT_EQ(numbers[2], 2U);
    ASSERT_EQ(rank.submit(2, 0), 0);
    ASSERT_EQ(rank.submit(1, 0), 0);
    EXPECT_TRUE(rank.ended.empty());
    ASSERT_EQ(laconic_driver_drain(rank.driver), 0) << laconic_last_message();
    EXPECT_EQ(rank.ended, (std::vector<uint64_t>{12, 11}));
    EXPECT_EQ(rank.inside, code_of(Errc::exchange_order)) << "from inside of a callback";
    ASSERT_EQ(rank.submit(0, 0), 0);
    ASSERT_EQ(laconic_driver_finish(rank.driver), 0);
    EXPECT_EQ(rank.ended, (std::vector<uint64_t>{12, 11, 10}));
    for (const auto& mean : rank.values)
      for (const float x : mean) ASSERT_NEAR(x, 1.5F, 0.5F);
    const std::string stats = laconic_session_stats(rank.session);
    EXPECT_NE(stats.find("\"exchanges\": 2,"), std::string::npos) << stats;
    EXPECT_NE(stats.find("\"coalesced\": 2,"), std::string::npos) << stats;
    const laconic_bucket gone = rank.bucket(0, 0);
    EXPECT_EQ(laconic_driver_release(rank.driver, &gone), 0);
  });
}

TEST(CDriver, FailureOfOneRankIsReportedOnAll) {
  LoopbackHub hub(kWorld);
  on_all(kWorld, [&](uint32_t r) {
    Rank rank(hub, r);
    rank.agree();
    const laconic_failure leak{code_of(Errc::internal), 0, "a leak", nullptr};
    ASSERT_EQ(rank.submit(0, 0), 0);
    ASSERT_EQ(rank.submit(1, 0, r == 1 ? &leak : nullptr), 0);
    EXPECT_EQ(laconic_driver_finish(rank.driver), code_of(Errc::peer_failed));
    EXPECT_EQ(rank.said[10], "rank 1 failed in bucket 0 (internal): a leak");
    EXPECT_EQ(rank.said[11], rank.said[10]);
    ASSERT_EQ(rank.submit(0, 1), 0);
    EXPECT_EQ(laconic_driver_finish(rank.driver), 0) << "the next step goes on";
  });
}

TEST(CDriver, RankThatCannotBeginGivesOneMessage) {
  LoopbackHub hub(kWorld);
  std::vector<std::string> said(kWorld);
  on_all(kWorld, [&](uint32_t r) {
    Rank rank(hub, r);
    const laconic_failure trouble{code_of(Errc::unknown_codec), 0, "no such codec", "take another"};
    std::vector<uint8_t> cards(kWorld * LACONIC_AGREEMENT_BYTES);
    EXPECT_EQ(laconic_agree(&rank.ring.table, r == 0 ? rank.session : nullptr,
                            r == 0 ? nullptr : &trouble, "attach", cards.data()),
              code_of(Errc::ranks_disagree));
    said[r] = laconic_last_message();
    EXPECT_EQ(laconic_agree(&rank.ring.table, nullptr, &trouble, "attach", cards.data()),
              code_of(Errc::unknown_codec));
    EXPECT_EQ(std::string(laconic_last_message()), "no such codec") << "that of all";
    laconic_failure named = trouble;
    named.rank = 8;
    EXPECT_EQ(laconic_agree(&rank.ring.table, r == 0 ? rank.session : nullptr,
                            r == 0 ? nullptr : &named, "attach", cards.data()),
              code_of(Errc::ranks_disagree));
    EXPECT_EQ(std::string(laconic_last_message()).find("rank 7 could not attach: no such"), 0U);
  });
  EXPECT_EQ(said[0], "rank 1 could not attach: no such codec (take another)");
  EXPECT_EQ(said[1], said[0]);
}

TEST(CDriver, InsideThatIsNotOfSessionsShardIsRefused) {
  LoopbackHub hub(kWorld);
  const Rank rank(hub, 0);
  laconic_driver_options options{};
  options.struct_size = sizeof options;
  options.engine = &rank.ring.table;
  options.ended = [](void*, const laconic_ending*) {};
  options.inside = &rank.ring.table;  // of two ranks, and the session has the whole model
  laconic_driver* driver = nullptr;
  EXPECT_EQ(laconic_driver_create(rank.session, &options, &driver),
            code_of(Errc::invalid_argument));
  EXPECT_EQ(driver, nullptr);
}

TEST(CDriver, SettingsAreReplacedOnAllRanksOrNone) {
  LoopbackHub hub(kWorld);
  on_all(kWorld, [&](uint32_t r) {
    Rank rank(hub, r);
    rank.agree();
    laconic_settings settings{};
    settings.struct_size = sizeof settings;
    settings.strategy = LACONIC_KEEP;
    settings.rule_count = LACONIC_KEEP;
    settings.spec = "topk:ratio=0.1";
    uint32_t waits = 7;
    const laconic_failure trouble{code_of(Errc::out_of_memory), 0, "out of memory", nullptr};
    EXPECT_EQ(laconic_driver_set(rank.driver, &settings, r == 1 ? &trouble : nullptr, &waits),
              code_of(Errc::ranks_disagree));
    EXPECT_EQ(std::string(laconic_last_message()), "rank 1 could not set: out of memory");
    EXPECT_EQ(laconic_driver_set(rank.driver, &settings, nullptr, &waits), 0);
    EXPECT_EQ(waits, 0U);
    ASSERT_EQ(rank.submit(0, 0), 0);
    ASSERT_EQ(laconic_driver_finish(rank.driver), 0);
    settings.spec = "bf16";  // has no place for residuals
    settings.strategy = LACONIC_STRATEGY_AUTO;
    EXPECT_EQ(laconic_driver_set(rank.driver, &settings, nullptr, &waits), 0);
    EXPECT_EQ(waits, 1U);
    uint32_t set = 0;
    uint64_t step = 1;
    for (; set == 0 && step < 40; ++step) {
      ASSERT_EQ(laconic_driver_set_what_waits(rank.driver, &set), 0) << laconic_last_message();
      for (uint32_t p = 0; p < 3; ++p) ASSERT_EQ(rank.submit(p, step), 0);
      ASSERT_EQ(laconic_driver_finish(rank.driver), 0) << laconic_last_message();
    }
    EXPECT_EQ(set, 1U);
    EXPECT_GT(step, 3U);
  });
}

/// With one batch in flight and a bucket that waits.
TEST(CDriver, EngineFailureUndoesAllExchanges) {
  LoopbackHub hub(kWorld);
  Rank rank(hub, 0, "topk:ratio=0.1");
  laconic_driver_options options{};
  options.struct_size = sizeof options;
  options.engine = &rank.ring.table;
  options.context = &rank;
  options.ended = [](void* self, const laconic_ending* ending) {
    for (uint32_t i = 0; i < ending->count; ++i)
      static_cast<Rank*>(self)->said[ending->tokens[i]] = ending->message;
  };
  // There are no other ranks: a start returns tickets that are never waited for.
  rank.ring.table.start = [](void* self, const laconic_step*, uint32_t, uint32_t, uint64_t* ticket,
                             char* message, uint64_t room) {
    Ring& ring = *static_cast<Ring*>(self);
    *ticket = 1;
    if (ring.starts++ == 0) return 0;
    std::strncpy(message, "the cable is cut", room);
    return code_of(Errc::engine_failed);
  };
  ASSERT_EQ(laconic_driver_create(rank.session, &options, &rank.driver), 0);
  const auto apart = [&](uint32_t p) {
    const laconic_bucket b = rank.bucket(p, 0);
    return laconic_driver_submit(rank.driver, &b, LACONIC_SUBMIT_APART, 10 + p, nullptr);
  };
  EXPECT_EQ(apart(0), 0);
  EXPECT_EQ(apart(1), code_of(Errc::engine_failed));
  EXPECT_EQ(rank.ring.settled, 1) << "the one in flight";
  EXPECT_EQ(rank.said[10], "the cable is cut");
  EXPECT_EQ(rank.said[11], "the cable is cut");
  EXPECT_EQ(rank.submit(2, 0), code_of(Errc::engine_failed)) << "it goes into the residuals";
  EXPECT_NEAR(laconic_session_residual_norm(rank.session), 30, 1e-3);
}

/// An interpreter's callback that was interrupted gives 0 and has done nothing.
TEST(CDriver, CallbackThatDidNothingCountsAsFailed) {
  for (const bool starts : {true, false}) {
    LoopbackHub hub(kWorld);
    Rank rank(hub, 0, "topk:ratio=0.1");
    double completed = 0;
    laconic_driver_options options{};
    options.struct_size = sizeof options;
    options.engine = &rank.ring.table;
    options.ended = [](void*, const laconic_ending*) {};
    rank.ring.table.completed = &completed;
    rank.ring.fails_at = starts ? 1 : 0;
    rank.ring.table.start = [](void* self, const laconic_step*, uint32_t, uint32_t,
                               uint64_t* ticket, char*, uint64_t) {
      if (static_cast<Ring*>(self)->fails_at == 1) *ticket = 1;
      return 0;
    };
    rank.ring.table.wait = [](void*, uint64_t, double, char*, uint64_t) { return 0; };
    ASSERT_EQ(laconic_driver_create(rank.session, &options, &rank.driver), 0);
    const int32_t submitted = rank.submit(0, 0);
    EXPECT_EQ(submitted, 0) << "it waits for others";
    EXPECT_EQ(laconic_driver_finish(rank.driver), code_of(Errc::engine_failed));
    const std::string said = laconic_last_message();
    EXPECT_EQ(said,
              starts ? "the engine's wait was interrupted" : "the engine's start was interrupted");
  }
}

TEST(CDriver, ForkedChildGetsErrorAtOnceAndSendsNothing) {
  LoopbackHub hub(kWorld);
  Rank ranks[] = {{hub, 0}, {hub, 1}};
  on_all(kWorld, [&](uint32_t r) { ranks[r].agree(); });
  Rank& rank = ranks[0];
  const int starts = rank.ring.starts;
  EXPECT_TRUE(ends_in_a_child([&] {
    const laconic_failure failure{code_of(Errc::internal), 0, "no", ""};
    const laconic_bucket bucket = rank.bucket(0, 0);
    uint32_t done = 0;
    for (const int32_t code :
         {rank.submit(0, 0), laconic_driver_drain(rank.driver), laconic_driver_finish(rank.driver),
          laconic_driver_break_off(rank.driver, &failure),
          laconic_driver_release(rank.driver, &bucket),
          laconic_driver_set(rank.driver, nullptr, &failure, &done),
          laconic_driver_set_what_waits(rank.driver, &done)}) {
      if (code != code_of(Errc::unsupported)) ::_exit(1);
    }
    if (rank.ring.starts != starts) ::_exit(2);
    laconic_driver_destroy(rank.driver);
  }));
  on_all(kWorld, [&](uint32_t r) {  // the parent goes on
    EXPECT_EQ(ranks[r].submit(0, 0), 0) << laconic_last_message();
    EXPECT_EQ(laconic_driver_finish(ranks[r].driver), 0) << laconic_last_message();
  });
}

TEST(CDriver, WrongArgumentsAreRefused) {
  LoopbackHub hub(kWorld);
  Rank rank(hub, 0);
  laconic_driver_options options{};
  options.struct_size = sizeof options;
  options.engine = &rank.ring.table;
  const auto refused = [&] {
    const int32_t code = laconic_driver_create(rank.session, &options, &rank.driver);
    return code == code_of(Errc::invalid_argument) && rank.driver == nullptr;
  };
  EXPECT_TRUE(refused()) << "no callback";
  options.ended = [](void*, const laconic_ending*) {};
  rank.ring.table.rank = 1;
  EXPECT_TRUE(refused()) << "another rank";
  rank.ring.table.rank = 0;
  rank.ring.table.wait = nullptr;
  EXPECT_TRUE(refused());
  rank.ring.table.wait = [](void*, uint64_t, double, char*, uint64_t) { return 0; };
  ASSERT_EQ(laconic_driver_create(rank.session, &options, &rank.driver), 0);
  const laconic_bucket b = rank.bucket(0, 0);
  EXPECT_EQ(laconic_driver_submit(rank.driver, &b, 4, 0, nullptr), code_of(Errc::invalid_argument));
  EXPECT_EQ(laconic_driver_submit(rank.driver, nullptr, 0, 0, nullptr),
            code_of(Errc::invalid_argument));
  EXPECT_EQ(laconic_driver_submit(nullptr, &b, 0, 0, nullptr), code_of(Errc::invalid_argument));
  EXPECT_EQ(laconic_driver_break_off(rank.driver, nullptr), code_of(Errc::invalid_argument));
  EXPECT_EQ(laconic_driver_finish(rank.driver), 0);
}

}  // namespace
}  // namespace laconic::test

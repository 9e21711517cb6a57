// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic::Session over two engines: means, agreement, and every kind of trouble as one message.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cmath>
#include <latch>
#include <limits>
#include <optional>

#include "base/hash.h"
#include "laconic/loopback.h"
#include "laconic/session.h"
#include "support/mailboxes.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using PublicSession = laconic::Session;
using Made = Result<std::unique_ptr<PublicSession>>;

const std::vector<laconic::Parameter> kModel{{"w", 64, 80}, {"b", 17, 1}, {"v", 40, 30}};
constexpr uint64_t kElements = 64 * 80 + 17 + 40 * 30;

/// An engine for every rank, of either kind.
struct Engines {
  Engines(bool messages, uint32_t world, bool short_sends = false)
      : hub(world, std::chrono::seconds(100), {kAllSums, short_sends}) {
    if (messages) mailboxes.emplace(world, short_sends);
  }
  Engine& operator[](uint32_t rank) {
    return mailboxes ? mailboxes->engine(rank) : hub.engine(rank);
  }
  LoopbackHub hub;
  std::optional<Mailboxes> mailboxes;
};

Made make(Engine& engine, const std::string& spec, const std::string& plan = "auto") {
  SessionOptions options;
  options.plan = plan;
  options.seed = 42;
  options.small_elements = 16;
  return PublicSession::create(spec, kModel, engine, options);
}

/// Multiplies float32 lanes itself from this number of bytes on, and counts the sums for which it
/// did.
class Scaling final : public Engine {
 public:
  Scaling(Engine& engine, uint64_t from) : engine_(&engine), from_(from) {}
  ~Scaling() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override {
    EngineCaps caps = engine_->caps();
    caps.scales_from = from_;
    return caps;
  }
  Result<void> run(std::span<const Step> batch) override {
    std::vector<Step> steps(batch.begin(), batch.end());
    for (Step& step : steps) {
      if (step.scale == 1.0F) continue;
      auto* lanes = reinterpret_cast<float*>(step.send);
      for (uint64_t i = 0; i < step.count; ++i) lanes[i] *= step.scale;
      step.scale = 1.0F;
      ++scaled;
    }
    return engine_->run(steps);
  }
  std::atomic<int> scaled = 0;

 private:
  Engine* engine_;
  uint64_t from_;
};

/// From where is agreed on: the largest of all ranks counts, which is rank 0's here.
TEST(PublicSession, ScalingEngineGivesSameBits) {
  constexpr uint32_t kWorld = 3;
  Ranks expected({.world = kWorld, .parameters = kModel, .strategy = StrategyKind::native_sum});
  auto wanted = gradients(kWorld, kElements, 0);
  for (const auto& result : expected.exchange(back_to_back(kModel, {0, 1, 2}), wanted, 0))
    ASSERT_TRUE(result);
  for (const uint64_t from : {4 * kElements, 4 * kElements + 1}) {
    Engines engines(false, kWorld);
    on_all(kWorld, [&](uint32_t r) {
      Scaling engine(engines[r], r == 0 ? from : 1);
      const Made session = make(engine, "none", "native_sum");
      ASSERT_TRUE(session) << session.error().message;
      auto mine = gradients(kWorld, kElements, 0)[r];
      const auto done = (*session)->average(0, mine);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(mine, wanted[r]);
      EXPECT_EQ(engine.scaled, from == 4 * kElements ? 1 : 0);
    });
  }
}

using Case = std::tuple<std::string, std::string, uint32_t, bool, bool>;
class SessionOnEngine : public testing::TestWithParam<Case> {};

/// The session that the other tests compare with an oracle, driven step by step, gives the same
/// bits.
TEST_P(SessionOnEngine, MeanEqualsThatOfExchange) {
  const auto& [spec, plan, world, messages, short_sends] = GetParam();
  Ranks expected({.spec = spec,
                  .world = world,
                  .parameters = kModel,
                  .strategy = *collective::strategy_of(plan),
                  .short_sends = short_sends});
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  Engines engines(messages, world, short_sends);
  std::vector<std::vector<std::vector<float>>> wanted;
  for (uint64_t step = 0; step < 3; ++step) {
    wanted.push_back(gradients(world, kElements, step));
    for (const auto& result : expected.exchange(layout, wanted.back(), step)) ASSERT_TRUE(result);
  }
  on_all(world, [&, &spec = spec, &plan = plan, world = world](uint32_t r) {
    Made session = make(engines[r], spec, plan);
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t step = 0; step < 3; ++step) {
      auto mine = gradients(world, kElements, step)[r];
      const auto done = (*session)->average(step, mine);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(mine, wanted[step][r]);
    }
    EXPECT_NE((*session)->stats().find("\"exchanges\": 3"), std::string::npos)
        << (*session)->stats();
    EXPECT_NE((*session)->explain().find("\"strategy\""), std::string::npos);
  });
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const bool messages : {false, true}) {
    for (const uint32_t world : {2U, 3U}) {
      for (const auto& [spec, plan] :
           std::vector<std::pair<std::string, std::string>>{{"none", "native_sum"},
                                                            {"fp16", "auto"},
                                                            {"int8", "two_shot"},
                                                            {"3lc", "two_shot"},
                                                            {"topk:ratio=0.1", "gather_all"},
                                                            {"powersgd:rank=2", "native_sum"}}) {
        for (const bool short_sends : {false, true})
          all.emplace_back(spec, plan, world, messages, short_sends);
      }
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(All, SessionOnEngine, testing::ValuesIn(cases()));

/// The number after a key in a line of JSON; -1: missing.
double number_in(const std::string& json, const std::string& key) {
  const std::size_t at = json.find('"' + key + "\": ");
  return at == std::string::npos ? -1 : std::stod(json.substr(at + key.size() + 4));
}

/// The quantities on which policies decide.
TEST(PublicSession, EveryRankReportsNetworkTime) {
  for (const uint32_t window : {1U, 2U}) {
    LoopbackHub hub(2);
    on_all(2, [&](uint32_t r) {
      SessionOptions options;
      options.small_elements = 16;
      options.control = "dc2";
      options.window = window;
      Made session = PublicSession::create("topk:ratio=0.05", kModel, hub.engine(r), options);
      ASSERT_TRUE(session) << session.error().message;
      for (uint64_t step = 0; step < 4; ++step) {
        auto mine = gradients(2, kElements, step)[r];
        ASSERT_TRUE((*session)->average(step, mine));
      }
      const std::string stats = (*session)->stats();
      EXPECT_EQ(number_in(stats, "reports_missing"), 0) << stats;
      EXPECT_EQ(number_in(stats, "held_steps"), 0) << stats;
      EXPECT_GT(number_in(stats, "network_seconds"), 0) << stats;
    });
  }
}

/// Refuses the messages that it is set to refuse.
class Silent final : public Engine {
 public:
  explicit Silent(Engine& engine) : engine_(&engine) {}
  ~Silent() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_->caps(); }
  Result<void> run(std::span<const Step> batch) override {
    if (is_silent) return Errc::engine_failed;
    return engine_->run(batch);
  }
  std::atomic<bool> is_silent = false;

 private:
  Engine* engine_;
};

TEST(PublicSession, EngineFailureDuringSubmitFailsEveryWait) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    Silent engine(hub.engine(r));
    const Made session = make(engine, "3lc");
    ASSERT_TRUE(session);
    auto mine = gradients(2, kElements, 0)[r];
    ASSERT_TRUE((*session)->average(0, mine));
    engine.is_silent = true;
    // a long bucket, whose batch fails immediately
    const std::vector<uint32_t> first{0}, second{1};
    const uint64_t count = kModel[0].count();
    (void)(*session)->submit(1, {std::span(mine).first(count), first});
    (void)(*session)->submit(1, {std::span(mine).subspan(count, kModel[1].count()), second});
    for (int again = 0; again < 2; ++again)
      EXPECT_EQ((*session)->wait().error().code, Errc::engine_failed);
  });
}

TEST(OneRank, GradientsPassThroughAndNothingIsSent) {
  for (const std::string spec :
       {"3lc", "topk:ratio=0.1", "powersgd:rank=2", "signsgd", "fp16+ef"}) {
    SCOPED_TRACE(spec);
    LoopbackHub hub(1);
    Silent engine(hub.engine(0));
    SessionOptions options;
    options.small_elements = 16;
    options.control = spec[0] == 't' ? "dc2" : "";  // which has nothing to move here
    options.rules = {rule("v", "int8")};
    const Made session = PublicSession::create(spec, kModel, engine, options);
    ASSERT_TRUE(session) << session.error().message;
    engine.is_silent = true;
    ASSERT_TRUE((*session)->flush(3));
    for (uint64_t step = 0; step < 3; ++step) {
      auto mine = gradients(1, kElements, step)[0];
      mine[1] = -0.0F, mine[2] = std::numeric_limits<float>::infinity();
      const auto given = mine;
      const auto done = (*session)->average(step, mine);
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_TRUE(same_bits(mine, given));
    }
    std::vector<float> shorter(5);
    EXPECT_EQ((*session)->average(3, shorter).error().code, Errc::shape_unsupported);
    for (const char* said : {"\"ratio\": 1", "\"wire_bytes\": 0,", "\"flush_steps_left\": 0,",
                             "\"reports_missing\": 0,", "\"residual_bytes\": 0,"})
      EXPECT_NE((*session)->stats().find(said), std::string::npos) << (*session)->stats();
    EXPECT_NE(
        (*session)->explain().find("one rank has nothing to exchange: gradients stay as they are"),
        std::string::npos);
  }
}

/// State saved by a release that compressed alone: residuals, and the size of its parts.
TEST(OneRank, StateOfCompressedRunLoads) {
  LoopbackHub hub(1);
  const Made session = make(hub.engine(0), "topk:ratio=0.1");
  ASSERT_TRUE(session);
  std::vector<uint8_t> state = *(*session)->save();
  const std::string name = "residual/w";
  const std::vector<float> values(64 * 80, 0.5F);
  const auto put = [&](size_t at, auto value) {
    if (state.size() < at + sizeof value) state.resize(at + sizeof value);
    std::memcpy(state.data() + at, &value, sizeof value);
  };
  put(20, uint32_t{1});        // entries
  put(40, uint64_t{8} << 20);  // part
  state.resize(state.size() - sizeof(uint64_t));
  put(state.size(), uint64_t{values.size()});
  put(state.size(), static_cast<uint32_t>(name.size()));
  put(state.size(), uint32_t{0});
  state.insert(state.end(), name.begin(), name.end());
  const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
  state.insert(state.end(), bytes, bytes + 4 * values.size());
  put(state.size(), hash64(Bytes(state)));
  const auto loaded = (*session)->load(state);
  EXPECT_TRUE(loaded) << loaded.error().message;
  state[60] ^= 1;
  EXPECT_EQ((*session)->load(state).error().code, Errc::state_corrupt);
}

TEST(PublicSession, DifferingRanksGetOneMessage) {
  LoopbackHub hub(3);
  on_all(3, [&](uint32_t r) {
    const Made session = make(hub.engine(r), r == 2 ? "int8" : "3lc");
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, Errc::ranks_disagree);
    EXPECT_EQ(session.error().message,
              "ranks disagree on the spec: rank 0 has '3lc', rank 2 has 'int8'");
  });
}

TEST(PublicSession, RankThatCannotCreateSessionInformsOthers) {
  for (const auto& [spec, plan, code, text] :
       std::vector<std::tuple<std::string, std::string, Errc, std::string>>{
           {"3lk", "auto", Errc::unknown_codec, "rank 1: "},
           {"3lc", "ring", Errc::invalid_argument, "rank 1: plan: unknown strategy 'ring'"},
           {"3lc", "native_sum", Errc::unsupported,
            "rank 1: strategy native_sum cannot carry 3lc"}}) {
    LoopbackHub hub(3);
    std::vector<std::string> messages(3);
    on_all(3, [&, &spec = spec, &plan = plan, code = code](uint32_t r) {
      const Made session = make(hub.engine(r), r == 1 ? spec : "3lc", r == 1 ? plan : "auto");
      ASSERT_FALSE(session);
      EXPECT_EQ(session.error().code, code);
      messages[r] = session.error().message;
    });
    EXPECT_EQ(messages[1].rfind(text, 0), 0U) << messages[1];
    EXPECT_TRUE(messages[0] == messages[1] && messages[2] == messages[1]);
  }
}

TEST(PublicSession, WrongGradientLengthIsErrorOnAllAndNextStepWorks) {
  for (const uint64_t length : {uint64_t{0}, kElements - 1, kElements + 1}) {
    for (const bool enrolled : {false, true}) {
      LoopbackHub hub(3);
      on_all(3, [&](uint32_t r) {
        auto session = *make(hub.engine(r), "3lc");
        std::vector<float> mine(kElements, 1.0F), wrong(length, 1e30F);
        if (enrolled) {
          ASSERT_TRUE(session->average(0, mine));
        }
        const auto failed = session->average(1, r == 1 ? wrong : mine);
        ASSERT_FALSE(failed);
        EXPECT_NE(failed.error().message.find("the gradient has " + std::to_string(length) +
                                              " elements, its parameters have 6337"),
                  std::string::npos)
            << failed.error().message;
        const auto next = session->average(2, mine);
        ASSERT_TRUE(next) << next.error().message;
        for (const float x : mine) ASSERT_LT(std::fabs(x), 10.0F);  // 1e30 is in no residual
      });
    }
  }
}

/// Passes on what another engine does; deadlines count only when they should.
class LongDeadlines final : public Engine {
 public:
  [[nodiscard]] uint32_t rank() const noexcept override { return inner->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return inner->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return inner->caps(); }
  Result<void> run(std::span<const Step> batch) override { return inner->run(batch); }
  Result<Ticket> start(std::span<const Step> batch) override { return inner->start(batch); }
  Result<void> wait(Ticket ticket, Deadline deadline) override {
    return inner->wait(
        ticket, deadline + (has_long_deadlines ? std::chrono::hours(1) : std::chrono::hours(0)));
  }
  Engine* inner = nullptr;
  bool has_long_deadlines = true;
};

TEST(PublicSession, MissingRankIsTimeoutAndEndsSession) {
  std::vector<float> mine(kElements, 1.0F);  // as long as the engine
  std::array<LongDeadlines, 2> engines;
  LoopbackHub hub(2, std::chrono::hours(1));
  {
    std::unique_ptr<PublicSession> first, second;
    on_all(2, [&](uint32_t r) {
      SessionOptions options;
      options.timeout = std::chrono::milliseconds(100);
      engines[r].inner = &hub.engine(r);
      (r == 0 ? first : second) = *PublicSession::create("3lc", kModel, engines[r], options);
    });
    engines[0].has_long_deadlines = false;
    const auto late = first->average(0, mine);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Errc::timed_out);
    const auto again = first->average(1, mine);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().message, late.error().message);
  }  // the engine's thread still waits in the exchange's buffers, which sanitizers look at
}

TEST(PublicSession, RankGoneAtCreateIsError) {
  LoopbackHub hub(2, std::chrono::milliseconds(50));
  const Made session = make(hub.engine(0), "3lc");
  ASSERT_FALSE(session);
  EXPECT_EQ(session.error().code, Errc::peer_failed);
  LoopbackHub slow(2, std::chrono::hours(1));
  SessionOptions options;
  options.timeout = std::chrono::milliseconds(50);
  const Made timed = PublicSession::create("3lc", kModel, slow.engine(0), options);
  ASSERT_FALSE(timed);
  EXPECT_EQ(timed.error().code, Errc::timed_out);
}

TEST(PublicSession, FlushOfOneRankDrainsAllResiduals) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "topk:ratio=0.01");
    const std::vector<float> little(kElements, 1e-6F);  // what is all zero keeps its residual
    auto mine = gradients(2, kElements, 7)[r];
    ASSERT_TRUE(session->average(0, mine));
    EXPECT_EQ(session->stats().find("\"residual_norm\": 0}"), std::string::npos);
    if (r == 1) {
      ASSERT_TRUE(session->flush(2));
    }
    EXPECT_FALSE(session->flush(0));
    for (uint64_t step = 1; step < 4; ++step) {
      mine = little;
      ASSERT_TRUE(session->average(step, mine));
    }
    EXPECT_NE(session->stats().find("\"residual_norm\": 0}"), std::string::npos)
        << session->stats();
  });
}

/// A set that has no place for residuals waits until they are out, the same on all ranks, by
/// whole gradients or buckets.
TEST(PublicSession, SetWaitsForResiduals) {
  for (const bool whole : {true, false}) {
    LoopbackHub hub(2);
    std::vector<std::vector<float>> last(2);
    on_all(2, [&](uint32_t r) {
      auto session = *make(hub.engine(r), "topk:ratio=0.01");
      const auto step = [&](uint64_t number) {
        last[r] = gradients(2, kElements, number + 1)[r];
        if (whole) return session->average(number, last[r]);
        uint64_t at = 0;
        for (uint32_t p = 0; p < kModel.size(); ++p) {
          const std::vector<uint32_t> place{p};
          const auto submitted =
              session->submit(number, {std::span(last[r]).subspan(at, kModel[p].count()), place});
          EXPECT_TRUE(submitted);
          at += kModel[p].count();
        }
        return session->wait();
      };
      const auto spec = [&] { return session->explain().substr(0, 30); };
      for (uint64_t number = 0; number < 3; ++number) ASSERT_TRUE(step(number));
      ASSERT_TRUE(session->set({.spec = "none"}));
      for (uint64_t number = 3; number < 14; ++number) {  // one to send the request, ten to drain
        ASSERT_TRUE(step(number));
        EXPECT_NE(spec().find("topk"), std::string::npos) << number << spec();
      }
      ASSERT_TRUE(step(14));
      EXPECT_NE(spec().find("\"none\""), std::string::npos) << spec();
      EXPECT_NE(session->explain().find("\"since_step\": 14"), std::string::npos);
      ASSERT_TRUE(session->set({.spec = "topk:ratio=0.01"}));
      ASSERT_TRUE(step(15));
      // The next one takes its position.
      ASSERT_TRUE(session->set({.spec = "bf16"}));
      ASSERT_TRUE(step(16));
      ASSERT_TRUE(session->set({.spec = "topk:ratio=0.02"}));
      for (uint64_t number = 17; number < 30; ++number) ASSERT_TRUE(step(number));
      EXPECT_NE(spec().find("topk:ratio=0.02"), std::string::npos) << spec();
    });
    EXPECT_EQ(last[0], last[1]);
  }
}

/// A request of one rank alone, just when residuals are sent, decides nothing.
TEST(PublicSession, FlushOfOneRankDoesNotDelaySetOfAll) {
  LoopbackHub hub(2);
  std::vector<std::vector<float>> last(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "topk:ratio=0.01");
    for (uint64_t number = 0; number < 20; ++number) {
      last[r] = gradients(2, kElements, number + 1)[r];
      ASSERT_TRUE(session->average(number, last[r])) << number;
      if (number == 2) {
        ASSERT_TRUE(session->set({.spec = "none"}));
      } else if (r == 1 && number > 2) {
        ASSERT_TRUE(session->flush(1));
      }
    }
    EXPECT_NE(session->explain().find("\"since_step\": 14"), std::string::npos);
  });
  EXPECT_EQ(last[0], last[1]);
}

/// Before the step that sends the request, during the release, and before ranks compare what
/// waited: then nothing but that step's gradient is left to keep.
TEST(PublicSession, RankLostWhileSetWaitsIsErrorAndLosesNothing) {
  for (const uint64_t gone : {3U, 8U, 14U}) {
    LoopbackHub hub(2, std::chrono::seconds(100));
    std::latch both(2);
    on_all(2, [&](uint32_t r) {
      auto session = *make(hub.engine(r), "topk:ratio=0.01");
      const auto step = [&](uint64_t number) {
        auto mine = gradients(2, kElements, number + 1)[r];
        return session->average(number, mine);
      };
      for (uint64_t number = 0; number < gone; ++number) {
        ASSERT_TRUE(step(number)) << number;
        if (number == 2) {
          ASSERT_TRUE(session->set({.spec = "none"}));
        }
      }
      both.arrive_and_wait();
      if (r == 1) return hub.break_off(1);
      const auto lonely = step(gone);
      ASSERT_FALSE(lonely);
      EXPECT_EQ(lonely.error().code, Errc::peer_failed) << lonely.error().message;
      const std::string stats = session->stats(), key = "\"residual_norm\": ";
      const double norm = std::stod(stats.substr(stats.find(key) + key.size()));
      double gradient = 0;
      const auto all = gradients(2, kElements, gone + 1);
      for (const float x : all[0]) gradient += static_cast<double>(x) * static_cast<double>(x);
      if (gone == 14) {
        EXPECT_NEAR(norm, std::sqrt(gradient), 1e-4 * norm);
      } else {
        EXPECT_GT(norm, 1.1 * std::sqrt(gradient));
      }
      EXPECT_FALSE(step(gone + 1));
    });
  }
}

/// Residuals of parameters without a gradient stay where they are.
TEST(PublicSession, SetWaitsForParameterWithoutGradient) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "topk:ratio=0.01");
    const auto step = [&](uint64_t number, bool frozen) {
      auto mine = gradients(2, kElements, number + 1)[r];
      if (frozen) std::fill(mine.end() - 40 * 30, mine.end(), 0.0F);
      ASSERT_TRUE(session->average(number, mine)) << number;
    };
    const auto holds = [&] {
      return session->explain().substr(0, 30).find("\"none\"") != std::string::npos;
    };
    for (uint64_t number = 0; number < 3; ++number) step(number, false);
    ASSERT_TRUE(session->set({.spec = "none"}));
    for (uint64_t number = 3; number < 40; ++number) step(number, true);
    EXPECT_FALSE(holds());
    for (uint64_t number = 40; number < 64; ++number) step(number, false);
    EXPECT_TRUE(holds());
  });
}

/// The step that receives the report is averaged all the same.
TEST(PublicSession, DifferentPendingSettingsFailInStepAfterRelease) {
  LoopbackHub hub(2);
  std::vector<std::vector<float>> last(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "topk:ratio=0.01");
    for (uint64_t number = 0; number < 17; ++number) {
      last[r] = gradients(2, kElements, number + 1)[r];
      const auto done = session->average(number, last[r]);
      EXPECT_EQ(done.ok(), number != 14) << number;
      if (number == 14) {
        EXPECT_EQ(done.error().code, Errc::ranks_disagree) << done.error().message;
        EXPECT_FALSE(same_bits(last[r], gradients(2, kElements, number + 1)[r]));
      }
      if (number == 2) {
        EXPECT_TRUE(session->set({.spec = r == 0 ? "none" : "bf16"}));
      }
    }
    EXPECT_NE(session->explain().substr(0, 30).find("topk"), std::string::npos);
  });
  EXPECT_EQ(last[0], last[1]);
}

SessionOptions in_parts(uint32_t window, uint64_t part, const std::string& plan = "auto") {
  SessionOptions options;
  options.plan = plan;
  options.seed = 42;
  options.small_elements = 16;
  options.window = window;
  options.part = part;
  return options;
}

TEST(PublicSession, WindowAndPartSizeChangeNoValue) {
  for (const auto& [spec, plan] : std::vector<std::pair<std::string, std::string>>{
           {"3lc", "two_shot"}, {"topk:ratio=0.1", "gather_all"}, {"int8+ef", "two_shot"}}) {
    std::vector<std::vector<float>> wanted;
    for (const auto& [window, part] :
         std::vector<std::pair<uint32_t, uint64_t>>{{1, 0}, {1, 6000}, {2, 6000}, {3, 1}}) {
      LoopbackHub hub(2);
      std::vector<std::vector<float>> got(2);
      on_all(2, [&, &spec = spec, &plan = plan, window = window, part = part](uint32_t r) {
        auto made =
            PublicSession::create(spec, kModel, hub.engine(r), in_parts(window, part, plan));
        ASSERT_TRUE(made) << made.error().message;
        for (uint64_t step = 0; step < 3; ++step) {
          got[r] = gradients(2, kElements, step)[r];
          ASSERT_TRUE((*made)->average(step, got[r]));
        }
        const uint64_t parts = part == 0 ? 0 : part == 1 ? 9 : 6;  // of three buckets
        EXPECT_NE((*made)->stats().find("\"parts\": " + std::to_string(parts) + ","),
                  std::string::npos)
            << (*made)->stats();
      });
      if (wanted.empty()) wanted = got;
      EXPECT_EQ(got, wanted) << spec << " window " << window << " part " << part;
    }
  }
}

TEST(PublicSession, BucketsGiveValuesOfWhole) {
  LoopbackHub hub(2), other(2);
  on_all(2, [&](uint32_t r) {
    auto whole = *PublicSession::create("3lc", kModel, hub.engine(r), in_parts(2, 0));
    auto pieces = *PublicSession::create("3lc", kModel, other.engine(r), in_parts(2, 0));
    const std::vector<uint32_t> last{2}, others{0, 1}, none{7};
    for (uint64_t step = 0; step < 3; ++step) {
      auto mine = gradients(2, kElements, step)[r];
      auto again = mine;
      ASSERT_TRUE(whole->average(step, mine));
      ASSERT_TRUE(pieces->submit(step, {std::span(again).subspan(64 * 80 + 17), last}));
      EXPECT_EQ(pieces->average(step, again).error().message, "buckets are in flight");
      EXPECT_FALSE(pieces->save());
      ASSERT_TRUE(pieces->submit(step, {std::span(again).first(64 * 80 + 17), others}));
      EXPECT_EQ(pieces->submit(step, {{}, none}).error().code, Errc::invalid_argument);
      ASSERT_TRUE(pieces->wait());
      EXPECT_EQ(again, mine);
    }
  });
}

/// Sanitizers see whether the engine still finds what it sends and receives.
TEST(PublicSession, SessionMayEndWithBucketsInFlight) {
  std::vector<std::vector<float>> mine;
  for (uint32_t r = 0; r < 2; ++r) mine.push_back(gradients(2, kElements, 1)[r]);
  LoopbackHub hub(2);
  std::latch gone(1);
  on_all(2, [&](uint32_t r) {
    auto session = *PublicSession::create("3lc", kModel, hub.engine(r), in_parts(8, 1));
    const std::vector<uint32_t> all{0, 1, 2};
    if (r == 1) gone.wait();
    ASSERT_TRUE(session->submit(0, {mine[r], all}));
    session.reset();  // all of rank 0's are still waiting for rank 1's
    if (r == 0) gone.count_down();
  });
}

TEST(PublicSession, EveryOptionButThreadsIsAgreedOn) {
  const auto both = [](auto change) {
    LoopbackHub hub(2);
    std::vector<std::string> said(2);
    on_all(2, [&](uint32_t r) {
      SessionOptions options = in_parts(2, 0);
      if (r == 1) change(options);
      const Made made = PublicSession::create("3lc", kModel, hub.engine(r), options);
      said[r] = made ? "agreed" : made.error().message;
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  };
  const std::string on = "ranks disagree on ", of = ": rank 0 has ";
  EXPECT_EQ(both([](auto& o) { o.threads = 2; }), "agreed");
  EXPECT_EQ(both([](auto& o) { o.seed = 1; }), on + "the seed" + of + "42, rank 1 has 1");
  EXPECT_EQ(both([](auto& o) { o.small_elements = 1; }),
            on + "small_elements" + of + "16, rank 1 has 1");
  EXPECT_EQ(both([](auto& o) { o.window = 3; }), on + "the window" + of + "2, rank 1 has 3");
  EXPECT_EQ(both([](auto& o) { o.part = 8; }), on + "part" + of + "0, rank 1 has 8");
  EXPECT_EQ(both([](auto& o) { o.plan = "two_shot"; }),
            on + "the strategy" + of + "gather_all, rank 1 has two_shot");
  EXPECT_EQ(both([](auto& o) { o.control = "aimd"; }),
            on + "the control" + of + "'fixed', rank 1 has 'aimd'");
  EXPECT_EQ(both([](auto& o) { o.record = "run.jsonl"; }),
            on + "a record" + of + "none, rank 1 has one");
}

TEST(PublicSession, SavedStateContinuesBitForBit) {
  for (const std::string spec : {"3lc", "powersgd:rank=2", "topk:ratio=0.01", "sidco:ratio=0.01"}) {
    LoopbackHub hub(2);
    on_all(2, [&](uint32_t r) {
      auto straight = *make(hub.engine(r), spec);
      std::vector<float> mine;
      std::vector<uint8_t> state;
      for (uint64_t step = 0; step < 6; ++step) {
        mine = gradients(2, kElements, step)[r];
        ASSERT_TRUE(straight->average(step, mine));
        if (step == 1 && r == 0) {
          ASSERT_TRUE(straight->flush(3));  // goes on in the resumed run
        }
        if (step == 2) state = *straight->save();
      }
      auto resumed = *make(hub.engine(r), spec);
      const auto loaded = resumed->load(state);
      ASSERT_TRUE(loaded) << loaded.error().message;
      std::vector<float> again;
      for (uint64_t step = 3; step < 6; ++step) {
        again = gradients(2, kElements, step)[r];
        ASSERT_TRUE(resumed->average(step, again));
      }
      EXPECT_EQ(again, mine);
      EXPECT_EQ(*resumed->save(), *straight->save());
    });
  }
}

/// A state from before sidco kept a threshold: it lacks the entries whose names end in '?'.
std::vector<uint8_t> without_thresholds(const std::vector<uint8_t>& state) {
  size_t at = 56 + load<uint32_t>(state.data() + 48);
  std::vector<uint8_t> older(state.begin(), state.begin() + static_cast<ptrdiff_t>(at));
  uint32_t kept = 0;
  for (uint32_t left = load<uint32_t>(state.data() + 20); left != 0; --left) {
    const uint32_t name = load<uint32_t>(state.data() + at + 8);
    const size_t bytes = 16 + name + sizeof(float) * load<uint64_t>(state.data() + at);
    if (state[at + 15 + name] != '?') {
      older.insert(older.end(), state.begin() + static_cast<ptrdiff_t>(at),
                   state.begin() + static_cast<ptrdiff_t>(at + bytes));
      ++kept;
    }
    at += bytes;
  }
  store(older.data() + 20, kept);
  const uint64_t checksum = hash64(older);
  older.resize(older.size() + sizeof checksum);
  store(older.data() + older.size() - sizeof checksum, checksum);
  return older;
}

TEST(PublicSession, StateFromBeforeCodecHadStateLoads) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "sidco:ratio=0.1");
    auto mine = gradients(2, kElements, 0)[r];
    ASSERT_TRUE(session->average(0, mine));
    const auto state = *session->save();
    const auto older = without_thresholds(state);
    ASSERT_LT(older.size(), state.size());
    const auto loaded = session->load(older);
    ASSERT_TRUE(loaded) << loaded.error().message;
    const auto again = *session->save();
    EXPECT_NE(again, state);  // a fresh threshold
    EXPECT_EQ(without_thresholds(again), older);
    ASSERT_TRUE(session->load(state));
    EXPECT_EQ(*session->save(), state);
  });
}

/// docs/format/STATE.md, field by field.
TEST(PublicSession, SavedStateMatchesDocumentedFormat) {
  LoopbackHub hub(2);
  on_all(2, [&](uint32_t r) {
    auto session = *PublicSession::create("powersgd:rank=2", kModel, hub.engine(r),
                                          in_parts(2, 4096, "native_sum"));
    auto mine = gradients(2, kElements, 1)[r];
    ASSERT_TRUE(session->average(0, mine));
    const auto state = *session->save();
    const auto u32 = [&](size_t at) { return load<uint32_t>(state.data() + at); };
    const auto u64 = [&](size_t at) { return load<uint64_t>(state.data() + at); };
    const auto text = [&](size_t at, size_t bytes) {
      return std::string(state.begin() + static_cast<ptrdiff_t>(at),
                         state.begin() + static_cast<ptrdiff_t>(at + bytes));
    };
    ASSERT_EQ(text(0, 8), "LACSTATE");
    EXPECT_EQ(u32(8), 2U);
    EXPECT_EQ(u32(12), r);
    EXPECT_EQ(u32(16), 2U);
    EXPECT_EQ(u64(40), 4096U);
    EXPECT_EQ(u32(52), 0U);
    EXPECT_EQ(text(56, u32(48)).substr(0, 15), "powersgd:rank=2");
    std::vector<std::string> names;
    size_t at = 56 + u32(48);
    for (uint32_t i = 0; i < u32(20); ++i) {
      EXPECT_EQ(u32(at + 12), 0U);
      names.push_back(text(at + 16, u32(at + 8)));
      at += 16 + u32(at + 8) + sizeof(float) * u64(at);
      ASSERT_LT(at, state.size());
    }
    EXPECT_EQ(names.front(), "residual/w");
    EXPECT_EQ(names.back(), "state/flush");
    EXPECT_EQ(at + 8, state.size());
    EXPECT_EQ(u64(at), hash64(Bytes(state).first(at)));
  });
}

TEST(PublicSession, ForeignStateIsRefusedAndChangesNothing) {
  LoopbackHub hub(2), third(2), fourth(2);
  std::vector<std::vector<uint8_t>> states(2);
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "powersgd:rank=2");
    auto mine = gradients(2, kElements, 1)[r];
    ASSERT_TRUE(session->average(0, mine));
    states[r] = *session->save();
  });
  const auto refusal = [](PublicSession& session, std::span<const uint8_t> state) {
    const auto before = *session.save();
    const auto loaded = session.load(state);
    if (!loaded) {
      EXPECT_EQ(*session.save(), before);
    }
    return loaded ? Errc::ok : loaded.error().code;
  };
  on_all(2, [&](uint32_t r) {
    auto session = *make(hub.engine(r), "powersgd:rank=2");
    const auto& own = states[r];
    EXPECT_EQ(refusal(*session, states[1 - r]), Errc::state_rank);
    for (size_t cut = 0; cut < own.size(); cut += std::max<size_t>(1, own.size() / 97))
      EXPECT_EQ(refusal(*session, std::span(own).first(cut)), Errc::state_corrupt) << cut;
    for (size_t at = 0; at < own.size(); at += 101) {
      auto damaged = own;
      damaged[at] ^= 4;
      EXPECT_EQ(refusal(*session, damaged), Errc::state_corrupt) << at;
    }
    // Refused although the checksum is right: bytes after the end, a value that is not finite,
    // reserved bytes that are not 0.
    const auto sealed = [](std::vector<uint8_t> body) {
      const uint64_t checksum = hash64(body);
      body.resize(body.size() + sizeof checksum);
      store(body.data() + body.size() - sizeof checksum, checksum);
      return body;
    };
    const std::vector<uint8_t> body(own.begin(), own.end() - 8);
    auto longer = body, infinite = body;
    longer.resize(body.size() + 4);
    store(infinite.data() + body.size() - sizeof(float), std::numeric_limits<float>::infinity());
    EXPECT_EQ(refusal(*session, sealed(body)), Errc::ok);
    EXPECT_EQ(refusal(*session, sealed(longer)), Errc::state_corrupt);
    EXPECT_EQ(refusal(*session, sealed(infinite)), Errc::state_corrupt);
    // Offsets in the head and in the last entry: before its name, "state/flush", and its two
    // values.
    for (const size_t reserved : {size_t{52}, body.size() - 2 * sizeof(float) - 11 - 4}) {
      auto other = body;
      ASSERT_EQ(load<uint32_t>(other.data() + reserved), 0U);
      other[reserved + 2] = 64;
      EXPECT_EQ(refusal(*session, sealed(other)), Errc::state_corrupt) << reserved;
    }
    auto spec = *make(third.engine(r), "powersgd:rank=3");
    EXPECT_EQ(refusal(*spec, own), Errc::state_spec);
    // The engine adds: an element's place decides the last bit of its sum.
    auto parts = *PublicSession::create("powersgd:rank=2", kModel, fourth.engine(r),
                                        in_parts(2, 4096, "native_sum"));
    EXPECT_EQ(refusal(*parts, own), Errc::state_spec);
  });
}

}  // namespace
}  // namespace laconic::test

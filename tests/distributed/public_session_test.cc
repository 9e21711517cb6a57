// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic::Session over two engines: means, agreement, and every kind of trouble as one message.
#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <thread>

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

void on_all(uint32_t world, const std::function<void(uint32_t)>& body) {
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world; ++r) threads.emplace_back([&, r] { body(r); });
}

/// An engine for every rank, of either kind.
struct Engines {
  Engines(bool messages, uint32_t world, bool short_sends = false)
      : hub(world, std::chrono::seconds(30), {kAllSums, short_sends}) {
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

using Case = std::tuple<std::string, std::string, uint32_t, bool, bool>;
class SessionOnEngine : public testing::TestWithParam<Case> {};

/// The session that the other tests compare with an oracle, driven step by step, gives the same
/// bits.
TEST_P(SessionOnEngine, AveragesAsTheExchangeItself) {
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
  on_all(world, [&](uint32_t r) {
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
    for (const uint32_t world : {1U, 2U, 3U}) {
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

TEST(PublicSession, RanksThatDifferGetOneMessage) {
  LoopbackHub hub(3);
  on_all(3, [&](uint32_t r) {
    const Made session = make(hub.engine(r), r == 2 ? "int8" : "3lc");
    ASSERT_FALSE(session);
    EXPECT_EQ(session.error().code, Errc::ranks_disagree);
    EXPECT_EQ(session.error().message,
              "ranks disagree on the spec: rank 0 has '3lc', rank 2 has 'int8'");
  });
}

TEST(PublicSession, ARankThatCannotMakeItsSessionTellsTheOthers) {
  for (const auto& [spec, plan, code, text] :
       std::vector<std::tuple<std::string, std::string, Errc, std::string>>{
           {"3lk", "auto", Errc::unknown_codec, "rank 1: "},
           {"3lc", "ring", Errc::invalid_argument, "rank 1: plan: there is no strategy 'ring'"},
           {"3lc", "native_sum", Errc::unsupported,
            "rank 1: strategy native_sum cannot carry 3lc"}}) {
    LoopbackHub hub(3);
    std::vector<std::string> messages(3);
    on_all(3, [&](uint32_t r) {
      const Made session = make(hub.engine(r), r == 1 ? spec : "3lc", r == 1 ? plan : "auto");
      ASSERT_FALSE(session);
      EXPECT_EQ(session.error().code, code);
      messages[r] = session.error().message;
    });
    EXPECT_EQ(messages[1].rfind(text, 0), 0U) << messages[1];
    EXPECT_TRUE(messages[0] == messages[1] && messages[2] == messages[1]);
  }
}

TEST(PublicSession, AGradientOfAnotherLengthIsEveryRanksErrorAndTheNextStepGoesOn) {
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
                                              " elements, its parameters 6337"),
                  std::string::npos)
            << failed.error().message;
        const auto next = session->average(2, mine);
        ASSERT_TRUE(next) << next.error().message;
        for (const float x : mine) ASSERT_LT(std::fabs(x), 10.0F);  // 1e30 is in no residual
      });
    }
  }
}

TEST(PublicSession, ARankThatDoesNotComeIsATimeOutAndTheEndOfTheSession) {
  std::vector<float> mine(kElements, 1.0F);  // as long as the engine
  LoopbackHub hub(2, std::chrono::hours(1));
  {
    std::unique_ptr<PublicSession> first, second;
    on_all(2, [&](uint32_t r) {
      SessionOptions options;
      options.timeout = std::chrono::milliseconds(r == 0 ? 100 : 10000);
      (r == 0 ? first : second) = *PublicSession::create("3lc", kModel, hub.engine(r), options);
    });
    const auto late = first->average(0, mine);
    ASSERT_FALSE(late);
    EXPECT_EQ(late.error().code, Errc::timed_out);
    const auto again = first->average(1, mine);
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().message, late.error().message);
  }  // the engine's thread still waits in the exchange's buffers, which sanitizers look at
}

TEST(PublicSession, ARankThatIsGoneAtCreateIsAnError) {
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

TEST(PublicSession, OneRanksFlushDrainsAllResiduals) {
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

}  // namespace
}  // namespace laconic::test

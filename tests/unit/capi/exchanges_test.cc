// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Exchanges through the C ABI: what a step says, how much of it a caller takes, and who may ask
// meanwhile.
#include <atomic>
#include <thread>

#include "laconic/error.h"
#include "unit/capi/world.h"

namespace laconic::test {
namespace {

constexpr int32_t code_of(Errc code) { return static_cast<int32_t>(code); }

constexpr WorldSetup kStrategies[] = {{"randomk:ratio=0.1", 2, LACONIC_STRATEGY_NATIVE_SUM},
                                      {"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL},
                                      {"3lc", 2, LACONIC_STRATEGY_TWO_SHOT}};

TEST(Exchanges, RanksGetSameMeanWithEveryStrategy) {
  for (const WorldSetup& setup : kStrategies) {
    SCOPED_TRACE(setup.spec);
    World world(setup);
    for (int step = 0; step < 3; ++step) {
      ASSERT_EQ(world.exchange(), 0) << laconic_last_message();
      EXPECT_EQ(world.ranks[0].buffer, world.ranks[1].buffer);
    }
    // The biases travel uncompressed: their mean is exact.
    const auto a = wave(World::kElements, 20.0F), b = wave(World::kElements, 21.0F);
    for (size_t i = 0; i < World::kBiases; ++i)
      EXPECT_FLOAT_EQ(world.ranks[0].buffer[i], (a[i] + b[i]) / 2);
  }
}

/// A caller whose laconic_step is `size` bytes: what it sees of one batch, and what follows it in
/// memory.
TEST(Exchanges, StepsAreWrittenAtStrideOfCaller) {
  for (const size_t size : {offsetof(laconic_step, tag), offsetof(laconic_step, messages),
                            sizeof(laconic_step), sizeof(laconic_step) + 24}) {
    SCOPED_TRACE(size);
    // Float biases and 16-bit weights: two sums in one batch.
    const WorldSetup setup{"bf16", 2, LACONIC_STRATEGY_NATIVE_SUM,
                           1U << LACONIC_F32 | 1U << LACONIC_BF16};
    World world(setup), same(setup);
    world.begin_all();
    same.begin_all();
    ASSERT_TRUE(world.advance() && same.advance()) << "who is there";
    ASSERT_EQ(same.next(0), 0);
    const size_t written = std::min(size, sizeof(laconic_step));
    std::vector<uint8_t> steps(LACONIC_MAX_BATCH * size + 64, 0xFF);
    uint32_t count = 0;
    ASSERT_EQ(laconic_exchange_next(world.ranks[0].exchange,
                                    reinterpret_cast<laconic_step*>(steps.data()),
                                    static_cast<uint32_t>(size), LACONIC_MAX_BATCH, &count),
              0);
    ASSERT_EQ(count, same.ranks[0].count);
    ASSERT_GT(count, 1U);
    for (uint32_t i = 0; i < count; ++i) {
      laconic_step step{};
      std::memcpy(&step, steps.data() + i * size, written);
      const laconic_step& whole = same.ranks[0].steps[i];
      EXPECT_EQ(step.kind, whole.kind);
      EXPECT_EQ(step.dtype, whole.dtype);
      EXPECT_EQ(step.count, whole.count);
    }
    for (size_t at = 0; at < steps.size(); ++at) {
      if (at < count * size && at % size < written) continue;
      ASSERT_EQ(steps[at], 0xFF) << "byte " << at;
    }
  }
}

TEST(Exchanges, SessionWithOwnerTurnsNeedsDriver) {
  World world({"3lc", 2, LACONIC_STRATEGY_AUTO});
  laconic_session_options options = world.options(0);
  options.owner_turns = 1;
  laconic_session* session = nullptr;
  ASSERT_EQ(laconic_session_create(&options, World::parameters(), 2, &session), 0);
  laconic_exchange* exchange = nullptr;
  const laconic_bucket bucket = world.bucket(0);
  EXPECT_EQ(laconic_exchange_begin(session, &bucket, &exchange),
            static_cast<int32_t>(Errc::unsupported));
  laconic_session_destroy(session);
}

TEST(Exchanges, StepTooSmallForOffsetsIsRefused) {
  World world({});
  world.begin_all();
  World::Rank& rank = world.ranks[0];
  EXPECT_EQ(laconic_exchange_next(rank.exchange, rank.steps, offsetof(laconic_step, tag) - 8,
                                  LACONIC_MAX_BATCH, &rank.count),
            code_of(Errc::invalid_argument));
  world.settle();
  EXPECT_EQ(rank.code, 0) << "the exchange went on";
}

TEST(Exchanges, SmallBufferIsReportedBeforeAnythingRuns) {
  for (const WorldSetup& setup : kStrategies) {
    SCOPED_TRACE(setup.spec);
    World world(setup), same(setup);
    for (World* w : {&world, &same}) {
      for (uint32_t r = 0; r < 2; ++r) w->ranks[r].buffer = wave(World::kElements, 1.0F);
      w->begin_all();
    }
    World::Rank& rank = world.ranks[0];
    uint32_t needed = 0;
    laconic_step untouched;
    std::memset(&untouched, 0xFF, sizeof untouched);
    for (int again = 0; again < 2; ++again) {
      EXPECT_EQ(laconic_exchange_next(rank.exchange, &untouched, sizeof untouched, 0, &needed),
                code_of(Errc::buffer_too_small));
      EXPECT_EQ(untouched.kind, ~uint32_t{0});
    }
    EXPECT_GT(needed, 0U);
    ASSERT_EQ(
        laconic_exchange_next(rank.exchange, rank.steps, sizeof(laconic_step), needed, &rank.count),
        0);
    EXPECT_EQ(rank.count, needed);
    world.settle();
    same.settle();
    EXPECT_EQ(rank.code, 0);
    EXPECT_EQ(rank.buffer, same.ranks[0].buffer);
  }
}

TEST(Exchanges, FailureOfOneRankIsReportedOnAll) {
  struct Case {
    int32_t code;
    const char* message;
    const char* told;
  };
  for (const Case& c :
       {Case{62, "the cable is cut", "the cable is cut"}, Case{62, nullptr, "engine_failed"},
        Case{0, "no code", "internal"}, Case{-7, "no such code", "internal"}}) {
    for (const WorldSetup& setup : kStrategies) {
      SCOPED_TRACE(std::string(setup.spec) + ", code " + std::to_string(c.code));
      World world(setup);
      world.begin_all();
      ASSERT_EQ(laconic_exchange_fail(world.ranks[1].exchange, c.code, c.message), 0);
      world.settle();
      for (const World::Rank& rank : world.ranks) EXPECT_NE(rank.code, 0);
      EXPECT_NE(std::string(laconic_last_message()).find(c.told), std::string::npos)
          << laconic_last_message();
      EXPECT_EQ(world.exchange(), 0) << "the next one works";
    }
  }
}

TEST(Exchanges, CallsOutOfOrderReturnCodes) {
  World world({});
  World::Rank& rank = world.ranks[0];
  world.begin_all();
  laconic_exchange* const exchange = rank.exchange;
  ASSERT_EQ(world.next(0), 0);
  EXPECT_EQ(laconic_exchange_fail(exchange, 62, "late"), code_of(Errc::exchange_order));
  const laconic_bucket bucket = world.bucket(0);
  laconic_exchange* second = exchange;
  EXPECT_EQ(laconic_exchange_begin(rank.session, &bucket, &second), code_of(Errc::exchange_order));
  EXPECT_EQ(second, nullptr);
  world.settle();
  EXPECT_EQ(rank.code, 0);

  EXPECT_EQ(laconic_exchange_fail(exchange, 62, "after the end"), code_of(Errc::exchange_order));
  EXPECT_EQ(laconic_exchange_timed(exchange, 1, 2), code_of(Errc::exchange_order));
  EXPECT_EQ(laconic_exchange_next(exchange, rank.steps, sizeof(laconic_step), LACONIC_MAX_BATCH,
                                  &rank.count),
            code_of(Errc::exchange_order));
  laconic_exchange_abort(exchange);  // nothing to abort
  EXPECT_NE(std::string(laconic_session_stats(rank.session)).find("\"failures\": 0"),
            std::string::npos);
  EXPECT_EQ(world.exchange(), 0);
}

/// Two buckets of one step, each with its own handle; an abort ends both.
TEST(Exchanges, WindowLimitsExchangesInFlight) {
  const World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  laconic_session_options options = world.options(0);
  options.window = 2;
  laconic_session* session = nullptr;
  ASSERT_EQ(laconic_session_create(&options, World::parameters(), 2, &session), 0);
  std::vector<float> weights = wave(World::kWeights), biases = wave(World::kBiases);
  constexpr uint32_t kWhich[] = {0, 1};
  constexpr uint64_t kOffset = 0;
  const auto begin = [&](uint32_t p, laconic_exchange** out) {
    laconic_bucket b{};
    b.struct_size = sizeof b;
    b.step = 3;
    b.index = p;
    b.buffer = p == 0 ? weights.data() : biases.data();
    b.elements = p == 0 ? World::kWeights : World::kBiases;
    b.count = 1;
    b.parameters = kWhich + p;
    b.offsets = &kOffset;
    return laconic_exchange_begin(session, &b, out);
  };
  laconic_exchange *first = nullptr, *second = nullptr, *third = nullptr;
  ASSERT_EQ(begin(0, &first), 0);
  EXPECT_EQ(begin(0, &third), code_of(Errc::exchange_order));  // its parameter is in flight
  ASSERT_EQ(begin(1, &second), 0);
  EXPECT_NE(first, second);
  laconic_step steps[LACONIC_MAX_BATCH] = {};
  uint32_t count = 0;
  for (laconic_exchange* each : {second, first}) {
    EXPECT_EQ(laconic_exchange_next(each, steps, sizeof steps[0], LACONIC_MAX_BATCH, &count), 0);
    EXPECT_GT(count, 0U);
  }
  EXPECT_EQ(laconic_session_scale_residuals(session, 2.0F), code_of(Errc::exchange_order));
  laconic_exchange_abort(second);
  for (laconic_exchange* each : {first, second}) {
    EXPECT_EQ(laconic_exchange_next(each, steps, sizeof steps[0], LACONIC_MAX_BATCH, &count),
              code_of(Errc::exchange_order));
    laconic_exchange_abort(each);  // nothing to abort
  }
  double kept = 0;  // "b" travels uncompressed: it has no residual
  for (const float x : wave(World::kWeights)) kept += double{x} * double{x};
  EXPECT_NEAR(laconic_session_residual_norm(session), std::sqrt(kept), 1e-4);
  EXPECT_EQ(laconic_session_scale_residuals(session, 2.0F), 0);
  EXPECT_EQ(begin(0, &first), code_of(Errc::engine_failed));
  laconic_session_destroy(session);
}

TEST(Exchanges, AbortReturnsGradientToResidual) {
  World world({"topk:ratio=0.1", 2, LACONIC_STRATEGY_GATHER_ALL});
  ASSERT_EQ(world.exchange(), 0);
  const double before = laconic_session_residual_norm(world.ranks[0].session);
  world.ranks[0].buffer = wave(World::kElements);
  ASSERT_EQ(world.begin(0), 0);
  ASSERT_EQ(world.next(0), 0);
  laconic_exchange_abort(world.ranks[0].exchange);
  EXPECT_GT(laconic_session_residual_norm(world.ranks[0].session), before + 1.0);
  EXPECT_EQ(world.begin(0), code_of(Errc::engine_failed)) << "it takes no more";
}

TEST(Exchanges, WrongBucketIsRefused) {
  World world({});
  laconic_session* const session = world.ranks[0].session;
  const auto refused = [&](auto change) {
    laconic_bucket bucket = world.bucket(0);
    change(bucket);
    laconic_exchange* exchange = nullptr;
    const int32_t code = laconic_exchange_begin(session, &bucket, &exchange);
    EXPECT_EQ(exchange, nullptr);
    return code == code_of(Errc::invalid_argument);
  };
  EXPECT_TRUE(refused([](auto& b) { b.dtype = LACONIC_U8; }));
  EXPECT_TRUE(refused([](auto& b) { b.dtype = 77; }));
  EXPECT_TRUE(refused([](auto& b) { b.flags = 4; }));
  EXPECT_TRUE(refused([](auto& b) { b.buffer = nullptr; }));
  EXPECT_TRUE(refused([](auto& b) { b.parameters = nullptr; }));
  EXPECT_TRUE(refused([](auto& b) { b.offsets = nullptr; }));
  EXPECT_TRUE(refused([](auto& b) { b.struct_size = 0; }));
  EXPECT_EQ(world.exchange(), 0);
}

TEST(Exchanges, CountersAreReadableWhileAnotherThreadDrives) {
  World world(kStrategies[1]);
  const laconic_session* const session = world.ranks[0].session;
  std::atomic<bool> done{false};
  std::atomic<int> asked{0};
  std::thread reader([&] {
    while (!done.load() || asked.load() == 0) {
      const std::string stats = laconic_session_stats(session);
      EXPECT_EQ(stats.front(), '{');
      EXPECT_EQ(stats.back(), '}');
      const std::string explained = laconic_session_explain(session);
      EXPECT_NE(explained.find("topk"), std::string::npos);
      EXPECT_NE(explained.find("\"exchange_bytes\": "), std::string::npos);
      EXPECT_EQ(explained.back(), '}');
      EXPECT_GE(laconic_session_residual_norm(session), 0.0);
      ++asked;
    }
  });
  for (int step = 0; step < 50; ++step) {  // buffers come and go
    EXPECT_EQ(world.exchange(), 0);
    if (step % 5 != 4) continue;
    for (uint32_t r = 0; r < world.ranks.size(); ++r) world.release(r);
    world.weights_first = !world.weights_first;
  }
  done = true;
  reader.join();
}

TEST(Exchanges, TextBelongsToCallingThread) {
  World world({});
  const laconic_session* const session = world.ranks[0].session;
  const char* const mine = laconic_session_explain(session);
  const std::string before = mine;
  std::thread([&] { laconic_session_stats(session); }).join();
  EXPECT_EQ(before, mine);
}

}  // namespace
}  // namespace laconic::test

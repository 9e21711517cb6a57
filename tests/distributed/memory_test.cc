// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One rank without memory: every allocation of an exchange fails in turn, on one rank. All ranks
// report it in the same words, none waits, and the next step works.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <limits>

#include "laconic/session.h"
#include "session/driver/driver.h"
#include "session/without_throwing.h"
#include "support/ranks.h"
#include "support/scarce_memory.h"

#if !defined(LACONIC_ASAN) && !defined(LACONIC_TSAN)  // they have allocators of theirs

namespace laconic::test {
namespace {

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}};
constexpr uint32_t kWorld = 3;
constexpr uint32_t kPoor = 1;

/// Does not count: engines have memory of their own.
class Uncounted final : public Engine {
 public:
  explicit Uncounted(Engine& engine) : engine_(&engine) {}
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const Step> batch) override {
    const int64_t left = std::exchange(countdown, -1);
    auto done = engine_->run(batch);
    countdown = left;
    return done;
  }
  Result<Ticket> start(std::span<const laconic::Step> batch) override {
    const int64_t left = std::exchange(countdown, -1);
    auto started = engine_->start(batch);
    countdown = left;
    return started;
  }
  Result<void> wait(Ticket ticket, Deadline deadline) override {
    const int64_t left = std::exchange(countdown, -1);
    auto done = engine_->wait(ticket, deadline);
    countdown = left;
    return done;
  }

 private:
  Engine* engine_;
};

struct Step {
  uint64_t step = 0;
  bool bad_gradient = false;
  int64_t failing = -1;  ///< which allocation of the poor rank
};

/// One exchange; rank `poor`'s `failing`-th allocation fails. Gives whether one did.
bool exchange(Ranks& group, const Layout& layout, DType dtype, const Step& step,
              std::vector<Result<void>>& results, uint32_t poor = kPoor) {
  auto g = gradients(kWorld, layout.elements, step.step);
  if (step.bad_gradient) g[0][5] = std::numeric_limits<float>::infinity();
  std::vector<std::vector<uint16_t>> half(kWorld, std::vector<uint16_t>(layout.elements));
  bool failed = false;
  group.on_all([&](uint32_t r) {
    for (size_t i = 0; i < g[r].size(); ++i) half[r][i] = float_to_bf16(g[r][i]);
    Bucket bucket;
    bucket.buffer = dtype == DType::f32 ? static_cast<void*>(g[r].data()) : half[r].data();
    bucket.dtype = dtype;
    bucket.step = step.step;
    Uncounted engine(group.hub().engine(r));
    const collective::LayoutView view(layout);
    if (r == poor) countdown = step.failing;
    results[r] = session::drive(group.session(r), bucket, view, engine);
    if (r == poor) failed = step.failing >= 0 && countdown < 0;
    countdown = -1;
  });
  return failed;
}

using Case = std::tuple<const char*, StrategyKind, DType>;
class NoMemory : public testing::TestWithParam<Case> {
 protected:
  Ranks ranks() {
    const auto& [spec, strategy, dtype] = GetParam();
    return Ranks({spec, kWorld, kModel, strategy, 64, 1, kAllSums, false, {}, {}, {}, true});
  }

  /// `prepare` brings a new group to the exchange `step`, in which each allocation fails in turn.
  /// Gives how many there were.
  int64_t fail_each(const std::function<void(Ranks&, const Layout&)>& prepare, Step step) {
    const DType dtype = std::get<2>(GetParam());
    const Layout layout = back_to_back(kModel, {0, 1, 2});
    for (step.failing = 0; step.failing < 500; ++step.failing) {
      Ranks group = ranks();
      prepare(group, layout);
      std::vector<Result<void>> results(kWorld);
      const double before = residual_sum(group);
      const bool failed = exchange(group, layout, dtype, step, results);
      if (!failed) {
        for (const auto& r : results) EXPECT_TRUE(r) << r.error().message;
        return step.failing;
      }
      expect_one_message(results, step.failing);
      if (!results[0] && !step.bad_gradient) {
        expect_kept(group, layout, dtype, step, before);
      }
      exchange(group, layout, dtype, {step.step + 1, false, -1}, results);
      for (const auto& r : results)
        EXPECT_TRUE(r) << "the step after allocation " << step.failing << ": " << r.error().message;
      if (HasFailure()) break;
    }
    return step.failing;
  }

  static void expect_one_message(const std::vector<Result<void>>& results, int64_t failing) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      ASSERT_EQ(results[r].ok(), results[0].ok()) << "allocation " << failing << " rank " << r;
      if (results[r]) continue;
      EXPECT_EQ(results[r].error().message, results[0].error().message);
      EXPECT_NE(results[r].error().message.find("rank 1 failed"), std::string::npos)
          << results[r].error().message;
      EXPECT_NE(results[r].error().message.find("out_of_memory"), std::string::npos);
    }
  }

  /// The gradients of parameters with residuals went there.
  static void expect_kept(Ranks& group, const Layout& layout, DType dtype, const Step& step,
                          double before) {
    if (!group.session(0).model().spec().feedback()) return;
    const bool small_ones = group.session(0).model().choice().strategy == StrategyKind::server_sum;
    auto g = gradients(kWorld, layout.elements, step.step);
    double lost = 0;
    for (const auto& rank : g) {
      for (size_t i = 0; i < rank.size(); ++i) {
        if (!small_ones && i >= layout.offsets[1] && i < layout.offsets[2]) continue;
        const float x = dtype == DType::f32 ? rank[i] : bf16_to_float(float_to_bf16(rank[i]));
        lost += static_cast<double>(x) / kWorld;
      }
    }
    EXPECT_NEAR(residual_sum(group), before + lost, 1e-3) << "allocation " << step.failing;
  }
};

TEST_P(NoMemory, ShortageForNewLayoutIsReportedOnAllRanks) {
  EXPECT_GT(fail_each([](Ranks&, const Layout&) {}, {0, false, -1}), 5);
}

/// The same bucket had another layout before, which is enrolled.
TEST_P(NoMemory, ShortageForSecondLayoutIsReportedOnAllRanks) {
  const DType dtype = std::get<2>(GetParam());
  const auto other = [&](Ranks& group, const Layout&) {
    std::vector<Result<void>> results(kWorld);
    exchange(group, back_to_back(kModel, {2, 1, 0}), dtype, {0, false, -1}, results);
    for (const auto& r : results) ASSERT_TRUE(r);
  };
  EXPECT_GT(fail_each(other, {1, false, -1}), 5);
}

TEST_P(NoMemory, KnownLayoutNeedsNoAllocation) {
  const DType dtype = std::get<2>(GetParam());
  const auto first = [&](Ranks& group, const Layout& layout) {
    std::vector<Result<void>> results(kWorld);
    exchange(group, layout, dtype, {0, false, -1}, results);
  };
  EXPECT_EQ(fail_each(first, {1, false, -1}), 0) << "a step of the steady state allocated";
}

/// From the first batch of create() on, which every rank takes part in.
class Arming final : public Engine {
 public:
  Arming(Engine& engine, int64_t failing) : engine_(&engine), failing_(failing) {}
  ~Arming() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  Result<void> run(std::span<const laconic::Step> batch) override { return engine_->run(batch); }
  Result<Ticket> start(std::span<const laconic::Step> batch) override {
    const int64_t left = std::exchange(countdown, -1);
    auto started = Engine::start(batch);
    countdown = std::exchange(failing_, -1);
    if (countdown < 0) countdown = left;
    return started;
  }

 private:
  Engine* engine_;
  int64_t failing_;
};

/// Layout, permutation and all else are made there: one message on all ranks of all nodes.
TEST(NoMemoryInside, ShortageAtCreateIsReportedOnAllRanks) {
  constexpr uint32_t kNodes = 2, kRanks = 2;
  int64_t failing = 0;
  for (bool failed = true; failed && failing < 1000; failing += 3) {
    LoopbackHub across[kRanks]{LoopbackHub(kNodes), LoopbackHub(kNodes)};
    LoopbackHub inside[kNodes]{LoopbackHub(kRanks), LoopbackHub(kRanks)};
    std::vector<std::string> found(kNodes * kRanks);
    on_all(kNodes * kRanks, [&](uint32_t r) {
      Arming engine(across[r % kRanks].engine(r / kRanks), r == kPoor ? failing : -1);
      Uncounted node(inside[r / kRanks].engine(r % kRanks));
      SessionOptions options;
      options.inside = &node;
      options.small_elements = 64;
      const auto session = laconic::Session::create("3lc", kModel, engine, options);
      if (r == kPoor) failed = countdown < 0;
      countdown = -1;
      found[r] = session ? "" : std::string(errc_name(session.error().code));
    });
    for (const std::string& other : found)
      ASSERT_EQ(other, failed ? "out_of_memory" : "") << "allocation " << failing;
  }
  EXPECT_GT(failing, 60);
}

TEST(NoMemoryInside, SteadyStateNeedsNoAllocation) {
  constexpr uint32_t kNodes = 2, kRanks = 2;
  LoopbackHub across[kRanks]{LoopbackHub(kNodes), LoopbackHub(kNodes)};
  LoopbackHub inside[kNodes]{LoopbackHub(kRanks), LoopbackHub(kRanks)};
  on_all(kNodes * kRanks, [&](uint32_t r) {
    Uncounted engine(across[r % kRanks].engine(r / kRanks));
    Uncounted node(inside[r / kRanks].engine(r % kRanks));
    SessionOptions options;
    options.inside = &node;
    options.small_elements = 64;
    options.control = "dc2";
    const auto session = laconic::Session::create("topk:ratio=0.05", kModel, engine, options);
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t step = 0; step < 6; ++step) {
      auto mine = gradients(kNodes * kRanks, 6009, step)[r];
      if (step == 4) countdown = 0;  // the next one would fail
      const auto done = (*session)->average(step, mine);
      if (step == 4) {
        EXPECT_EQ(countdown, 0) << "a step of the steady state allocated";
        countdown = -1;
      }
      ASSERT_TRUE(done) << done.error().message;
    }
  });
}

/// A law's changes, up to the most that it may send and down again, and what follows from them.
TEST(NoMemoryForChanges, ChangesNeedNoAllocation) {
  struct Steered {
    const char* spec;
    StrategyKind strategy;
    const char* control;
    const char* rule = nullptr;  ///< the spec of "b", which stays
  };
  const std::vector<Steered> all{
      {"topk:ratio=0.05", StrategyKind::gather_all, "schedule:0=0.05,3=0.25,5=0.001,7=0.1,9=0.05"},
      {"topk:ratio=0.05", StrategyKind::two_shot, "schedule:0=0.05,3=0.25,5=0.001,7=0.1,9=0.05"},
      {"randomk:ratio=0.05", StrategyKind::native_sum, "schedule:0=0.05,3=0.25,5=0.001,9=0.05"},
      {"sidco:ratio=0.05", StrategyKind::gather_all, "schedule:0=0.05,3=0.25,5=0.001,9=0.05"},
      {"powersgd:rank=2", StrategyKind::native_sum, "schedule:0=2,3=16,5=1,7=9,9=2"},
      {"3lc", StrategyKind::two_shot, "schedule:0=1.5,3=1,5=1.9,7=1.2,9=1"},
      {"qsgd", StrategyKind::gather_all, "schedule:0=64,3=127,5=1,7=30,9=127"},
      // Up to float32, by the time that the steps take here.
      {"topk:ratio=0.05", StrategyKind::gather_all, "dc2:deadline_ms=1000000,max=0.06"},
      // The same next to parameters that stay compressed.
      {"topk:ratio=0.05", StrategyKind::gather_all, "dc2:deadline_ms=1000000,max=0.06", "3lc"},
      {"topk:ratio=0.05", StrategyKind::two_shot, "dc2:deadline_ms=1000000,max=0.06", ""},
      {"randomk:ratio=0.05", StrategyKind::native_sum, "dc2:deadline_ms=1000000,max=0.06",
       "powersgd"}};
  for (const Steered& c : all) {
    test::Setup setup{c.spec, kWorld, kModel, c.strategy, 64};
    setup.control = c.control;
    if (c.rule != nullptr) setup.rules = {rule("b", c.rule)};
    if (c.rule != nullptr) setup.rules[0].control = "fixed";
    Ranks group(setup);
    const Layout layout = back_to_back(kModel, {0, 1, 2});
    for (uint64_t step = 0; step < 24; ++step) {
      std::vector<Result<void>> results(kWorld);
      // The first exchange takes what all others need.
      const bool failed =
          exchange(group, layout, DType::f32, {step, false, step == 0 ? -1 : 0}, results);
      EXPECT_FALSE(failed) << c.spec << " in step " << step;
      for (const auto& r : results) ASSERT_TRUE(r) << r.error().message;
    }
    EXPECT_GE(group.session(kPoor).stats().setting_changes, 3U) << c.spec;
  }
}

/// A new layout without memory, under a law: the settings are those of now again.
TEST(NoMemoryForChanges, ShortageForNewLayoutChangesNoSetting) {
  const auto with = [] {
    test::Setup setup{"topk:ratio=0.05", kWorld, kModel, StrategyKind::gather_all, 64};
    setup.control = "schedule:0=0.05,300=0.25";
    setup.rules = {rule("b", "3lc")};
    setup.rules[0].control = "fixed";
    return setup;
  };
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  int64_t failing = 0;
  for (bool failed = true; failed && failing < 500; ++failing) {
    Ranks group(with());
    std::vector<Result<void>> results(kWorld);
    failed = exchange(group, layout, DType::f32, {0, false, failing}, results);
    EXPECT_EQ(group.session(kPoor).model().spec().moved_text(), "topk:ratio=0.05") << failing;
    exchange(group, layout, DType::f32, {1, false, -1}, results);
    for (const auto& r : results)
      ASSERT_TRUE(r) << "behind allocation " << failing << ": " << r.error().message;
  }
  EXPECT_GT(failing, 10);
}

/// A record may lack memory for nothing but the words of a decision: the record ends, training
/// continues.
TEST(NoMemoryForARecord, ShortageEndsOnlyTheRecord) {
  test::Setup setup{"topk:ratio=0.05", kWorld, kModel, StrategyKind::gather_all, 64};
  setup.control = "schedule:0=0.05,5=0.25";
  setup.record = testing::TempDir() + "laconic_no_memory.jsonl";
  std::remove(setup.record.c_str());
  Ranks group(setup);
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  for (uint64_t step = 0; step < 8; ++step) {
    std::vector<Result<void>> results(kWorld);
    // The first exchange takes what all others need.
    const bool failed =
        exchange(group, layout, DType::f32, {step, false, step == 0 ? -1 : 0}, results, 0);
    EXPECT_EQ(failed, step == 4) << step;  // decided in step 3
    for (const auto& r : results) ASSERT_TRUE(r) << r.error().message;
    EXPECT_EQ(group.session(0).recorder()->trouble(), step < 4 ? "" : "out of memory");
  }
  EXPECT_EQ(group.session(0).recorder()->steps(), 3U);
  EXPECT_EQ(group.session(0).stats().setting_changes, 1U);
}

/// Settings changed by hand hold on all ranks or on none: where an allocation of one rank fails,
/// the request has no effect.
TEST(NoMemoryForASet, ShortageLeavesSettingsOfAllRanks) {
  const test::Setup setup{"3lc", kWorld, kModel, StrategyKind::two_shot, 64};
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  const auto run = [&](Ranks& group, uint64_t from, uint64_t to) {
    std::vector<std::vector<float>> last;
    for (uint64_t step = from; step < to; ++step) {
      last = gradients(kWorld, layout.elements, step + 1);
      for (const auto& r : group.exchange(layout, last, step)) EXPECT_TRUE(r) << r.error().message;
    }
    return last;
  };
  Ranks never(setup);
  const auto without = run(never, 0, 4);
  for (int64_t failing = 0; failing < 500; ++failing) {
    Ranks group(setup);
    run(group, 0, 2);
    std::vector<uint8_t> cards(kWorld * session::kAgreementBytes);
    std::vector<Result<void>> results(kWorld);
    int64_t left = 0;
    group.on_all([&](uint32_t r) {
      if (r == kPoor) countdown = failing;
      const auto prepared =
          group.session(r).proposal().prepare({.spec = "powersgd:rank=2", .plan = "auto"});
      if (r == kPoor) left = countdown;
      countdown = -1;
      std::memcpy(cards.data() + r * session::kAgreementBytes,
                  group.session(r).proposal().card().data(), session::kAgreementBytes);
    });
    group.on_all([&](uint32_t r) {
      if (r == kPoor) countdown = left;
      results[r] = group.session(r).proposal().end(cards);
      if (r == kPoor) left = countdown;
      countdown = -1;
    });
    for (uint32_t r = 0; r < kWorld; ++r) {
      ASSERT_EQ(results[r].ok(), left >= 0) << "allocation " << failing << " rank " << r;
      EXPECT_EQ(group.session(r).active().version(), left >= 0 ? 1U : 0U);
      if (left >= 0) continue;
      EXPECT_EQ(results[r].error().message, results[0].error().message);
      EXPECT_THAT(results[r].error().message,
                  ::testing::ContainsRegex("rank 1: (out of|not enough) memory"))
          << results[r].error().message;
    }
    const auto after = run(group, 2, 4);
    EXPECT_EQ(same_bits(after[0], without[0]), left < 0) << "allocation " << failing;
    if (left < 0) continue;
    EXPECT_GT(failing, 30);
    return;
  }
  ADD_FAILURE() << "allocates without end";
}

TEST_P(NoMemory, ShortageInUncompressedFallbackIsReportedOnAllRanks) {
  const DType dtype = std::get<2>(GetParam());
  const auto first = [&](Ranks& group, const Layout& layout) {
    std::vector<Result<void>> results(kWorld);
    exchange(group, layout, dtype, {0, false, -1}, results);
  };
  const bool feedback = ranks().session(0).model().spec().feedback();
  EXPECT_EQ(fail_each(first, {1, true, -1}) > 0, feedback);
}

TEST_P(NoMemory, ShortageInDrainingStepIsReportedOnAllRanks) {
  const DType dtype = std::get<2>(GetParam());
  const auto until_drain = [&](Ranks& group, const Layout& layout) {
    std::vector<Result<void>> results(kWorld);
    EXPECT_TRUE(group.session(2).flush(2));
    exchange(group, layout, dtype, {0, false, -1}, results);
  };
  const bool feedback = ranks().session(0).model().spec().feedback();
  EXPECT_EQ(fail_each(until_drain, {1, false, -1}) > 0, feedback);
}

/// laconic::Session, on one rank without memory: made, and averaging for the first and second time.
TEST(PublicSessionMemory, ShortageIsReportedOnAllRanks) {
  constexpr uint64_t kElements = 60 * 50 + 9 + 3000;
  // cards and the engine's thread: without them no report can be sent
  constexpr int64_t kUntold = 10;
  for (int64_t failing = kUntold; failing < 500; ++failing) {
    LoopbackHub hub(kWorld);
    std::vector<std::string> created(kWorld), averaged(kWorld), next(kWorld);
    bool failed = false;
    std::vector<std::jthread> ranks;
    const auto rank = [&](uint32_t r) {
      std::vector<float> g(kElements, 1.0F);
      std::vector<Parameter> model = kModel;
      Result<void> done;
      if (r == kPoor) countdown = failing;
      auto session = laconic::Session::create("3lc", std::move(model), hub.engine(r));
      if (session) done = (*session)->average(0, g);
      if (r == kPoor) failed = countdown < 0;
      countdown = -1;
      created[r] = session ? "" : session.error().message;
      averaged[r] = done.error().message;
      if (session) next[r] = (*session)->average(1, g) ? "fine" : "failed";
    };
    for (uint32_t r = 0; r < kWorld; ++r) ranks.emplace_back(rank, r);
    ranks.clear();
    for (uint32_t r = 0; r < kWorld; ++r) {
      EXPECT_EQ(created[r], created[0]) << failing;
      EXPECT_EQ(averaged[r], averaged[0]) << failing;
      EXPECT_EQ(next[r], created[0].empty() ? "fine" : "") << failing;
    }
    if (!failed) {
      EXPECT_GT(failing, 40);
      return;
    }
  }
  ADD_FAILURE() << "allocates without end";
}

TEST(LoopbackMemory, EndingGroupNeedsNoAllocation) {
  auto hub = std::make_unique<LoopbackHub>(2);
  countdown = 0;
  hub.reset();
  EXPECT_EQ(std::exchange(countdown, -1), 0) << "memory was asked for";
}

/// Buckets that travel together, on one rank without memory: in the first step, whose group is new,
/// and in a second one with another group. Nothing is lost, and the third goes on; then no step
/// takes any.
TEST(PublicSessionMemory, ShortageForJoinedBucketsIsReportedOnAllRanks) {
  const std::vector<std::vector<uint32_t>> orders[] = {{{0}, {1}, {2}}, {{2}, {1}, {0}}};
  for (const char* spec : {"topk:ratio=0.1", "powersgd:rank=2"}) {
    for (const size_t step : {size_t{0}, size_t{1}, size_t{2}}) {
      int64_t failing = 0;
      for (bool failed = true; failed && failing < 500 && !testing::Test::HasFailure(); ++failing) {
        std::vector<std::string> said(kWorld), next(kWorld);
        std::vector<double> lost(kWorld);
        LoopbackHub hub(kWorld);
        on_all(kWorld, [&](uint32_t r) {
          Uncounted engine(hub.engine(r));
          auto session = *laconic::Session::create(spec, kModel, engine, {.small_elements = 16});
          const auto norm = [&] {
            const std::string stats = session->stats();
            return std::stod(stats.substr(stats.find("\"residual_norm\": ") + 17));
          };
          std::vector<std::vector<float>> g;
          for (const Parameter& p : kModel) g.emplace_back(p.count(), 1.0F);
          const auto run = [&](uint64_t number, size_t order) {
            Result<void> first;
            for (const auto& bucket : orders[order % 2]) {
              for (float& x : g[bucket[0]]) x = 1.0F;
              auto done = session->submit(number, {g[bucket[0]], bucket});
              if (!done && first) first = std::move(done);
            }
            auto done = session->wait();
            return first ? std::move(done) : std::move(first);
          };
          for (uint64_t i = 0; i < step; ++i) ASSERT_TRUE(run(i, step == 2 ? 0 : i));
          const double before = norm();
          if (r == kPoor) countdown = failing;
          const auto done = run(step, step == 2 ? 0 : step);
          if (r == kPoor) failed = countdown < 0;
          countdown = -1;
          said[r] = done ? "" : done.error().message;
          lost[r] = norm() - before;
          next[r] = run(step + 1, step == 2 ? 0 : step) ? "" : "failed";
        });
        for (uint32_t r = 0; r < kWorld; ++r) {
          EXPECT_EQ(said[r], said[0]) << failing;
          EXPECT_EQ(next[r], "") << failing << " " << said[0];
          if (said[0].empty()) continue;
          EXPECT_NE(said[0].find("rank 1 failed in bucket 0 (out_of_memory)"), std::string::npos)
              << said[0];
          EXPECT_GT(lost[r], 10) << "its gradients are in the residuals";
        }
      }
      EXPECT_EQ(failing > 1, step != 2) << spec << ": " << failing;
    }
  }
}

/// Memory of a session and of the exchange of one small bucket, on one rank.
uint64_t bytes_taken(uint32_t world, StrategyKind strategy, bool short_sends) {
  Options o;
  o.world = world;
  o.strategy = strategy;
  o.small_elements = 64;
  o.caps.short_sends = short_sends;
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  std::vector<float> buffer(layout.elements);
  Bucket bucket;
  bucket.buffer = buffer.data();
  const uint64_t before = taken;
  auto session = *Session::create("3lc", kModel, o);
  EXPECT_TRUE(session->begin(bucket, layout));
  return taken - before;
}

/// Matrices of world x world once took 625 MB for one small bucket of 4,000 ranks.
TEST(Memory, UsageGrowsWithRanksNotTheirSquare) {
  for (const bool short_sends : {false, true}) {
    const uint64_t some = bytes_taken(1000, StrategyKind::two_shot, short_sends);
    const uint64_t many = bytes_taken(4000, StrategyKind::two_shot, short_sends);
    EXPECT_LT(many, 6 * some) << short_sends;
    EXPECT_LT(many, uint64_t{64} << 20) << short_sends;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, NoMemory,
    testing::Values(Case{"3lc", StrategyKind::two_shot, DType::f32},
                    Case{"3lc", StrategyKind::gather_all, DType::f32},
                    Case{"int8", StrategyKind::two_shot, DType::f32},
                    Case{"topk:ratio=0.1", StrategyKind::gather_all, DType::bf16},
                    Case{"powersgd:rank=2", StrategyKind::native_sum, DType::f32},
                    Case{"bf16+ef", StrategyKind::native_sum, DType::bf16},
                    Case{"thc:block=256", StrategyKind::server_sum, DType::f32},
                    Case{"none", StrategyKind::native_sum, DType::f32}));

/// Push, turn and pull of one bucket; plain SGD.
Result<bool> step_with_turn(session::Driver& driver, const Layout& layout, uint64_t step,
                            std::vector<float>& gradient) {
  Bucket bucket;
  bucket.buffer = gradient.data();
  bucket.step = step;
  (void)driver.submit(bucket, layout);
  if (auto turn = session::without_throwing([&] { return driver.turns().begin(); })) {
    for (const auto& range : turn->ranges) {
      for (uint64_t i = 0; i < range.count; ++i) range.master[i] -= range.mean[i];
    }
  }
  return driver.turns().pull();
}

/// In the first step, whose layout is new, and in the third.
TEST(NoMemoryInATurn, ShortageIsReportedOnAllRanksAndParametersStayEqual) {
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  for (const uint64_t poor_step : {uint64_t{0}, uint64_t{2}}) {
    int64_t failing = 0;
    for (bool failed = true; failed && failing < 500; ++failing) {
      test::Setup setup{"3lc", kWorld, kModel, StrategyKind::two_shot, 64};
      setup.turn = [](const std::string&, uint64_t, std::vector<float>&) {};
      Ranks group(setup);
      std::vector<std::vector<float>> a(kWorld, std::vector<float>(3000)),
          bias(kWorld, std::vector<float>(9)), b(kWorld, std::vector<float>(3000));
      std::vector<std::string> messages(kWorld);
      group.on_all([&](uint32_t r) {
        Uncounted engine(group.hub().engine(r));
        session::Driver driver(group.session(r), engine, std::chrono::seconds(60));
        const std::vector<collective::Replica> replicas{
            {a[r].data(), DType::f32}, {bias[r].data(), DType::f32}, {b[r].data(), DType::f32}};
        ASSERT_TRUE(driver.turns().set_replicas(replicas, true));
        for (uint64_t step = 0; step < 4; ++step) {
          auto gradient = gradients(kWorld, layout.elements, step)[r];
          const bool poor = r == kPoor && step == poor_step;
          if (poor) countdown = failing;
          const auto done = session::without_throwing(
              [&] { return step_with_turn(driver, layout, step, gradient); });
          if (poor) failed = countdown < 0;
          countdown = -1;
          if (step == poor_step && !done) messages[r] = done.error().message;
          if (step != poor_step) {
            EXPECT_TRUE(done) << "step " << step << ", allocation " << failing;
          }
        }
      });
      EXPECT_EQ(messages[1], messages[0]) << failing;
      EXPECT_EQ(messages[2], messages[0]) << failing;
      for (uint32_t r = 1; r < kWorld; ++r) {
        EXPECT_EQ(a[r], a[0]);
        EXPECT_EQ(b[r], b[0]);
      }
      if (HasFailure()) return;
    }
    EXPECT_GT(failing, poor_step == 0 ? 5 : 0);
  }
}

}  // namespace
}  // namespace laconic::test

#endif

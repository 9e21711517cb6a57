// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Several exchanges in flight: the bits of one at a time, an order of issue that no delay changes,
// and nothing lost when the engine fails with all of them under way.
#include "session/driver/window.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string_view>
#include <thread>

#include "support/mailboxes.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

constexpr uint64_t kShort = 65536;  // elements of the longest short exchange
/// One parameter of them is longer than a short exchange.
const std::vector<Parameter> kModel{{"a", 60, 50},          {"bias", 9, 1}, {"b", 3000, 1},
                                    {"c", 40, 70},          {"tiny", 1, 1}, {"d", 33, 35},
                                    {"long", kShort + 1, 1}};
const std::vector<std::vector<uint32_t>> kBuckets{{5, 4}, {3}, {6}, {2}, {1}, {0}};
constexpr uint32_t kLong = 2;  // of kBuckets
constexpr auto kTimeout = std::chrono::seconds(60);

/// Three of twelve buckets are long, two are too small to be compressed (b). In a window of 2 the
/// first long ones meet, and after the third the limit of all is reached.
std::pair<std::vector<Parameter>, std::vector<std::vector<uint32_t>>> mixed() {
  std::vector<Parameter> model;
  std::vector<std::vector<uint32_t>> buckets;
  for (const char size : std::string_view("sLLsbLssbsss")) {
    const auto p = static_cast<uint32_t>(model.size());
    const std::string name = "p" + std::to_string(p);
    if (size == 'L') model.push_back({name, kShort + 1, 1});
    if (size == 's') model.push_back({name, 20 + p, 35});
    if (size == 'b') model.push_back({name, 9, 1});
    buckets.push_back({p});
  }
  model.push_back({"tiny", 1, 1});
  buckets.back().push_back(static_cast<uint32_t>(model.size() - 1));
  return {model, buckets};
}

/// How many of a step's first exchanges have ended before bucket `i` + 1 begins: the rest, all of
/// it in flight, leaves a place for one more, long or short. Of the sizes alone.
size_t ended_after(const std::vector<Layout>& layouts, size_t i, uint32_t window) {
  if (window == 1) return i + 1;
  size_t n = i + 1, longs = 0;
  while (n > 0) {
    longs += layouts[n - 1].elements > kShort ? 1U : 0U;
    if (longs == window || i + 1 - n == 7) break;
    --n;
  }
  return n;
}

/// Waits a random moment before every batch, fails for good at call `at`, and records what was
/// started and what was waited for.
class Observed final : public Engine {
 public:
  Observed(Engine& engine, uint32_t seed, int64_t at = -1, LoopbackHub* hub = nullptr)
      : engine_(&engine), random_(seed), at_(at), hub_(hub) {}
  ~Observed() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_->caps(); }
  Result<void> run(std::span<const Step> batch) override {
    if (random_() % 2 == 0)
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 2000));
    if (calls_++ == at_) {
      hub_->break_off(rank());
      return Error{Errc::engine_failed, "the cable is cut", {}};
    }
    return engine_->run(batch);
  }
  Result<Ticket> start(std::span<const Step> batch) override {
    // Step::tag: the exchange's number, then that of its batch.
    started_.emplace_back(batch[0].tag >> 8U, batch[0].tag >> 3U & 0x1FU);
    auto ticket = Engine::start(batch);
    if (ticket) tickets_[ticket->number] = started_.back();
    return ticket;
  }
  Result<void> wait(Ticket ticket, Deadline deadline) override {
    auto done = Engine::wait(ticket, deadline);
    if (done) arrived_.insert(tickets_[ticket.number]);
    return done;
  }
  using Batch = std::pair<uint32_t, uint32_t>;
  using Started = std::vector<Batch>;
  [[nodiscard]] const Started& started() const { return started_; }
  [[nodiscard]] bool arrived(Batch batch) const { return arrived_.count(batch) != 0; }
  [[nodiscard]] int64_t calls() const { return calls_; }

 private:
  Engine* engine_;
  std::minstd_rand random_;
  int64_t at_;
  LoopbackHub* hub_;
  std::atomic<int64_t> calls_ = 0;
  Started started_;
  std::map<uint64_t, Batch> tickets_;
  std::set<Batch> arrived_;
};

Options options_of(const Engine& engine, StrategyKind strategy, uint32_t window) {
  Options o;
  o.rank = engine.rank();
  o.world = engine.world();
  o.caps = engine.caps();
  o.seed = 42;
  o.small_elements = 16;
  o.strategy = strategy;
  o.window = window;
  return o;
}

Bucket bucket_of(std::vector<float>& values, uint64_t step, uint32_t index) {
  Bucket bucket;
  bucket.buffer = values.data();
  bucket.step = step;
  bucket.index = index;
  return bucket;
}

std::vector<std::vector<float>> residuals(const Session& session) {
  std::vector<std::vector<float>> all;
  for (const auto& e : session.active().store.entries())
    all.emplace_back(e.values.begin(), e.values.end());
  return all;
}

using Case = std::tuple<const char*, StrategyKind, uint32_t, bool>;
class Windows : public testing::TestWithParam<Case> {};

/// The oracle's bits are those of one exchange at a time (oracle_test): here those of every window.
TEST_P(Windows, BitsMatchSerialExchangeForAnyDelayOfRanks) {
  const char* const spec = std::get<0>(GetParam());
  const StrategyKind strategy = std::get<1>(GetParam());
  const uint32_t window = std::get<2>(GetParam());
  const bool messages = std::get<3>(GetParam());
  const uint32_t world = 3;
  const auto [model, buckets] = mixed();
  Ranks expected({.spec = spec, .world = world, .parameters = model, .strategy = strategy});
  LoopbackHub hub(world, kTimeout, {kAllSums, false});
  Mailboxes mailboxes(world);
  constexpr uint64_t kSteps = 5;
  std::vector<Layout> layouts;
  for (const auto& order : buckets) layouts.push_back(back_to_back(model, order));
  std::vector<std::vector<std::vector<std::vector<float>>>> wanted(kSteps);
  for (uint64_t step = 0; step < kSteps; ++step) {
    if (step == 2) {
      ASSERT_TRUE(expected.session(1).flush(2));
    }
    for (size_t b = 0; b < layouts.size(); ++b) {
      wanted[step].push_back(gradients(world, layouts[b].elements, 10 * step + b));
      for (const auto& done : expected.exchange(layouts[b], wanted[step].back(), step))
        ASSERT_TRUE(done) << done.error().message;
    }
  }
  std::vector<Observed::Started> started(world);
  expected.on_all([&, &model = model](uint32_t r) {
    Observed engine(messages ? mailboxes.engine(r) : hub.engine(r), r + 1);
    auto session = *Session::create(spec, model, options_of(engine, strategy, window));
    session::Window flights(*session, engine, kTimeout);
    for (uint64_t step = 0; step < kSteps; ++step) {
      if (step == 2 && r == 1) {
        ASSERT_TRUE(session->flush(2));
      }
      std::vector<std::vector<float>> mine;
      for (size_t b = 0; b < layouts.size(); ++b)
        mine.push_back(gradients(world, layouts[b].elements, 10 * step + b)[r]);
      for (uint32_t b = 0; b < layouts.size(); ++b) {
        const auto begun = flights.submit(bucket_of(mine[b], step, b), layouts[b]);
        ASSERT_TRUE(begun) << begun.error().message;
        EXPECT_EQ(session->in_flight(), b + 1 - ended_after(layouts, b, window));
      }
      const auto done = flights.finish();
      ASSERT_TRUE(done) << done.error().message;
      EXPECT_EQ(session->in_flight(), 0U);
      for (size_t b = 0; b < layouts.size(); ++b) ASSERT_EQ(mine[b], wanted[step][b][r]) << step;
    }
    EXPECT_EQ(residuals(*session), residuals(expected.session(r)));
    started[r] = engine.started();
  });
  EXPECT_EQ(started[1], started[0]);
  EXPECT_EQ(started[2], started[0]);
  // The rule, written a second time: first batches in order; after each, the rest of the oldest
  // ones until one more fits.
  std::map<uint32_t, uint32_t> batches;
  for (const auto& [exchange, batch] : started[0]) ++batches[exchange];
  Observed::Started rule;
  const auto rest = [&](uint32_t i) {
    for (uint32_t k = 1; k < batches[i]; ++k) rule.emplace_back(i, k);
  };
  const auto per_step = static_cast<uint32_t>(buckets.size());
  for (uint32_t first = 0; first < kSteps * per_step; first += per_step) {
    uint32_t oldest = 0;
    for (uint32_t b = 0; b < per_step; ++b) {
      rule.emplace_back(first + b, 0);
      while (oldest < ended_after(layouts, b, window)) rest(first + oldest++);
    }
    while (oldest < per_step) rest(first + oldest++);
  }
  EXPECT_EQ(started[0], rule);
}

INSTANTIATE_TEST_SUITE_P(
    All, Windows,
    testing::Values(Case{"3lc", StrategyKind::two_shot, 1, false},
                    Case{"3lc", StrategyKind::two_shot, 2, false},
                    Case{"3lc", StrategyKind::two_shot, 3, true},
                    Case{"3lc", StrategyKind::gather_all, 2, true},
                    Case{"topk:ratio=0.1", StrategyKind::gather_all, 2, false},
                    Case{"sidco:ratio=0.01", StrategyKind::two_shot, 2, false},
                    Case{"int8:round=stochastic+ef", StrategyKind::two_shot, 8, true},
                    Case{"powersgd:rank=2", StrategyKind::native_sum, 2, false},
                    Case{"fp16+ef", StrategyKind::native_sum, 3, true},
                    Case{"none", StrategyKind::native_sum, 2, false}));

/// Without the long one, which takes a minute under sanitizers.
const std::vector<Parameter> kShortModel(kModel.begin(), kModel.end() - 1);
const std::vector<std::vector<uint32_t>> kShortBuckets{{5, 4}, {3}, {2}, {0, 1}};

/// For each parameter: a rank's own residual and, where it owns a range, world times the owner's.
std::vector<std::vector<double>> memory_of(const Session& session, uint32_t world) {
  std::vector<std::vector<double>> all;
  for (const Parameter& p : kShortModel) all.emplace_back(p.count(), 0.0);
  for (const auto& e : session.active().store.entries()) {
    for (size_t p = 0; p < kShortModel.size(); ++p) {
      const std::string owned = "owner_residual/" + kShortModel[p].name + "@";
      const bool owner = e.name.compare(0, owned.size(), owned) == 0;
      if (!owner && e.name != "residual/" + kShortModel[p].name) continue;
      const size_t offset = owner ? std::stoul(e.name.substr(owned.size())) : 0;
      for (size_t k = 0; k < e.values.size(); ++k)
        all[p][offset + k] += (owner ? world : 1) * double{e.values[k]};
    }
  }
  return all;
}

/// Three steps, with a failure at rank 1's call `at`. Gives the calls of that rank's engine.
/// `batches`: of each exchange, as a run without a failure has them.
int64_t fail_at(const char* spec, StrategyKind strategy, int64_t at,
                std::map<uint32_t, uint32_t>* batches) {
  const uint32_t world = 3;
  LoopbackHub hub(world, kTimeout, {kAllSums, false});
  int64_t calls = 0;
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      std::deque<std::vector<float>> mine;  // outlives the engine, which may still use it
      Observed engine(hub.engine(r), r, r == 1 ? at : -1, &hub);
      auto session = *Session::create(spec, kShortModel, options_of(engine, strategy, 3));
      session::Window flights(*session, engine, kTimeout);
      bool failed = false;
      for (uint64_t step = 0; step < 3; ++step) {
        const auto before = memory_of(*session, world);
        const size_t first = mine.size();
        std::vector<Layout> layouts;
        for (uint32_t b = 0; b < kShortBuckets.size(); ++b) {
          layouts.push_back(back_to_back(kShortModel, kShortBuckets[b]));
          mine.push_back(gradients(world, layouts[b].elements, 10 * step + b)[r]);
        }
        const std::vector<std::vector<float>> given(mine.begin() + static_cast<long>(first),
                                                    mine.end());
        for (uint32_t b = 0; b < kShortBuckets.size(); ++b) {
          const auto done = flights.submit(bucket_of(mine[first + b], step, b), layouts[b]);
          failed = failed || !done;
        }
        failed = !flights.finish() || failed;
        EXPECT_EQ(session->in_flight(), 0U);
        EXPECT_EQ(flights.left_behind(), failed);
        if (!failed) continue;
        const auto after = memory_of(*session, world);
        for (uint32_t b = 0; b < kShortBuckets.size(); ++b) {
          const auto number = static_cast<uint32_t>(step * kShortBuckets.size() + b);
          if (engine.arrived({number, (*batches)[number] - 1})) continue;  // it has ended
          for (size_t i = 0; i < layouts[b].parameters.size(); ++i) {
            const uint32_t p = layouts[b].parameters[i];
            if (kShortModel[p].count() <= 16) continue;
            for (uint64_t k = 0; k < kShortModel[p].count(); ++k) {
              ASSERT_NEAR(after[p][k], before[p][k] + given[b][layouts[b].offsets[i] + k], 1e-5)
                  << spec << " call " << at << " rank " << r << " " << kShortModel[p].name << k;
            }
          }
        }
      }
      EXPECT_EQ(failed, at >= 0);
      if (r != 1) return;
      calls = engine.calls();
      if (at < 0) {
        for (const auto& [exchange, batch] : engine.started()) ++(*batches)[exchange];
      }
    });
  }
  threads.clear();
  return calls;
}

TEST(Window, EngineFailureAtAnyCallLosesNothing) {
  for (const auto& [spec, strategy] : std::vector<std::pair<const char*, StrategyKind>>{
           {"3lc", StrategyKind::two_shot}, {"powersgd:rank=2", StrategyKind::native_sum}}) {
    std::map<uint32_t, uint32_t> batches;
    const int64_t calls = fail_at(spec, strategy, -1, &batches);
    ASSERT_GT(calls, 12);
    for (int64_t at = 0; at < calls && !testing::Test::HasFailure(); at += kFailureStride)
      fail_at(spec, strategy, at, &batches);
  }
}

TEST(Window, FailureOfPeerInOneExchangeStopsNoOther) {
  const uint32_t world = 3;
  LoopbackHub hub(world, kTimeout, {kAllSums, false});
  std::vector<std::jthread> threads;
  for (uint32_t r = 0; r < world; ++r) {
    threads.emplace_back([&, r] {
      Observed engine(hub.engine(r), r + 5);
      auto session = *Session::create("3lc", kModel, options_of(engine, StrategyKind::two_shot, 3));
      session::Window flights(*session, engine, kTimeout);
      for (uint64_t step = 0; step < 3; ++step) {
        std::vector<std::vector<float>> mine;
        for (uint32_t b = 0; b < kBuckets.size(); ++b)
          mine.push_back(gradients(world, back_to_back(kModel, kBuckets[b]).elements, step + b)[r]);
        const auto given = mine;
        for (uint32_t b = 0; b < kBuckets.size(); ++b) {
          const Layout layout = back_to_back(kModel, kBuckets[b]);
          const bool fails = step == 1 && r == 2 && b == 1;
          const Error leak{Errc::internal, "a leak", {}};
          ASSERT_TRUE(fails ? flights.submit({.step = step, .index = b}, layout, 0, &leak)
                            : flights.submit(bucket_of(mine[b], step, b), layout));
        }
        const auto done = flights.finish();
        EXPECT_EQ(done.ok(), step != 1);
        if (!done) {
          EXPECT_EQ(done.error().message, "rank 2 failed in bucket 1 (internal): a leak");
        }
        EXPECT_NE(mine[0], given[0]);
        EXPECT_NE(mine[3], given[3]);
        EXPECT_TRUE(flights.finish());  // said once
      }
      EXPECT_FALSE(flights.left_behind());
    });
  }
}

TEST(Window, BucketsThatDoNotFitAreRefused) {
  Options o;
  o.small_elements = 16;
  o.world = 2;
  o.window = 3;
  o.strategy = StrategyKind::gather_all;
  auto session = *Session::create("topk:ratio=0.1", kModel, o);
  std::vector<Layout> layouts;
  std::vector<std::vector<float>> values;
  for (const auto& order : kBuckets) {
    layouts.push_back(back_to_back(kModel, order));
    values.emplace_back(layouts.back().elements, 1.0F);
  }
  const auto begin = [&](uint32_t b, uint64_t step) {
    return session->begin(bucket_of(values[b], step, b), layouts[b]);
  };
  const auto refused = [&](uint32_t b, uint64_t step) {
    const auto begun = begin(b, step);
    return begun ? std::string("begun") : begun.error().message;
  };
  ASSERT_TRUE(begin(kLong, 7));
  EXPECT_EQ(refused(kLong, 7), "a parameter of this bucket is already in flight");
  EXPECT_EQ(refused(1, 8), "exchanges of step 7 are running");
  for (const uint32_t b : {0U, 1U, 3U, 4U}) ASSERT_TRUE(begin(b, 7));
  EXPECT_EQ(session->in_flight(), 5U);
  session->abort();
  EXPECT_EQ(session->in_flight(), 0U);
  for (const uint32_t window : {0U, 9U}) {
    o.window = window;
    const auto none = Session::create("3lc", kModel, o);
    ASSERT_FALSE(none);
    EXPECT_EQ(none.error().code, Errc::value_out_of_range);
  }
}

/// All exchanges that may be in flight report that this rank cannot bring its bucket.
TEST(Window, EveryShortExchangeInFlightMayReportFailure) {
  std::vector<Parameter> eight;
  for (int i = 0; i < 8; ++i) eight.push_back({"p" + std::to_string(i), 100, 1});
  Options o;
  o.world = 2;
  o.window = 2;
  auto session = *Session::create("topk:ratio=0.1", eight, o);
  std::vector<float> values(100, 1.0F);
  std::set<collective::Exchange*> exchanges;
  for (uint32_t p = 0; p < 8; ++p) {
    Layout layout = back_to_back(eight, {p});
    layout.offsets[0] = 1;  // outside of the buffer
    const auto begun = session->begin(bucket_of(values, 0, p), layout);
    ASSERT_TRUE(begun) << begun.error().message;
    exchanges.insert(*begun);
  }
  EXPECT_EQ(exchanges.size(), 8U);
}

/// The session itself enforces it, however it is driven: `begins`, s or L each, and which it
/// refuses.
TEST(Window, LongExchangesFillWindowAndShortOnesTheRest) {
  struct Begins {
    uint32_t window;
    const char *begins, *refused;
  };
  for (const auto& [window, begins, refused] : std::initializer_list<Begins>{
           {1, "sss", ".xx"},
           {1, "LsL", ".xx"},
           {2, "sLLLsssssss", "...x.....xx"},
           {2, "LssLLsL", "....x.x"},
           {2, "sssssssLsL", "........xx"},
           {5, "ssssssssss", "........xx"},
           {3, "LLsLLs", "....x."},
           {8, "LLLLLLLLsL", "........xx"},
       }) {
    std::vector<Parameter> model;
    for (const char* size = begins; *size != 0; ++size)
      model.push_back({"p" + std::to_string(size - begins), *size == 'L' ? kShort + 1 : kShort, 1});
    Options o;
    o.world = 2;
    o.window = window;
    o.strategy = StrategyKind::gather_all;
    auto session = *Session::create("topk:ratio=0.1", model, o);
    std::vector<float> values(kShort + 1, 1.0F);
    std::string seen;
    for (uint32_t p = 0; p < model.size(); ++p) {
      const uint64_t elements = model[p].count();
      const bool has_place = session->has_place(elements);
      const auto begun = session->begin(bucket_of(values, 0, p), back_to_back(model, {p}));
      EXPECT_EQ(begun.ok(), has_place);
      seen += begun ? '.' : 'x';
      if (begun) continue;
      EXPECT_EQ(begun.error().code, Errc::exchange_order);
      const std::string text =
          "the window has no capacity for another one of " + std::to_string(elements);
      EXPECT_NE(begun.error().message.find(text), std::string::npos) << begun.error().message;
    }
    EXPECT_EQ(seen, refused) << window << " " << begins;
  }
}

/// A layout whose exchange is in flight is not freed.
TEST(Window, ReleaseLeavesExchangesInFlight) {
  Options o;
  o.world = 2;
  o.window = 2;
  o.small_elements = 16;
  auto session = *Session::create("3lc", kModel, o);
  const Layout layout = back_to_back(kModel, kBuckets[0]);
  std::vector<float> values(layout.elements, 1.0F);
  auto exchange = session->begin(bucket_of(values, 0, 0), layout);
  ASSERT_TRUE(exchange);
  session->release(layout, DType::f32);
  EXPECT_EQ(session->stats().layouts, 1U);
  session->abort();
  session->release(layout, DType::f32);
  EXPECT_EQ(session->stats().layouts, 0U);
}

TEST(Cut, BucketsAreCutBetweenParameters) {
  const Layout whole = back_to_back(kModel, {0, 1, 2, 3, 4, 5});  // 3000 9 3000 2800 1 1155
  const auto sizes = [&](uint64_t bytes) {
    std::vector<uint64_t> all;
    uint64_t first = 0;
    for (size_t begin = 0; begin < whole.parameters.size();) {
      const size_t end = collective::end_of_part(whole, begin, bytes);
      first = end < whole.parameters.size() ? whole.offsets[end] : whole.elements;
      all.push_back(first - whole.offsets[begin]);
      begin = end;
    }
    EXPECT_EQ(first, whole.elements);
    return all;
  };
  EXPECT_EQ(sizes(0), (std::vector<uint64_t>{9965}));
  EXPECT_EQ(sizes(4 * 9965), (std::vector<uint64_t>{9965}));
  EXPECT_EQ(sizes(4 * 9964), (std::vector<uint64_t>{8810, 1155}));
  EXPECT_EQ(sizes(4 * 3009), (std::vector<uint64_t>{3009, 3000, 2801, 1155}));
  EXPECT_EQ(sizes(4 * 3008), (std::vector<uint64_t>{3000, 9, 3000, 2801, 1155}));
  EXPECT_EQ(sizes(1), (std::vector<uint64_t>{3000, 9, 3000, 2800, 1, 1155}));
  EXPECT_EQ(collective::end_of_part(Layout{}, 0, 100), 0U);
}

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// laconic::Session with SessionOptions::inside: order, failures, settings, saved states. What its
// means are: nodes_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>

#include "laconic/loopback.h"
#include "laconic/session.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

using PublicSession = laconic::Session;
using Made = Result<std::unique_ptr<PublicSession>>;
using Values = std::vector<float>;

/// Nodes of `ranks` threads. Rank r of all is at place r % ranks of node r / ranks.
struct Grid {
  explicit Grid(uint32_t n = 2, uint32_t g = 2) : nodes(n), ranks(g) {
    for (uint32_t s = 0; s < g; ++s) across.push_back(std::make_unique<LoopbackHub>(n));
    for (uint32_t i = 0; i < n; ++i) inside.push_back(std::make_unique<LoopbackHub>(g));
  }
  void on_all(const std::function<void(uint32_t)>& body) const { test::on_all(world(), body); }
  [[nodiscard]] uint32_t world() const { return nodes * ranks; }
  [[nodiscard]] uint32_t node(uint32_t r) const { return r / ranks; }
  [[nodiscard]] uint32_t place(uint32_t r) const { return r % ranks; }
  Engine& across_of(uint32_t r) { return across[place(r)]->engine(node(r)); }
  Engine& inside_of(uint32_t r) { return inside[node(r)]->engine(place(r)); }
  SessionOptions options(uint32_t r) {
    SessionOptions options;
    options.inside = &inside_of(r);
    options.seed = 42;
    options.small_elements = 16;
    return options;
  }
  uint32_t nodes, ranks;
  std::vector<std::unique_ptr<LoopbackHub>> across, inside;
};

const std::vector<laconic::Parameter> kModel{{"w", 64, 80}, {"b", 17, 1}, {"v", 40, 30}};
constexpr uint64_t kElements = 64 * 80 + 17 + 40 * 30;

Values gradient_of(uint32_t world, uint32_t rank, uint64_t step, uint64_t n = kElements) {
  return gradients(world, n, step + 1)[rank];
}

/// An engine that fails at a batch; `at` below 0: it does not.
class Failing final : public Engine {
 public:
  Failing(Engine& engine, std::function<void()> fails) : engine_(&engine), fails_(fails) {}
  ~Failing() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_->rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_->world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_->caps(); }
  Result<void> run(std::span<const Step> batch) override {
    if (at >= 0 && at-- == 0) fails_();  // the others' batches fail, too
    return engine_->run(batch);
  }
  std::atomic<int> at = -1;

 private:
  Engine* engine_;
  std::function<void()> fails_;
};

void expect_one_message(const std::vector<Result<void>>& results, const std::string& text) {
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, results[0].error().message);
    EXPECT_NE(result.error().message.find(text), std::string::npos) << result.error().message;
  }
}

// ---- order ----

/// Long pieces and short ones; and long ones that are short for one of the shards, whose exchange
/// has not ended where the node needs its mean.
TEST(Inside, BucketsPartsAndWindowChangeNoValue) {
  const std::vector<laconic::Parameter> model{{"a", 600, 500}, {"b", 60'000}, {"c", 60'000},
                                              {"d", 60'000},   {"e", 5},      {"f", 400, 400},
                                              {"g", 60'000},   {"h", 60'000}, {"i", 60'000}};
  const std::vector<std::vector<uint32_t>> buckets_of_step{{6, 7, 8}, {5}, {4}, {1, 2, 3}, {0}};
  uint64_t elements = 0;
  for (const auto& p : model) elements += p.count();
  const auto means = [&](uint32_t window, uint64_t part, bool buckets) {
    Grid grid;
    std::vector<Values> found(4);
    grid.on_all([&](uint32_t r) {
      SessionOptions options = grid.options(r);
      options.window = window;
      options.part = part;
      options.small_elements = 100'000;  // go whole to one shard
      const Made session = PublicSession::create("3lc", model, grid.across_of(r), options);
      ASSERT_TRUE(session) << session.error().message;
      for (uint64_t step = 0; step < 2; ++step) {
        Values& mine = found[r] = gradient_of(4, r, step, elements);
        if (!buckets) {
          ASSERT_TRUE((*session)->average(step, mine));
          continue;
        }
        uint64_t end = elements;
        for (const auto& bucket : buckets_of_step) {
          uint64_t count = 0;
          for (const uint32_t p : bucket) count += model[p].count();
          end -= count;
          ASSERT_TRUE((*session)->submit(step, {std::span(mine).subspan(end, count), bucket}));
        }
        const auto done = (*session)->wait();
        ASSERT_TRUE(done) << done.error().message;
      }
    });
    for (const Values& other : found) EXPECT_TRUE(same_bits(other, found[0]));
    return found[0];
  };
  const Values expected = means(1, 0, false);
  EXPECT_TRUE(same_bits(expected, means(2, uint64_t{1} << 19U, false)));
  EXPECT_TRUE(same_bits(expected, means(2, uint64_t{1} << 19U, true)));
  EXPECT_TRUE(same_bits(expected, means(3, 0, true)));
}

TEST(Inside, OtherBucketOnOneRankIsErrorOnAll) {
  Grid grid;
  std::vector<Result<void>> results(4);
  const std::vector<laconic::Parameter> model{{"a", 4000, 1}, {"b", 4000, 1}};
  grid.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", model, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(session);
    Values mine(4000);
    const uint32_t p = r == 3 ? 1 : 0;
    (void)(*session)->submit(0, {mine, {&p, 1}});
    results[r] = (*session)->wait();
    const auto twice = (*session)->submit(1, {mine, std::vector<uint32_t>{0, 0}});
    EXPECT_FALSE(twice);
  });
  expect_one_message(results, "the ranks of a node brought different buckets");
}

TEST(Inside, ParameterThatComesTwiceIsRefused) {
  Grid grid;
  grid.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", kModel, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(session);
    Values mine = gradient_of(4, r, 0);
    const std::vector<uint32_t> b{1};
    const laconic::Bucket bucket{std::span(mine).first(17), b};
    ASSERT_TRUE((*session)->submit(0, bucket));
    EXPECT_EQ((*session)->submit(0, bucket).error().code, Errc::exchange_order);
    EXPECT_TRUE((*session)->wait());
    ASSERT_TRUE((*session)->submit(1, bucket));
    EXPECT_TRUE((*session)->wait());
  });
}

// ---- failures ----

/// The residuals hold what its shard's ranks did not deliver, and only they do.
TEST(Inside, WrongLengthOnOneRankIsOneMessageAndLosesNothing) {
  Grid grid;
  std::vector<Result<void>> results(4);
  std::vector<Values> sums(4, Values(kElements)), given(4);
  grid.on_all([&](uint32_t r) {
    const Made session =
        PublicSession::create("topk:ratio=0.01", kModel, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(session);
    Values mine = gradient_of(4, r, 0);
    results[r] = (*session)->average(0, std::span(mine).first(r == 1 ? 5 : kElements));
    given[r] = mine;
    if (r == 2) {
      ASSERT_TRUE((*session)->flush(1));
    }
    for (uint64_t step = 1; step < 3; ++step) {
      mine = gradient_of(4, r, step);
      const auto done = (*session)->average(step, mine);
      ASSERT_TRUE(done) << done.error().message;
      for (uint64_t i = 0; i < kElements; ++i) sums[r][i] += mine[i];
    }
  });
  expect_one_message(results, "local rank 1: rank 0");
  // Place 1 has the second half of w, about: its elements of step 0 came later, without rank 1's.
  Values expected(kElements);
  for (uint64_t step = 0; step < 3; ++step) {
    for (uint32_t r = step == 0 ? 1 : 0; r < 4; ++r) {
      if (step == 0 && r == 1) continue;
      const Values all = gradient_of(4, r, step);
      for (uint64_t i = 0; i < kElements; ++i) expected[i] += all[i] / 4;
    }
  }
  const Values rank0 = gradient_of(4, 0, 0);
  for (uint64_t i = 2600; i < 5120; ++i)
    ASSERT_NEAR(sums[3][i], expected[i] + rank0[i] / 4, 1e-5) << i;
  for (const uint32_t r : {0U, 2U, 3U}) {
    const std::span values(given[r]);
    EXPECT_EQ(std::ranges::count(values.subspan(2600, 2520), 0.0F), 2520) << r;
    EXPECT_LT(std::ranges::count(values.first(2500), 0.0F), 2500) << r;
  }
}

/// In each batch of a step, one after the other.
TEST(Inside, EngineAcrossThatFailsIsOneMessageOnNode) {
  for (int batch = 0;; ++batch) {
    Grid grid;
    std::vector<Result<void>> results(4), later(4);
    grid.on_all([&](uint32_t r) {
      Failing across(grid.across_of(r),
                     [&] { grid.across[grid.place(r)]->break_off(grid.node(r)); });
      const Made session = PublicSession::create("3lc", kModel, across, grid.options(r));
      ASSERT_TRUE(session);
      if (r == 3) across.at = batch;
      Values mine = gradient_of(4, r, 0);
      results[r] = (*session)->average(0, mine);
      mine = gradient_of(4, r, 1);
      later[r] = (*session)->average(1, mine);
    });
    if (results[0]) {
      EXPECT_GT(batch, 1);
      break;
    }
    for (uint32_t r = 0; r < 4; ++r) {
      SCOPED_TRACE("batch " + std::to_string(batch) + ", rank " + std::to_string(r));
      ASSERT_FALSE(results[r]);
      ASSERT_FALSE(later[r]);
      EXPECT_EQ(results[r].error().message, results[r / 2 * 2].error().message);
      EXPECT_NE(results[r].error().message.find("local rank 1: "), std::string::npos);
    }
  }
}

/// The other node hears it from its own ranks' exchanges, at the latest in the next step.
TEST(Inside, EngineOfNodeThatFailsIsErrorOnAll) {
  for (int batch = 0; batch < 3; ++batch) {
    Grid grid;
    std::vector<Result<void>> results(4), later(4);
    grid.on_all([&](uint32_t r) {
      Failing inside(grid.inside_of(r),
                     [&] { grid.inside[grid.node(r)]->break_off(grid.place(r)); });
      SessionOptions options = grid.options(r);
      options.inside = &inside;
      const Made session = PublicSession::create("3lc", kModel, grid.across_of(r), options);
      ASSERT_TRUE(session) << session.error().message;
      if (r == 1) inside.at = batch;
      Values mine = gradient_of(4, r, 0);
      results[r] = (*session)->average(0, mine);
      mine = gradient_of(4, r, 1);
      later[r] = (*session)->average(1, mine);
    });
    for (uint32_t r = 0; r < 4; ++r) {
      SCOPED_TRACE("batch " + std::to_string(batch) + ", rank " + std::to_string(r));
      EXPECT_EQ(results[r].ok(), r >= 2 && batch > 0);
      ASSERT_FALSE(later[r]);
      EXPECT_EQ(later[r].error().message, later[r / 2 * 2].error().message);
    }
  }
}

TEST(Inside, RankThatCannotCreateSessionInformsAll) {
  const auto fail = [](const std::function<void(SessionOptions&, std::string&)>& spoil) {
    Grid grid;
    std::vector<Result<void>> results(4);
    grid.on_all([&](uint32_t r) {
      SessionOptions options = grid.options(r);
      std::string spec = "3lc";
      if (r == 2) spoil(options, spec);
      const Made session = PublicSession::create(spec, kModel, grid.across_of(r), options);
      results[r] = session ? Result<void>() : session.error();
    });
    return results;
  };
  expect_one_message(fail([](SessionOptions&, std::string& spec) { spec = "zip"; }), "zip");
  expect_one_message(fail([](SessionOptions& o, std::string&) { o.seed = 1; }), "the seed");
  expect_one_message(fail([](SessionOptions& o, std::string&) { o.window = 99; }), "window");
}

/// Across nodes they agree.
TEST(Inside, RanksOfNodeThatDisagreeCreateNoSession) {
  Grid grid;
  std::vector<Result<void>> results(4);
  grid.on_all([&](uint32_t r) {
    SessionOptions options = grid.options(r);
    options.seed = grid.place(r);
    const Made session = PublicSession::create("3lc", kModel, grid.across_of(r), options);
    results[r] = session ? Result<void>() : session.error();
  });
  expect_one_message(results, "the seed");
}

TEST(Inside, EnginesOfOtherPlacesDisagree) {
  Grid grid;
  std::vector<Result<void>> results(4);
  grid.on_all([&](uint32_t r) {
    const uint32_t crossed = r < 2 ? r : 5 - r;  // of node 1, the engine across of the other place
    const Made session =
        PublicSession::create("3lc", kModel, grid.across_of(crossed), grid.options(r));
    results[r] = session ? Result<void>() : session.error();
  });
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_NE(result.error().message.find("the place in their nodes"), std::string::npos)
        << result.error().message;
  }
}

// ---- settings ----

TEST(Inside, SettingsChangeOnAllRanksOrNone) {
  Grid grid;
  std::vector<Values> found(4);
  std::vector<Result<void>> results(4);
  grid.on_all([&](uint32_t r) {
    const Made made =
        PublicSession::create("topk:ratio=0.05", kModel, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(made);
    PublicSession& session = **made;
    const auto step = [&](uint64_t number) {
      found[r] = gradient_of(4, r, number);
      const auto done = session.average(number, found[r]);
      ASSERT_TRUE(done) << done.error().message;
    };
    step(0);
    results[r] = session.set({.spec = r == 3 ? "topk:ratio=0.1" : "topk:ratio=0.2"});
    step(1);
    // Keeps no residuals: they go out first, of all shards in the same steps.
    ASSERT_TRUE(session.set({.spec = "topk:ratio=0.1+noef"}));
    for (uint64_t number = 2; number < 16; ++number) step(number);
    EXPECT_NE(session.explain().find("\"spec\": \"topk:ratio=0.1+noef\""), std::string::npos)
        << session.explain();
  });
  for (const auto& result : results) {
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::ranks_disagree) << result.error().message;
  }
  for (const Values& other : found) EXPECT_TRUE(same_bits(other, found[0]));
}

/// The value after a key in a line of JSON.
std::string text_after(const std::string& json, const std::string& key) {
  const size_t at = json.find('"' + key + "\": ");
  return at == std::string::npos ? "" : json.substr(at, json.find_first_of(",}", at) - at);
}

/// All decide by the figures of the shard whose network took longest.
TEST(Inside, PoliciesDecideBySameFiguresOnEveryRank) {
  Grid grid;
  std::vector<std::string> found(4);
  grid.on_all([&](uint32_t r) {
    SessionOptions options = grid.options(r);
    options.control = "dc2";
    const Made session =
        PublicSession::create("topk:ratio=0.05", kModel, grid.across_of(r), options);
    ASSERT_TRUE(session) << session.error().message;
    for (uint64_t step = 0; step < 6; ++step) {
      Values mine = gradient_of(4, r, step);
      ASSERT_TRUE((*session)->average(step, mine));
    }
    found[r] = text_after((*session)->explain(), "network_ms");
  });
  EXPECT_NE(found[0], "");
  EXPECT_NE(found[0], "\"network_ms\": 0");
  EXPECT_NE(found[0], "\"network_ms\": null");
  for (const std::string& other : found) EXPECT_EQ(other, found[0]);
}

// ---- states ----

TEST(Inside, SavedStateContinuesBitForBit) {
  std::vector<std::vector<uint8_t>> states(4);
  std::vector<Values> expected(4);
  const auto run = [&](uint32_t r, PublicSession& session, uint64_t from, uint64_t to) {
    Values mine;
    for (uint64_t step = from; step < to; ++step) {
      mine = gradient_of(4, r, step);
      EXPECT_TRUE(session.average(step, mine));
    }
    return mine;
  };
  Grid grid, again;
  grid.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", kModel, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(session);
    (void)run(r, **session, 0, 3);
    if (r == 3) {
      ASSERT_TRUE((*session)->flush(2));  // is part of the state
    }
    states[r] = *(*session)->save();
    expected[r] = run(r, **session, 3, 7);
  });
  again.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", kModel, again.across_of(r), again.options(r));
    ASSERT_TRUE(session);
    EXPECT_EQ((*session)->load(states[r ^ 1U]).error().code, Errc::state_rank);
    const auto loaded = (*session)->load(states[r]);
    ASSERT_TRUE(loaded) << loaded.error().message;
    EXPECT_TRUE(same_bits(run(r, **session, 3, 7), expected[r]));
  });
  Grid other(2, 3);
  other.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", kModel, other.across_of(r), other.options(r));
    ASSERT_TRUE(session);
    EXPECT_EQ((*session)->load(states[r / 3 * 2]).error().code, Errc::state_world);
  });
}

TEST(Inside, OneRankPerNodeIsFlat) {
  Grid grid(2, 1);
  std::vector<Values> found(2);
  for (const bool inside : {false, true}) {
    Grid own(2, 1);
    own.on_all([&](uint32_t r) {
      SessionOptions options = own.options(r);
      if (!inside) options.inside = nullptr;
      const Made session = PublicSession::create("3lc", kModel, own.across_of(r), options);
      ASSERT_TRUE(session);
      Values mine = gradient_of(2, r, 0);
      ASSERT_TRUE((*session)->average(0, mine));
      if (r == 0) found[inside ? 1 : 0] = mine;
      EXPECT_EQ((*session)->stats().find("node_bytes"), std::string::npos);
    });
  }
  EXPECT_TRUE(same_bits(found[0], found[1]));
}

TEST(Inside, OneNodeHasMeanOfItsRanks) {
  Grid grid(1, 3);
  grid.on_all([&](uint32_t r) {
    const Made session = PublicSession::create("3lc", kModel, grid.across_of(r), grid.options(r));
    ASSERT_TRUE(session) << session.error().message;
    Values mine = gradient_of(3, r, 0);
    ASSERT_TRUE((*session)->average(0, mine));
    for (uint64_t i = 0; i < kElements; ++i) {
      float sum = gradient_of(3, 0, 0)[i] + gradient_of(3, 1, 0)[i];
      sum += gradient_of(3, 2, 0)[i];
      ASSERT_EQ(mine[i], sum * (1.0F / 3)) << i;
      if (i == 40) break;  // the rest is as good
    }
    EXPECT_NE((*session)->stats().find("\"node_bytes\""), std::string::npos);
    const std::string nodes = "\"count\": 1, \"ranks\": 3, \"local_rank\": " + std::to_string(r);
    EXPECT_NE((*session)->explain().find(nodes), std::string::npos);
  });
}

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// N ranks as threads: every rank has its own session and buffer and drives its exchange over the
// loopback hub.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "laconic/laconic.h"
#include "laconic/loopback.h"
#include "laconic/rule.h"
#include "session/session.h"
#include "support/driver.h"
#include "support/on_all.h"

namespace laconic::test {

using collective::Bucket;
using collective::Layout;
using collective::Options;
using collective::Parameter;
using collective::StrategyKind;
using session::Session;

/// Parameters back to back in the order given, as DDP lays out a bucket.
inline Layout back_to_back(const std::vector<Parameter>& parameters,
                           const std::vector<uint32_t>& order) {
  Layout layout;
  for (const uint32_t p : order) {
    layout.parameters.push_back(p);
    layout.offsets.push_back(layout.elements);
    layout.elements += parameters[p].count();
  }
  return layout;
}

struct Setup {
  std::string spec = "none";
  uint32_t world = 2;
  std::vector<Parameter> parameters;
  StrategyKind strategy = StrategyKind::automatic;
  uint64_t small_elements = 16;
  uint32_t threads = 1;
  uint32_t sums = kAllSums;
  bool short_sends = false;
  std::vector<Rule> rules{};
  std::string control{};
  std::function<double(uint32_t rank)> now{};
  bool reports = false;
  std::string record{};
  std::function<laconic_codec_table(uint32_t rank)> codec{};  ///< a registered one
  std::string down{};
  /// Owners have turns. For the oracle: what comes down in place of the mean of an owner's range.
  std::function<void(const std::string& parameter, uint64_t offset, std::vector<float>& values)>
      turn{};
  /// The ranks exchange one of several shards of the model.
  uint32_t node_shards = 1;
  uint32_t node_shard = 0;
};

class Ranks {
 public:
  explicit Ranks(Setup setup)
      : setup_(std::move(setup)), hub_(setup_.world, std::chrono::seconds(60), caps_of(setup_)) {
    for (uint32_t r = 0; r < setup_.world; ++r) {
      Options o;
      o.rank = r;
      o.world = setup_.world;
      o.seed = 42;
      o.small_elements = setup_.small_elements;
      o.strategy = setup_.strategy;
      o.threads = setup_.threads;
      o.caps.sums = setup_.sums;
      o.caps.short_sends = setup_.short_sends;
      o.reports = setup_.reports;
      o.owner_turns = static_cast<bool>(setup_.turn);
      o.node_shards = setup_.node_shards;
      o.node_shard = setup_.node_shard;
      o.caps.aggregates = hub_.engine(r).caps().aggregates;
      if (setup_.codec) o.codecs.push_back(*codecs::Registered::create(setup_.codec(r)));
      if (setup_.now) o.now = [this, r] { return setup_.now(r); };
      auto s = Session::create(setup_.spec, setup_.parameters, o, setup_.rules, setup_.control,
                               setup_.record, setup_.down);
      EXPECT_TRUE(s) << s.error().message;
      sessions_.push_back(s ? *std::move(s) : nullptr);
      if (!s || !o.caps.aggregates) continue;
      EXPECT_TRUE(hub_.engine(r).join(sessions_[r]->model().aggregation_job(), {}));
    }
  }

  [[nodiscard]] uint32_t world() const { return setup_.world; }
  [[nodiscard]] const Setup& setup() const { return setup_; }
  Session& session(uint32_t rank) { return *sessions_[rank]; }
  LoopbackHub& hub() { return hub_; }

  /// Runs body(rank) on every rank in parallel.
  void on_all(const std::function<void(uint32_t)>& body) { test::on_all(world(), body); }

  /// One rank's part of `exchange`, with a test in the middle of it.
  Result<void> drive(uint32_t rank, const Layout& layout, std::vector<float>& buffer, uint64_t step,
                     const Driver& test) {
    Bucket bucket;
    bucket.buffer = buffer.data();
    bucket.step = step;
    return test::drive(session(rank), bucket, layout, hub_.engine(rank), test);
  }

  /// One exchange of the whole layout; `buffers[rank]` takes the mean. Gives every rank's result.
  std::vector<Result<void>> exchange(const Layout& layout, std::vector<std::vector<float>>& buffers,
                                     uint64_t step) {
    std::vector<Result<void>> results(world());
    on_all([&](uint32_t r) {
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.step = step;
      results[r] = session::drive(session(r), bucket, layout, hub_.engine(r));
    });
    return results;
  }

 private:
  static EngineCaps caps_of(const Setup& setup) {
    EngineCaps caps{kAllSums, false};
    caps.aggregates = setup.strategy == StrategyKind::server_sum;
    return caps;
  }

  Setup setup_;
  LoopbackHub hub_;
  std::vector<std::unique_ptr<Session>> sessions_;
};

inline Rule rule(std::string match, std::string spec) {
  Rule made;
  made.match = std::move(match);
  made.spec = std::move(spec);
  return made;
}

/// Drawn once per process: most cases ask for the same, and drawing them took most of their time.
inline const std::vector<float>& normal_numbers(uint64_t n, uint64_t seed) {
  static std::mutex mutex;
  static std::map<std::pair<uint64_t, uint64_t>, std::vector<float>> drawn;
  const std::scoped_lock lock(mutex);
  const auto [at, is_new] = drawn.try_emplace({n, seed}, n);
  if (is_new) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal(0.0F, 0.01F);
    for (float& x : at->second) x = normal(random);
  }
  return at->second;
}

/// Seeded gradients, different on every rank: a common part and noise.
inline std::vector<std::vector<float>> gradients(uint32_t world, uint64_t n, uint64_t seed) {
  const std::vector<float>& common = normal_numbers(n, seed);
  std::vector<std::vector<float>> all;
  for (uint32_t r = 0; r < world; ++r) {
    all.push_back(normal_numbers(n, seed * 1000 + r + 1));
    for (size_t i = 0; i < n; ++i) all.back()[i] += common[i];
  }
  return all;
}

inline bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), 4 * a.size()) == 0);
}

/// Sum over ranks of residuals, of one parameter or of all, in units of the mean: own ones count
/// 1/world, owners' fully.
inline double residual_sum(Ranks& ranks, const std::string& parameter = {}) {
  double sum = 0;
  for (uint32_t r = 0; r < ranks.world(); ++r) {
    for (const auto& e : ranks.session(r).active().store.entries()) {
      const double weight = e.kind == feedback::StateKind::residual         ? 1.0 / ranks.world()
                            : e.kind == feedback::StateKind::owner_residual ? 1.0
                                                                            : 0.0;
      if (weight == 0.0 || e.name.find("/" + parameter) == std::string::npos) continue;
      for (const float x : e.values) sum += weight * static_cast<double>(x);
    }
  }
  return sum;
}

inline std::vector<double> exact_mean(const std::vector<std::vector<float>>& all) {
  std::vector<double> mean(all[0].size(), 0.0);
  for (const auto& g : all) {
    for (size_t i = 0; i < g.size(); ++i)
      mean[i] += static_cast<double>(g[i]) / static_cast<double>(all.size());
  }
  return mean;
}

}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An engine that fails while residuals are sent, by a policy on its way to float32 or a flush: in
// the step before the first part, in each part, and after the last. Every element is counted in
// double outside the sessions: what came in was delivered, or is kept.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "session/saved_state.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{{"a.weight", 24, 20},
                                    {"b.weight", 15, 17},
                                    {"c.weight", 30, 11},
                                    {"d.weight", 20, 14},
                                    {"bias", 9, 1}};
const std::vector<std::vector<uint32_t>> kBuckets{{4, 3}, {2}, {1, 0}};
constexpr uint32_t kNever = ~0U;
constexpr uint32_t kFlushSteps = 4;

struct Case {
  const char* name;
  const char* spec;
  StrategyKind strategy;
  const char* of_a;  ///< the spec of a.weight, which stays compressed; null: the call's, and turns
};

/// A failed engine leaves this in the receive buffers.
void spoil(std::span<Step> batch) {
  for (const Step& step : batch) {
    if (step.kind == StepKind::all_reduce) {
      std::memset(step.recv, 0x5A, step.count * dtype_size(step.dtype));
      continue;
    }
    for (size_t i = 0; i < step.recv_counts.size(); ++i)
      std::memset(step.recv + step.recv_offsets[i], 0x5A, step.recv_counts[i]);
  }
}

/// Three buckets a step, `ahead` of them in flight at a time, in turns.
class Group {
 public:
  /// Under the policy, or without one, where a flush is requested before step `flush_at`.
  Group(const Case& of, uint32_t ahead, uint64_t flush_at = kNever)
      : ahead_(ahead), flush_at_(flush_at), hub_(kWorld, std::chrono::seconds(60)) {
    const std::string law = flush_at == kNever ? "dc2:deadline_ms=20,max=0.011" : "";
    std::vector<Rule> rules;
    if (of.of_a != nullptr) rules = {rule("a.*", of.of_a)};
    for (Rule& r : rules) r.control = law.empty() ? "" : "fixed";
    for (uint32_t r = 0; r < kWorld; ++r) {
      Options o;
      o.rank = r;
      o.world = kWorld;
      o.seed = 42;
      o.small_elements = 16;
      o.strategy = of.strategy;
      o.window = ahead;
      o.caps.sums = kAllSums;
      o.now = [this, r] { return clocks_[r]; };
      auto made = Session::create(of.spec, kModel, o, rules, law);
      EXPECT_TRUE(made) << made.error().message;
      sessions_.push_back(*std::move(made));
    }
    for (const auto& bucket : kBuckets) layouts_.push_back(back_to_back(kModel, bucket));
    for (const Layout& layout : layouts_) {
      in_.emplace_back(layout.elements);
      out_.emplace_back(layout.elements);
      magnitude_.emplace_back(layout.elements);
    }
  }

  /// The batches of the step; the one with the number `failing` fails on every rank.
  uint32_t run(uint64_t step, uint32_t failing = kNever) {
    std::array<Outcome, kWorld> outcomes;
    count_kept_magnitude();
    const auto asked = step == flush_at_ ? sessions_[1]->flush(kFlushSteps) : Result<void>();
    EXPECT_TRUE(asked);
    on_all(kWorld, [&](uint32_t r) { drive(r, step, failing, outcomes[r]); });
    for (size_t b = 0; b < layouts_.size(); ++b) {
      for (uint32_t r = 1; r < kWorld; ++r) {
        EXPECT_EQ(outcomes[r].delivered[b], outcomes[0].delivered[b]);
        if (outcomes[0].delivered[b]) {
          EXPECT_TRUE(same_bits(outcomes[r].buffers[b], outcomes[0].buffers[b]));
        }
      }
      count(b, step, outcomes[0]);
    }
    count_kept_magnitude();
    return outcomes[0].batches;
  }

  /// A gradient takes part in at most 9 + world operations of float32 in a step: into the residual,
  /// out of it (a share, what leaves, what stays, or an encoding), by a rounded 1/world, in the sum
  /// over ranks, in an owner's residual and back. Each is off by at most 2^-24 of its result, which
  /// is no larger than what was there before, came in, was sent and is there afterwards, together.
  void expect_balance(const std::string& what) {
    const double bound = (9 + kWorld) * 0x1p-24;
    const auto kept = residuals(false);
    for (size_t b = 0; b < layouts_.size(); ++b) {
      for (size_t i = 0; i < in_[b].size(); ++i) {
        ASSERT_NEAR(out_[b][i] + kept[b][i], in_[b][i], bound * magnitude_[b][i])
            << what << ": bucket " << b << ", element " << i;
      }
    }
  }

  /// Goes on with what it has saved, and with its account.
  void take_over(const Group& other) {
    for (uint32_t r = 0; r < kWorld; ++r) {
      const auto state = session::save_state(*other.sessions_[r]);
      ASSERT_TRUE(state) << state.error().message;
      ASSERT_TRUE(session::load_state(*sessions_[r], *state));
    }
    in_ = other.in_;
    out_ = other.out_;
    magnitude_ = other.magnitude_;
  }
  Session& session() { return *sessions_[0]; }

 private:
  struct Outcome {
    std::vector<std::vector<float>> buffers;
    std::array<bool, 3> delivered{};
    uint32_t batches = 0;
  };
  struct InFlight {
    collective::Exchange* exchange;
    uint32_t bucket;
    session::Timing timing{};
  };
  using ByBucket = std::vector<std::vector<double>>;

  static uint64_t seed(uint64_t step, size_t bucket) { return 10 * step + bucket + 1; }
  [[nodiscard]] std::vector<std::vector<float>> given(uint64_t step, size_t bucket) const {
    return gradients(kWorld, layouts_[bucket].elements, seed(step, bucket));
  }

  Result<collective::Exchange*> begin(uint32_t r, uint64_t step, uint32_t b, Outcome& outcome) {
    Bucket bucket;
    bucket.buffer = outcome.buffers[b].data();
    bucket.step = step;
    bucket.index = b;
    return sessions_[r]->begin(bucket, layouts_[b]);
  }

  void drive(uint32_t r, uint64_t step, uint32_t failing, Outcome& outcome) {
    Session& session = *sessions_[r];
    clocks_[r] = static_cast<double>(step);
    double clock = clocks_[r] + 0.01;
    for (size_t b = 0; b < layouts_.size(); ++b) outcome.buffers.push_back(given(step, b)[r]);
    std::deque<InFlight> flying;
    std::array<Step, kMaxBatch> steps;
    uint32_t next = 0;
    while (!broken_[r] && (next < layouts_.size() || !flying.empty())) {
      while (next < layouts_.size() && flying.size() < ahead_) {
        auto begun = begin(r, step, next, outcome);
        ASSERT_TRUE(begun) << begun.error().message;
        flying.push_back({*begun, next++});
      }
      InFlight first = flying.front();
      flying.pop_front();
      const auto count = session.next(*first.exchange, steps, first.timing);
      ASSERT_TRUE(count) << count.error().message;
      outcome.delivered[first.bucket] = *count == 0;
      if (*count == 0) continue;
      const std::span<Step> batch(steps.data(), *count);
      if (outcome.batches++ == failing) {
        spoil(batch);
        session.abort(Error{Errc::engine_failed, "on purpose", {}});
        broken_[r] = true;
        break;
      }
      first.timing.issued = clock;
      ASSERT_TRUE(hub_.engine(r).run(batch));
      first.timing.completed = clock += 1e-4 * (r + 1);
      flying.push_back(first);
    }
    for (; next < layouts_.size(); ++next) {
      const auto begun = begin(r, step, next, outcome);
      ASSERT_FALSE(begun);
      ASSERT_EQ(begun.error().code, Errc::engine_failed);
    }
  }

  /// The small parameter, which has no residual, is lost with the bucket that failed.
  void count(size_t b, uint64_t step, const Outcome& outcome) {
    const auto all = given(step, b);
    const auto mean = exact_mean(all);
    const uint64_t raw = b == 0 ? kModel[4].count() : 0;
    for (size_t i = 0; i < mean.size(); ++i) {
      const bool delivered = outcome.delivered[b];
      if (delivered || i >= raw) in_[b][i] += mean[i];
      for (const auto& g : all) magnitude_[b][i] += std::abs(static_cast<double>(g[i])) / kWorld;
      if (!delivered) continue;
      out_[b][i] += static_cast<double>(outcome.buffers[b][i]);
      magnitude_[b][i] += std::abs(static_cast<double>(outcome.buffers[b][i]));
    }
  }
  void count_kept_magnitude() {
    const auto kept = residuals(true);
    for (size_t b = 0; b < kept.size(); ++b) {
      for (size_t i = 0; i < kept[b].size(); ++i) magnitude_[b][i] += kept[b][i];
    }
  }

  /// In units of the mean: the mean of all ranks' residuals, an owner's unchanged.
  [[nodiscard]] ByBucket residuals(bool magnitudes) const {
    std::map<std::string, std::pair<size_t, uint64_t>> place;
    ByBucket sum;
    for (size_t b = 0; b < layouts_.size(); ++b) {
      sum.emplace_back(layouts_[b].elements);
      for (size_t i = 0; i < layouts_[b].parameters.size(); ++i)
        place[kModel[layouts_[b].parameters[i]].name] = {b, layouts_[b].offsets[i]};
    }
    for (const auto& session : sessions_) {
      for (const auto& e : session->active().store.entries()) {
        const bool owned = e.kind == feedback::StateKind::owner_residual;
        if (!owned && e.kind != feedback::StateKind::residual) continue;
        const std::string name = e.name.substr(e.name.find('/') + 1);
        const size_t at = name.find('@');
        const auto [b, offset] = place.at(name.substr(0, at));
        const uint64_t first = at == std::string::npos ? 0 : std::stoul(name.substr(at + 1));
        for (size_t k = 0; k < e.values.size(); ++k) {
          const double x = static_cast<double>(e.values[k]) / (owned ? 1 : kWorld);
          sum[b][offset + first + k] += magnitudes ? std::abs(x) : x;
        }
      }
    }
    return sum;
  }

  uint32_t ahead_;
  uint64_t flush_at_;
  LoopbackHub hub_;
  std::array<double, kWorld> clocks_{};
  std::array<bool, kWorld> broken_{};
  std::vector<std::unique_ptr<Session>> sessions_;
  std::vector<Layout> layouts_;
  ByBucket in_, out_, magnitude_;
};

class Release : public testing::TestWithParam<Case> {
 protected:
  /// In each batch of the steps from the one before `first` to the one after `last`.
  static void lose_in_each(uint32_t ahead, uint64_t flush_at, uint64_t first, uint64_t last,
                           const std::vector<uint32_t>& batches) {
    for (uint64_t step = first - 1; step <= last + 1; ++step) {
      for (uint32_t failing = 0; failing < batches[step]; ++failing) {
        // One batch of each step where several buckets are in flight is enough for these.
        if (kSanitized && (ahead == 1 || failing != step % batches[step])) continue;
        if (!kSanitized && ahead != 1 && (step + failing) % 2 != 0) continue;
        const std::string what = "step " + std::to_string(step) + " of " + std::to_string(first) +
                                 " to " + std::to_string(last) + ", batch " +
                                 std::to_string(failing) + ", " + std::to_string(ahead) + " ahead";
        Group group(GetParam(), ahead, flush_at);
        for (uint64_t before = 0; before < step; ++before) group.run(before);
        group.run(step, failing);
        group.expect_balance(what);
        group.run(step + 1);  // nothing is exchanged any more
        group.expect_balance(what + ", one step later");
        if (HasFatalFailure()) return;
        if (failing != step % batches[step]) continue;
        Group resumed(GetParam(), ahead, flush_at);
        resumed.take_over(group);
        for (uint64_t later = step + 2; later < step + 6; ++later) resumed.run(later);
        resumed.expect_balance(what + ", resumed");
        if (HasFatalFailure()) return;
      }
    }
  }
};

TEST_P(Release, EngineFailureDuringReleaseLosesNothing) {
  for (const uint32_t ahead : {1U, 3U}) {
    uint64_t first = 0, last = 0;
    std::vector<uint32_t> batches;
    Group whole(GetParam(), ahead);
    for (uint64_t step = 0; step < 40 && (last == 0 || step < last + 3); ++step) {
      batches.push_back(whole.run(step));
      if (!whole.session().active().steering->releases()) continue;
      first = first == 0 ? step : first;
      last = step;
    }
    ASSERT_GT(last, first + 1);
    ASSERT_LT(last + 2, batches.size());
    whole.expect_balance("whole");
    lose_in_each(ahead, kNever, first, last, batches);
    if (HasFatalFailure()) return;
  }
}

/// A flush is reported in the step after the call, and is sent from the next one on.
TEST_P(Release, EngineFailureDuringFlushLosesNothing) {
  constexpr uint64_t kAt = 3;
  for (const uint32_t ahead : {1U, 3U}) {
    std::vector<uint32_t> batches;
    Group whole(GetParam(), ahead, kAt);
    for (uint64_t step = 0; step < kAt + kFlushSteps + 3; ++step) {
      batches.push_back(whole.run(step));
      const uint64_t left = whole.session().stats().flush_steps_left;
      ASSERT_EQ(left, step < kAt ? 0 : kFlushSteps - std::min<uint64_t>(step - kAt, kFlushSteps));
    }
    whole.expect_balance("whole");
    lose_in_each(ahead, kAt, kAt + 1, kAt + kFlushSteps, batches);
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Release,
    testing::Values(
        Case{"gather_all", "topk:ratio=0.01", StrategyKind::gather_all, nullptr},
        Case{"two_shot", "topk:ratio=0.01", StrategyKind::two_shot, nullptr},
        Case{"native_sum", "randomk:ratio=0.01", StrategyKind::native_sum, nullptr},
        Case{"beside_3lc", "topk:ratio=0.01", StrategyKind::gather_all, "3lc:s=1.9"},
        Case{"beside_two_shot", "topk:ratio=0.01", StrategyKind::two_shot, ""},
        Case{"beside_lanes", "randomk:ratio=0.01", StrategyKind::native_sum, "powersgd:rank=2"},
        Case{"beside_gathers", "topk:ratio=0.01", StrategyKind::two_shot, "topk:ratio=0.02"}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A law in a closed loop with a link, in virtual time: what a step sends takes as long as the link
// of that step makes it, and what the ranks report decides what later steps send.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "control/controller.h"

namespace laconic::test {

struct Link {
  uint32_t ranks = 8;
  double elements = 1.1e6;
  double per_peer_s = 0.00086;
  std::function<double(uint64_t)> mbit = [](uint64_t) { return 200.0; };
  double jitter = 0;        // standard deviation over the time
  double delay_s = 0;       // up to so much is added, evenly distributed
  double late_s = 0;        // rank 0 comes so much later than the others,
  uint64_t late_from = 0;   // from this step on
  double compute_s = 0.05;  // of a step
  double burst_bytes = 0;   // of a token bucket: pass immediately
  bool maximum = false;     // what not to do: decide by the slowest rank
};

/// A mean of 0 and a standard deviation of 1, with the same bits everywhere.
inline double bell(std::mt19937_64& random) {
  double sum = -6;
  for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11U) * 0x1p-53;
  return sum;
}

struct Loop {
  Link link;
  std::string control = "dc2";
  double start = 0.01;
  uint64_t steps = 2000;
  uint64_t seed = 1;

  struct Step {
    double value, oracle, time_s, slowest_s;
    bool uncompressed;
  };
  struct Run {
    std::vector<Step> steps;
    double target_s = 0;  // lower quartile of the first 20 steps
    std::vector<control::Decision> decisions;
    std::vector<control::Observation> seen;
  };

  [[nodiscard]] double latency_s() const { return link.per_peer_s * (link.ranks - 1); }
  [[nodiscard]] uint64_t bytes(
      double value) const {  // value and index of what each other rank sends
    return static_cast<uint64_t>(8 * value * link.elements * (link.ranks - 1));
  }
  [[nodiscard]] uint64_t dense_bytes() const {  // of a ring
    return static_cast<uint64_t>(8 * link.elements * (link.ranks - 1) / link.ranks);
  }
  [[nodiscard]] double quiet_time(uint64_t step, uint64_t size) const {
    const double waits = std::max(0.0, static_cast<double>(size) - link.burst_bytes);
    return latency_s() + waits * 8 / (link.mbit(step) * 1e6);
  }
  /// The largest value within the bounds that takes 1.3 of the target at most.
  [[nodiscard]] double oracle(uint64_t step, double target, const control::Range& range) const {
    const double room = 1.3 * target - latency_s() - link.delay_s / 2;
    const double size = room * link.mbit(step) * 1e6 / 8 + link.burst_bytes;
    const double value = size / (8 * link.elements * (link.ranks - 1));
    return std::min(std::max(value, range.min), range.max);
  }
  [[nodiscard]] control::Range range() const {
    struct Params {
      double ratio = 0;
    };
    static constexpr Field kRatio = real_field<&Params::ratio>("ratio", 0.01, 1e-9, 1, "")
                                        .controlled(Sends::more, Growth::log, 0.001, 0.25);
    control::Range range = control::range_of(kRatio, start, link.ranks);
    range.most_bytes = bytes(range.max);
    range.dense_bytes = dense_bytes();
    return range;
  }

  [[nodiscard]] Run run() const {
    Run run;
    auto made = control::Controller::create({{control, false, "topk", range()}});
    if (!made) return run;
    control::Controller& controller = *made;
    std::mt19937_64 random(seed);
    struct Setting {
      double value;
      bool uncompressed;
    };
    // In force by step; decisions are taken kDelay ahead.
    std::vector<Setting> settings(control::kDelay, {start, false});
    std::vector<control::Figures> reports(link.ranks);
    uint64_t reported = 0;
    for (uint64_t step = 0; step < steps; ++step) {
      const auto seen = control::observe(
          step, step == 0 ? std::span<control::Figures>() : std::span(reports), reported);
      control::Observation judged = seen;
      if (link.maximum) judged.network_s = seen.slowest_s;
      run.seen.push_back(judged);
      for (const control::Decision& d : controller.observe(judged)) run.decisions.push_back(d);
      settings.push_back({controller.value(0), controller.uncompressed(0)});

      const Setting& now = settings[step];
      reported = now.uncompressed ? dense_bytes() : bytes(now.value);
      const double noise = std::max(0.1, 1 + link.jitter * bell(random));
      const double extra = link.delay_s * static_cast<double>(random() >> 11U) * 0x1p-53;
      const double time = quiet_time(step, reported) * noise + extra;
      const double late = step < link.late_from ? 0 : link.late_s;
      for (uint32_t rank = 0; rank < link.ranks; ++rank) {
        reports[rank] = {time + (rank == 0 ? 0 : late), 0.001, 0.001, link.compute_s + late + time,
                         1};
      }
      run.steps.push_back({now.value, 0, time, time + late, now.uncompressed});
    }
    std::vector<double> first;
    for (std::size_t i = 0; i < 20; ++i) first.push_back(run.steps[i].time_s);
    std::sort(first.begin(), first.end());
    run.target_s = first[4];
    if (controller.target(0) > 0) run.target_s = controller.target(0);
    const control::Range bounds = range();
    for (uint64_t step = 0; step < steps; ++step) {
      run.steps[step].oracle = oracle(step, run.target_s, bounds);
    }
    return run;
  }
};

/// Mean of min(value, oracle) / oracle after the first 20 steps. Uncompressed counts as 1 where it
/// is within 1.3 of the target.
inline double share_of_oracle(const Loop::Run& run) {
  double sum = 0;
  for (std::size_t i = 20; i < run.steps.size(); ++i) {
    const Loop::Step& s = run.steps[i];
    sum += s.uncompressed ? 1 : std::min(s.value, s.oracle) / s.oracle;
  }
  return sum / static_cast<double>(run.steps.size() - 20);
}

/// Steps from `from` until the value is within `share` of the oracle.
inline uint64_t steps_until_near(const Loop::Run& run, uint64_t from, double share) {
  for (uint64_t i = from; i < run.steps.size(); ++i) {
    const Loop::Step& s = run.steps[i];
    if (std::fabs(s.value / s.oracle - 1) <= share) return i - from;
  }
  return run.steps.size();
}

/// Share of the steps above 1.5 of the target, those of [from, to) left out for each pair.
inline double share_above(const Loop::Run& run,
                          const std::vector<std::pair<uint64_t, uint64_t>>& without = {}) {
  uint64_t above = 0;
  uint64_t counted = 0;
  for (uint64_t i = 20; i < run.steps.size(); ++i) {
    if (std::any_of(without.begin(), without.end(),
                    [i](const auto& w) { return i >= w.first && i < w.second; })) {
      continue;
    }
    ++counted;
    if (run.steps[i].time_s > 1.5 * run.target_s) ++above;
  }
  return static_cast<double>(above) / static_cast<double>(counted);
}

/// Standard deviation of the value over its mean, in the last half.
inline double swing(const Loop::Run& run) {
  double sum = 0;
  double squares = 0;
  double n = 0;
  for (std::size_t i = run.steps.size() / 2; i < run.steps.size(); ++i, ++n) {
    sum += run.steps[i].value;
    squares += run.steps[i].value * run.steps[i].value;
  }
  const double mean = sum / n;
  return std::sqrt(std::max(0.0, squares / n - mean * mean)) / mean;
}

namespace scenario {
inline constexpr uint64_t kFall = 700;
inline constexpr uint64_t kRise = 1300;
inline double fall_and_rise(uint64_t step) { return step >= kFall && step < kRise ? 20 : 200; }
inline double square(uint64_t step) { return step / 200 % 2 == 0 ? 200 : 80; }
inline double wide_in_the_middle(uint64_t step) {
  return step >= kFall && step < kRise ? 10000 : 100;
}
}  // namespace scenario

}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Times that mean something on a machine with neighbours: every sample of a call lies between two
// samples of a yardstick, and only their ratio is believed.
#pragma once

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace laconic::tools {

/// Median and quartiles over the samples that were kept.
struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
};

struct Timing {
  Spread x_memcpy;  ///< time of memcpy / time of the call; of `peers` memcpys for a fused decode
  Spread seconds;   ///< of one call
  Spread memcpy_seconds;
  uint32_t samples = 0;
  uint32_t rejected = 0;  ///< their memcpy was more than 30 % off the median
};

/// Time of the calling thread on its core: what other processes took from it in between does not
/// count. Calls that use several threads need the time on the wall instead.
enum class Clock : uint8_t { thread, wall };

inline double now(Clock clock) {
  timespec time{};
  clock_gettime(clock == Clock::thread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// Seconds for `repeats` calls.
template <class Call>
double seconds_of(Clock clock, uint64_t repeats, Call&& call) {
  const double start = now(clock);
  for (uint64_t i = 0; i < repeats; ++i) call();
  return now(clock) - start;
}

/// How often a call is repeated for one sample: until the clock's grain and the call of the clock
/// do not matter.
template <class Call>
uint64_t repeats_for(Clock clock, double target_seconds, Call&& call) {
  call();  // warm-up: pages, caches, frequency
  for (uint64_t repeats = 1;; repeats *= 4) {
    const double taken = seconds_of(clock, repeats, call);
    if (taken >= target_seconds / 4 || repeats > (uint64_t{1} << 24)) {
      const double wanted = static_cast<double>(repeats) * target_seconds / std::max(taken, 1e-9);
      return std::max<uint64_t>(1, static_cast<uint64_t>(wanted));
    }
  }
}

inline Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double q) {
    return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
  };
  return {at(0.5), at(0.25), at(0.75)};
}

/// Per call: the mean of the memcpys right before and after, and the call itself.
struct Sample {
  double memcpy_seconds = 0;
  double seconds = 0;
};

/// Yardstick, call, yardstick, call, …: every call lies between two yardsticks of its own.
/// `prepare` runs before each sample of the call and is not timed.
template <class Yardstick, class Prepare, class Call>
std::vector<Sample> samples_of(Clock clock, double seconds, Yardstick&& yardstick,
                               Prepare&& prepare, Call&& call) {
  constexpr double kSampleSeconds = 4e-3;  // at least; one call when that takes longer
  constexpr uint32_t kMinSamples = 7;
  const uint64_t lengths = repeats_for(clock, kSampleSeconds, yardstick);
  const uint64_t calls = repeats_for(clock, kSampleSeconds, call);
  std::vector<Sample> samples;
  double total = 0;
  double before = seconds_of(clock, lengths, yardstick);
  while (total < seconds || samples.size() < kMinSamples) {
    prepare();
    const double taken = seconds_of(clock, calls, call);
    const double after = seconds_of(clock, lengths, yardstick);
    samples.push_back(
        {(before + after) / 2 / static_cast<double>(lengths), taken / static_cast<double>(calls)});
    total += before + taken;
    before = after;
  }
  return samples;
}

inline Timing timing_of(const std::vector<Sample>& samples, double memcpys_per_call) {
  constexpr double kTolerance = 0.3;
  std::vector<double> all;
  for (const Sample& s : samples) all.push_back(s.memcpy_seconds);
  const double usual = spread_of(all).median;
  std::vector<double> ratios, seconds, memcpys;
  for (const Sample& s : samples) {
    if (std::fabs(s.memcpy_seconds - usual) > kTolerance * usual) continue;
    ratios.push_back(memcpys_per_call * s.memcpy_seconds / s.seconds);
    seconds.push_back(s.seconds);
    memcpys.push_back(s.memcpy_seconds);
  }
  Timing timing;
  timing.samples = static_cast<uint32_t>(ratios.size());
  timing.rejected = static_cast<uint32_t>(samples.size() - ratios.size());
  timing.x_memcpy = spread_of(std::move(ratios));
  timing.seconds = spread_of(std::move(seconds));
  timing.memcpy_seconds = spread_of(std::move(memcpys));
  return timing;
}

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "delay.h"

#include <algorithm>
#include <cmath>

namespace laconic::lab {
namespace {

/// The finalizer of SplitMix64 (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

/// The purpose of a random draw.
enum class Stream : uint64_t { jitter = 1, loss = 2 };

/// In [0, 1), by counter: the same on every machine and in any order.
double draw(uint64_t seed, Stream stream, uint32_t link, uint64_t counter) {
  const uint64_t key = mix(mix(seed) ^ (static_cast<uint64_t>(stream) << 32 | link));
  return static_cast<double>(mix(key ^ counter) >> 11) * 0x1p-53;
}

int64_t in_ns(Duration time) { return std::chrono::nanoseconds(time).count(); }

}  // namespace

int64_t slot_ns(const DelayLaw& law) { return std::max<int64_t>(1'000'000, 4 * in_ns(law.jitter)); }

int64_t hold_ns(const DelayLaw& law, uint32_t link, int64_t time_ns) {
  if (law.jitter.count() == 0) return in_ns(law.delay);
  const int64_t slot = std::max<int64_t>(time_ns, 0) / slot_ns(law);
  const double u = draw(law.seed, Stream::jitter, link, static_cast<uint64_t>(slot));
  const auto above = std::llround(u * 2 * static_cast<double>(in_ns(law.jitter)));
  return in_ns(law.delay) - in_ns(law.jitter) + above;
}

int64_t next_due_ns(const DelayLaw& law, uint32_t link, int64_t time_ns) {
  const int64_t slot = slot_ns(law);
  const int64_t next = (std::max<int64_t>(time_ns, 0) / slot + 1) * slot;
  // No slot but the next can undercut: later ones begin more than twice the jitter after it.
  return std::min(time_ns + hold_ns(law, link, time_ns), next + hold_ns(law, link, next));
}

bool is_lost(uint64_t seed, uint32_t link, uint64_t frame, double share) {
  return share > 0 && draw(seed, Stream::loss, link, frame) < share;
}

int64_t ReleaseTimes::next(int64_t arrived_ns, int64_t start_ns) {
  last_ = std::max(last_, arrived_ns + hold_ns(law_, link_, arrived_ns - start_ns));
  return last_;
}

int64_t ReleaseTimes::none_before(int64_t time_ns, int64_t start_ns) const {
  return std::max(last_, start_ns + next_due_ns(law_, link_, time_ns - start_ns));
}

}  // namespace laconic::lab

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How long frames are held back (--delay, --jitter, --seed) and which are lost: pure functions.
#pragma once

#include <cstdint>

#include "units.h"

namespace laconic::lab {

/// The delay that a link adds to a frame in one direction.
struct DelayLaw {
  Duration delay{};
  Duration jitter{};  ///< at most `delay`
  uint64_t seed = 0;
};

/// For so long a link keeps what was drawn: four times the jitter, at least 1 ms. Where the next
/// draw is less, what came before it is still on its way for twice the jitter at most.
int64_t slot_ns(const DelayLaw& law);

/// Nanoseconds that the law demands at `time_ns` after the start (before it, as at it): uniform in
/// delay ± jitter, drawn once per slot from (seed, link, slot) alone. It does not depend on the
/// traffic, so that two runs of different programs meet the same delays at the same times.
int64_t hold_ns(const DelayLaw& law, uint32_t link, int64_t time_ns);

/// The least t + hold_ns(t) of all t from `time_ns` on: nothing that comes later is due before.
int64_t next_due_ns(const DelayLaw& law, uint32_t link, int64_t time_ns);

/// Whether the `frame`-th of a link is lost, where `share` of them are.
bool is_lost(uint64_t seed, uint32_t link, uint64_t frame, double share);

/// When the frames of one link leave: none before one that came earlier, all of them between
/// delay - jitter and delay + jitter after they came.
class ReleaseTimes {
 public:
  ReleaseTimes() = default;
  ReleaseTimes(const DelayLaw& law, uint32_t link) : law_(law), link_(link) {}

  /// Delay of a frame that came at `arrived_ns`, where slots are counted from `start_ns`.
  int64_t next(int64_t arrived_ns, int64_t start_ns);

  /// No frame that comes after `time_ns` is due before.
  [[nodiscard]] int64_t none_before(int64_t time_ns, int64_t start_ns) const;

 private:
  DelayLaw law_;
  uint32_t link_ = 0;
  int64_t last_ = INT64_MIN;
};

}  // namespace laconic::lab

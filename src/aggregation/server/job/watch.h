// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which workers a job waits for, and which of them are silent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/protocol/clock.h"
#include "aggregation/server/job/members.h"
#include "aggregation/server/job/terms.h"

namespace laconic::aggregation {

class Watch {
 public:
  /// The job waits for all its workers. `terms` outlive it.
  Watch(const Terms& terms, Time now) noexcept : terms_(terms), waiting_(now), heard_(now) {}

  /// A datagram was received.
  void heard(Time now) noexcept { heard_ = now; }
  /// The program in the kernel received a datagram at `time`.
  void heard_beside(Time time) noexcept { heard_ = std::max(heard_, time); }
  void tick(Time now) noexcept { ticked_ = now; }
  /// Whether anybody waits for anything.
  void note(Time now, bool waits) noexcept {
    waiting_ = !waits ? kNever : waiting_ == kNever ? now : waiting_;
  }

  /// Calls ask(w) for workers that are silent, from time to time: a rank that is waited for and
  /// silent for so long is asked.
  template <class Ask>
  void probe(Time now, const Members& members, Ask&& ask) {
    if (now < probe_at_) return;
    probe_at_ = now + kProbe;
    for (uint32_t w = 0; w < members.world(); ++w) {
      const Member& m = members[w];
      if (m.enrolled && !members.has_left(w) && now >= m.heard + kProbe) ask(w);
    }
  }
  /// A host reports that this worker's port is closed. True: for the second time in a row within a
  /// limit, so the port counts as closed.
  [[nodiscard]] static bool refused_again(Time now, Member& member) noexcept;
  /// Bit w: worker w is needed(w) and was silent for too long.
  template <class Needed>
  [[nodiscard]] uint64_t silent(Time now, const Members& members, Needed&& needed) const {
    uint64_t lost = 0;
    for (uint32_t w = 0; waiting_ != kNever && w < members.world(); ++w) {
      const Time since = std::max(members[w].heard, waiting_);
      if (now > since && now - since > terms_.timeout() && needed(w)) lost |= bit_of(w);
    }
    return lost;
  }
  /// No datagram arrived for so long that the job is dropped; its workers can return with their
  /// results.
  [[nodiscard]] bool is_idle(Time now) const noexcept { return now > idle_after(); }
  /// `beside`: a program in the kernel receives workers' datagrams, and wakes no process.
  [[nodiscard]] Time next_event(const Members& members, bool beside) const noexcept;

 private:
  static constexpr Time kProbe = 100000000;
  static constexpr uint64_t kIdleTimeouts = 4;
  [[nodiscard]] Time idle_after() const noexcept {
    return heard_ + kIdleTimeouts * terms_.timeout();
  }

  const Terms& terms_;
  Time waiting_;  ///< since when anybody waits for anything
  Time heard_;    ///< last from anybody
  Time ticked_ = 0, probe_at_ = 0;
};

}  // namespace laconic::aggregation

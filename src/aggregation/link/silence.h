// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How long a server has said nothing, and how long nothing has come of what it says.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/link/failure.h"
#include "aggregation/link/settings.h"
#include "aggregation/protocol/clock.h"

namespace laconic::aggregation {

class Silence {
 public:
  explicit Silence(uint32_t timeout_ms) noexcept : timeout_ms_(timeout_ms) {}

  void restart(Time now) noexcept { heard_ = moved_ = now; }
  /// An authentic datagram came.
  void heard(Time now) noexcept { heard_ = now; }
  /// There is progress.
  void moved(Time now) noexcept { moved_ = now; }
  [[nodiscard]] Time moved_at() const noexcept { return moved_; }

  [[nodiscard]] Failure too_long(Time now) const noexcept {
    if (passed(now, heard_, unheard())) return of(Failure::Cause::silent, timeout_ms_ * 3 / 2);
    if (passed(now, moved_, unmoved())) return of(Failure::Cause::stuck, timeout_ms_ * 3);
    return {};
  }
  /// When it is too long.
  [[nodiscard]] Time wake() const noexcept {
    return std::min(heard_ + unheard() + 1, moved_ + unmoved() + 1);
  }

 private:
  [[nodiscard]] Time timeout() const noexcept { return uint64_t{timeout_ms_} * kMillisecond; }
  [[nodiscard]] Time unheard() const noexcept { return timeout() * 3 / 2; }
  [[nodiscard]] Time unmoved() const noexcept { return timeout() * 3; }
  static bool passed(Time now, Time since, Time time) noexcept {
    return now > since && now - since > time;
  }
  static Failure of(Failure::Cause cause, uint32_t ms) noexcept {
    Failure f{.cause = cause};
    f.expected = ms;
    return f;
  }

  uint32_t timeout_ms_;
  Time heard_ = 0, moved_ = 0;
};

}  // namespace laconic::aggregation

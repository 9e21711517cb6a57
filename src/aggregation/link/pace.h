// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How many datagrams may be under way, and when one is given up: the bandwidth-delay product and
// the round-trip time, both measured.
#pragma once

#include <array>
#include <cstdint>

#include "aggregation/link/granule.h"
#include "aggregation/protocol/clock.h"

namespace laconic::aggregation {

class Pace {
 public:
  /// `most`: the largest window; `longest`: the longest timeout.
  Pace(uint32_t most, Time longest) noexcept;

  /// A round trip of something that was sent once.
  void sample(Time now, Time round_trip) noexcept;
  /// A result came. `limited`: the window was full, so that the rate says what the path takes.
  void delivered(Time now, bool limited) noexcept;
  /// Nothing came for timeout(): it doubles, and the window begins small.
  void timed_out() noexcept;

  [[nodiscard]] uint32_t window() const noexcept { return window_; }
  [[nodiscard]] Time timeout() const noexcept;
  [[nodiscard]] Time round_trip() const noexcept { return smoothed_; }
  [[nodiscard]] uint32_t timeouts_in_a_row() const noexcept { return timeouts_; }

 private:
  void end_round(Time now, bool limited) noexcept;

  uint32_t most_, window_, target_;
  Time longest_;
  Time smoothed_ = 0, deviation_ = 0, least_ = 0, least_at_ = 0;
  uint32_t timeouts_ = 0;
  Time round_began_ = 0;
  uint64_t in_round_ = 0;
  uint32_t stalled_ = 0;           ///< rounds in which the rate did not grow, in the beginning
  double best_ = 0;                ///< results per nanosecond
  std::array<double, 8> rates_{};  ///< of the last rounds that filled the window
  std::size_t next_rate_ = 0;
};

}  // namespace laconic::aggregation

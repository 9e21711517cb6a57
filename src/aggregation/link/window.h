// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Window: which granules of an exchange are sent, and when: within the path's capacity and the
// server's ring, lost ones again.
#pragma once

#include <algorithm>
#include <cstdint>

#include "aggregation/link/flights.h"
#include "aggregation/link/pace.h"
#include "aggregation/link/results.h"
#include "aggregation/link/uplink.h"
#include "aggregation/protocol/clock.h"

namespace laconic::aggregation {

class Window {
 public:
  explicit Window(const LinkSettings& settings);

  [[nodiscard]] Pace& pace() noexcept { return pace_; }
  [[nodiscard]] const Pace& pace() const noexcept { return pace_; }
  /// All workers have all results below it, by what the server has said.
  [[nodiscard]] uint64_t floor() const noexcept { return floor_; }
  void raise_floor(uint64_t floor) noexcept { floor_ = std::max(floor_, floor); }

  void begin(Time now, uint64_t first) noexcept;
  /// The server lost everything that this worker sent.
  void begin_again(Time now) noexcept;
  void arrived(Time now, uint64_t number) noexcept { flights_.arrived(now, number, pace_); }
  /// The server says where its floor is.
  void take_status(Time now) noexcept;
  /// The server has no result from there on, and wants contributions.
  void open(uint64_t number) noexcept { flights_.lose_pulls_from(number); }
  /// Sends what is due. `moved`: the last progress. True: a timeout passed.
  bool send(Time now, Time moved, const Results& results, Uplink& uplink) noexcept;
  [[nodiscard]] Time wake(Time moved) const noexcept {
    return flights_.under_way() != 0 ? times_out_at(moved) : probe_at_;
  }

 private:
  [[nodiscard]] bool next_to_send(Time now, const Results& results, uint64_t* number) noexcept;
  /// While results come, holes are found by them.
  [[nodiscard]] Time times_out_at(Time moved) const noexcept {
    return std::max(flights_.oldest(), moved) + pace_.timeout();
  }

  uint64_t ring_;
  Pace pace_;
  Flights flights_;
  uint64_t next_ = 0, floor_ = 0;
  Time probe_at_ = 0;
};

}  // namespace laconic::aggregation

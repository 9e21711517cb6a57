// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// To compare with: the bandwidth-delay product of the same prototype. Largest bandwidth of a window
// of 5 s times the smallest time is what may be in flight.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>

#include "control/policies/aimd.h"

namespace laconic::control {

struct Bdp {
  struct Params {
    double min = 0;
    double max = 0;
    double add = 0.001;
    double cut = 0.95;
    double share = 0.9;
  };
  static constexpr PolicyInfo info{
      "bdp", "to compare with: cuts above a share of bandwidth times delay, else adds", "bdp"};
  static constexpr std::array fields{
      min_field<&Params::min>(), max_field<&Params::max>(),
      real_field<&Params::add>("add", 0.001, 1e-9, 1e6, "what a step adds"),
      real_field<&Params::cut>("cut", 0.95, 0.01, 1, "factor of a step that cuts", true),
      real_field<&Params::share>("share", 0.9, 0.01, 10,
                                 "share of bandwidth times delay that may be in flight")};
  static constexpr std::size_t kSlots = 10;
  static constexpr double kSlot = 0.5;  // seconds of training

  struct State {
    double in_slot = 0;  // seconds
    uint64_t slot = 0;
    double delay = 0;                        // the smallest so far; 0: not known yet
    std::array<double, kSlots> bandwidth{};  // largest per slot, bytes per second
  };

  static Result<Range> bound(const Control& control, const Params& p, const Range& range) {
    return narrowed(range, control.canonical, p.min, p.max);
  }
  static State start(const Params& /*params*/, const Range& /*range*/) { return {}; }

  static Move step(const Params& p, const Position& at, State& s, const Observation& seen) {
    s.in_slot += seen.step_s;
    for (std::size_t turned = 0; s.in_slot >= kSlot && turned < kSlots; ++turned) {
      s.in_slot -= kSlot;
      s.slot = (s.slot + 1) % kSlots;
      s.bandwidth[s.slot] = 0;
    }
    if (s.in_slot >= kSlot) s.in_slot = 0;  // longer than the window
    const auto bytes = static_cast<double>(seen.bytes);
    s.bandwidth[s.slot] = std::max(s.bandwidth[s.slot], bytes / seen.network_s);
    s.delay = s.delay == 0 ? seen.network_s : std::min(s.delay, seen.network_s);
    const double widest = *std::max_element(s.bandwidth.begin(), s.bandwidth.end());
    return Aimd::added_or_cut(at, bytes <= p.share * (widest * s.delay), p.add, p.cut);
  }

  static bool valid(const Params& /*params*/, const Range& /*range*/, const State& s) {
    return s.in_slot >= 0 && s.in_slot < kSlot && s.slot < kSlots &&
           (s.delay == 0 || plausible(s.delay)) &&
           std::all_of(s.bandwidth.begin(), s.bandwidth.end(),
                       [](double x) { return x >= 0 && x < 1e30; });
  }
};

}  // namespace laconic::control

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// To compare with: AIMD on the smoothed network time, as a public PyTorch prototype has it; fits
// the description of NetSenseML (arXiv 2506.16235). It compares with the last step, with no target.
#pragma once

#include <array>

#include "control/policies/bounds.h"

namespace laconic::control {

struct Aimd {
  struct Params {
    double min = 0;
    double max = 0;
    double add = 0.001;
    double cut = 0.95;
  };
  static constexpr PolicyInfo info{
      "aimd", "to compare with: adds while the smoothed network time falls, else cuts", "aimd"};
  static constexpr std::array fields{
      min_field<&Params::min>(), max_field<&Params::max>(),
      real_field<&Params::add>("add", 0.001, 1e-9, 1e6, "what a step adds"),
      real_field<&Params::cut>("cut", 0.95, 0.01, 1, "factor of a step that cuts", true)};
  static constexpr double kWeight = 0.1;

  struct State {
    double smoothed = 0;  // seconds; 0: not known yet
  };

  static Result<Range> bound(const Control& control, const Params& p, const Range& range) {
    return narrowed(range, control.canonical, p.min, p.max);
  }
  static State start(const Params& /*params*/, const Range& /*range*/) { return {}; }

  static Move step(const Params& p, const Position& at, State& s, const Observation& seen) {
    Move move = Move::hold(at);
    if (s.smoothed == 0) {
      s.smoothed = seen.network_s;
      return move;
    }
    const double before = s.smoothed;
    s.smoothed += kWeight * (seen.network_s - s.smoothed);
    return added_or_cut(at, s.smoothed < before, p.add, p.cut);
  }

  /// One step of additive increase, multiplicative decrease of what is sent.
  static Move added_or_cut(const Position& at, bool add, double increase, double factor) {
    Move move = Move::hold(at);
    move.reason = add ? Reason::fast : Reason::slow;
    if (add && at.range.sends == Sends::more) {
      move.value = value_of(at.range, at.value + increase);
    } else {
      move.value = add ? grown(at.range, at.value, increase) : shrunk(at.range, at.value, factor);
    }
    return move;
  }

  static bool valid(const Params& /*params*/, const Range& /*range*/, const State& s) {
    return s.smoothed == 0 || plausible(s.smoothed);
  }
};

}  // namespace laconic::control

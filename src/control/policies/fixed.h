// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>

#include "control/policy.h"

namespace laconic::control {

struct Fixed {
  struct Params {};
  struct State {};
  static constexpr PolicyInfo info{"fixed", "the spec's setting, whatever the network does",
                                   "fixed", false, false};
  static constexpr std::array<Field, 0> fields{};

  static State start(const Params& /*params*/, const Range& /*range*/) { return {}; }
  static Move step(const Params& /*params*/, const Position& at, State& /*state*/,
                   const Observation& /*seen*/) {
    return Move::hold(at);
  }
  static bool valid(const Params& /*params*/, const Range& /*range*/, const State& /*state*/) {
    return true;
  }
};

}  // namespace laconic::control

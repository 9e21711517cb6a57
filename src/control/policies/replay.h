// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>

#include "base/options.h"
#include "control/policy.h"

namespace laconic::control {

struct Replay {
  struct Params {};
  struct State {};
  static constexpr PolicyInfo info{
      "replay", "the decisions of a record, step by step", "replay:FILE", true, false, true};
  static constexpr std::array<Field, 0> fields{};

  static Result<void> read(std::string_view text, std::string_view options, Control& control) {
    if (options.empty()) {
      return syntax_error({"control", text, "write replay:FILE, where FILE is the record of a run"},
                          "the file name is missing");
    }
    control.file = std::string(options);
    return {};
  }
  static void write(Control& control) { control.canonical += ":" + control.file; }

  static Result<Range> bound(const Control& /*control*/, const Params& /*params*/,
                             const Range& range) {
    return range;
  }
  static State start(const Params& /*params*/, const Range& /*range*/) { return {}; }
  static Move step(const Params& /*params*/, const Position& at, State& /*state*/,
                   const Observation& seen) {
    Move move = Move::hold(at);
    const auto before = [&](const Decision& d, uint64_t step) { return d.step < step; };
    const auto* d = std::lower_bound(at.recorded.data(), at.recorded.data() + at.recorded.size(),
                                     seen.step, before);
    for (; d != at.recorded.data() + at.recorded.size() && d->step == seen.step; ++d) {
      if (d->rule != at.rule) continue;
      move = {d->to, d->uncompressed, Reason::recorded, d->slowdown, d->target_s, d->parts};
    }
    return move;
  }
  static bool valid(const Params& /*params*/, const Range& /*range*/, const State& /*state*/) {
    return true;
  }
};

}  // namespace laconic::control

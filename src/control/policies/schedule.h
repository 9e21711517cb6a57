// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/options.h"
#include "base/quoted.h"
#include "control/policy.h"

namespace laconic::control {

struct Schedule {
  struct Params {};
  struct State {};
  static constexpr PolicyInfo info{"schedule", "values by step: STEP=VALUE, each from its step on",
                                   "schedule:0=0.25,200=0.01", true, false};
  static constexpr std::array<Field, 0> fields{};
  static constexpr std::size_t kPoints = 64;

  static Result<void> read(std::string_view text, std::string_view options, Control& control) {
    const OptionText where{"control", text,
                           "write schedule:STEP=VALUE,STEP=VALUE, in order of steps"};
    for (const std::string_view option : split(options, ',')) {
      const std::size_t equals = std::min(option.find('='), option.size());
      uint64_t step = 0;
      double value = 0;
      const auto* const middle = option.data() + equals;
      const auto* const end = option.data() + option.size();
      const auto first = std::from_chars(option.data(), middle, step);
      if (equals == option.size() || first.ec != std::errc{} || first.ptr != middle) {
        return syntax_error(where, concat({quoted(option), " is not STEP=VALUE"}));
      }
      const auto second = std::from_chars(middle + 1, end, value);
      if (second.ec != std::errc{} || second.ptr != end || !(value > 0 && value < 1e300)) {
        return syntax_error(where, concat({quoted(option), " has no value above 0"}));
      }
      if (!control.points.empty() && step <= control.points.back().first) {
        return syntax_error(where, concat({"step ", std::to_string(step), " is not after step ",
                                           std::to_string(control.points.back().first)}));
      }
      if (control.points.size() == kPoints) return syntax_error(where, "more than 64 points");
      control.points.emplace_back(step, value);
    }
    return {};
  }

  static void write(Control& control) {
    char separator = ':';
    for (const auto& [step, value] : control.points) {
      control.canonical += separator;
      control.canonical += concat({std::to_string(step), "=", number_text(value)});
      separator = ',';
    }
  }

  /// As wide as its values are.
  static Result<Range> bound(const Control& control, const Params& /*params*/, const Range& range) {
    Range bounds = range;
    bounds.min = bounds.max = range.start;
    for (const auto& [step, value] : control.points) {
      const bool whole = value == static_cast<double>(static_cast<int64_t>(std::min(value, 1e15)));
      if (value < range.lowest || value > range.highest || (range.whole && !whole)) {
        return Error{Errc::value_out_of_range,
                     concat({"control '", control.canonical, "': ", range.name, " does not accept ",
                             number_text(value)}),
                     concat({range.name, " accepts ", range.whole ? "whole numbers from " : "",
                             number_text(range.lowest), " to ", number_text(range.highest)})};
      }
      bounds.min = std::min(bounds.min, value);
      bounds.max = std::max(bounds.max, value);
    }
    return bounds;
  }

  static State start(const Params& /*params*/, const Range& /*range*/) { return {}; }
  static Move step(const Params& /*params*/, const Position& at, State& /*state*/,
                   const Observation& seen) {
    Move move = Move::hold(at);
    for (const auto& [step, value] : at.control.points) {
      if (step <= seen.step + kDelay) move.value = value;
    }
    move.reason = Reason::scheduled;
    return move;
  }
  static bool valid(const Params& /*params*/, const Range& /*range*/, const State& /*state*/) {
    return true;
  }
};

}  // namespace laconic::control

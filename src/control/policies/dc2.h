// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// DC2-R, a reconstruction of DC2 (Abdelmoniem, Canini: "DC2", INFOCOM 2021), of which an abstract
// is public: congestion control whose window is what a step sends. Decision 0038 has the target.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/concat.h"
#include "base/field_text.h"
#include "control/policies/bounds.h"

namespace laconic::control {

struct Dc2 {
  enum class Target : uint8_t { start, compute };
  static constexpr std::array<std::string_view, 2> kTargets{"start", "compute"};
  /// Share of a step that exchanges without overlap may add (decision 0038).
  static constexpr double kShare = 0.33;
  struct Params {
    double min = 0;
    double max = 0;
    double mean = 0;
    double deadline_ms = 0;
    double share = kShare;
    Target target = Target::start;
  };
  static constexpr PolicyInfo info{
      "dc2",
      "DC2-R, a reconstruction: halves above 1.5 of a target time, grows below 1.1",
      "dc2:target=compute",
      true,
      true,
      true};
  static constexpr std::array fields{
      min_field<&Params::min>(),
      max_field<&Params::max>(),
      word_field<&Params::target>("target", 0, kTargets,
                                  "network time to keep to, from the first 20 steps: that of the "
                                  "spec's setting, or a share of the rest of the step"),
      real_field<&Params::share>("share", kShare, 0.01, 10,
                                 "of the rest of the step, with target=compute"),
      real_field<&Params::deadline_ms>("deadline_ms", 0, 1e-3, 1e7,
                                       "network time to keep to; 0: as target says"),
      real_field<&Params::mean>("mean", 0, 1e-9, 1e9,
                                "floor of the mean over 1,000 steps; 0: none")};

  static constexpr std::size_t kStart = 20;    // steps whose lower quartile is the target,
  static constexpr std::size_t kFirst = 5;     // and those after which less may be sent already
  static constexpr uint64_t kEvery = 5;        // steps between updates
  static constexpr std::size_t kWindow = 200;  // updates in 1,000 steps
  static constexpr double kLow = 1.1;
  static constexpr double kHigh = 1.5;
  static constexpr double kWeight = 0.2;    // of the last step in the slowdown
  static constexpr double kMost = 16;       // of a step's slowdown: one outlier is not a trend
  static constexpr std::size_t kAgree = 3;  // last steps, which say how much room there is,
  static constexpr std::size_t kRisen = 2;  // and of these the newest, which say how far to fall
  static constexpr double kEmpty = 0.5;     // of the target in each of them: r is out of date
  static constexpr double kGrown = 1.5;     // more than a setting that was not slow: growth is why
  // At the next update, the reports of this number of steps are about the last setting.
  static_assert(kEvery >= kDelay + kAgree && kRisen <= kAgree);

  struct State {
    double target = 0;    // seconds; 0: not known yet
    double slowdown = 0;  // r; 0: not known yet
    uint64_t seen = 0;    // step of the last observation
    uint64_t updated = 0;
    uint64_t settled = 0;  // until then nothing is judged: reports are about what was before
    double passed = 0;     // amount that an update last found not slow
    double knee = 0;       // amount up to which growth doubles, as TCP's slow start does
    std::array<double, kAgree> last{};  // times over the target, newest first; 0: not known
    uint64_t samples = 0;
    std::array<double, kStart> sample{};
    uint64_t place = 0;                  // in `sent`
    std::array<double, kWindow> sent{};  // amounts of the last updates, as far as they count
  };

  static Result<void> check(const Params& p, std::string_view text) {
    if (p.deadline_ms > 0 && p.target == Target::compute) {
      return Error{
          Errc::invalid_argument,
          concat({"control '", text, "': target=compute and deadline_ms exclude each other"}),
          "leave one of them out"};
    }
    if (p.share != kShare && p.target != Target::compute) {
      return Error{Errc::invalid_argument,
                   concat({"control '", text, "': share needs target=compute"}),
                   "add target=compute"};
    }
    return {};
  }

  static Result<Range> bound(const Control& control, const Params& p, const Range& range) {
    auto bounds = narrowed(range, control.canonical, p.min, p.max);
    if (!bounds || p.mean == 0) return bounds;
    const bool above = p.mean > bounds->max;
    if (above || p.mean < bounds->min) {
      return Error{Errc::value_out_of_range,
                   concat({"control '", control.canonical, "': mean=", number_text(p.mean),
                           above ? " is above max=" : " is below min=",
                           number_text(above ? bounds->max : bounds->min)}),
                   "mean must lie between min and max"};
    }
    return bounds;
  }

  static State start(const Params& p, const Range& range) {
    State s;
    s.target = p.deadline_ms / 1000;
    if (p.mean > 0) {
      s.sent.fill(credit(p, range, std::max(amount(range, p.mean), amount(range, range.start))));
    }
    return s;
  }

  static Move step(const Params& p, const Position& at, State& s, const Observation& seen) {
    Move move = Move::hold(at);
    const bool learning = s.target == 0;
    // Computing takes as long before what was decided holds.
    const double target = learning ? learn_target(p, s, seen) : s.target;
    if (target == 0 || s.settled > seen.step) return move;
    slow_down(s, seen, target);
    move.slowdown = s.slowdown;
    move.target_s = target;
    if (at.uncompressed) {
      if (s.slowdown > kHigh) switch_path(s, seen.step, move, false, Reason::dense_is_slow);
      return move;
    }
    if (!due(p, s, seen.step)) return move;
    s.updated = seen.step;
    decide(at, s, seen, learning, move);
    if (p.mean > 0) keep_mean(p, at, s, move);
    return move;
  }

  static bool valid(const Params& p, const Range& range, const State& s) {
    const double most_sent = p.mean > 0 ? most_credit(p, range) : 0;
    const auto is_amount = [most = amount(range, most(range))](double x) {
      return x >= 0 && x <= most;
    };
    return (s.target == 0 || plausible(s.target)) && s.slowdown >= 0 && s.slowdown <= kMost &&
           s.samples < kStart && s.place < kWindow && s.updated <= s.seen &&
           s.settled <= s.seen + kEvery && is_amount(s.passed) && is_amount(s.knee) &&
           std::all_of(s.last.begin(), s.last.end(),
                       [](double x) { return x >= 0 && x <= kMost; }) &&
           std::all_of(s.sample.begin(), s.sample.end(),
                       [](double x) { return x == 0 || plausible(x); }) &&
           std::all_of(s.sent.begin(), s.sent.end(),
                       [most_sent](double x) { return x >= 0 && x <= most_sent; });
  }

  static double target(const State& s) { return s.target; }

 private:
  /// The target as far as it is known, 0: not yet. Computing takes as long whatever is sent, so a
  /// few steps say already that less would do; the time of the spec's setting needs that setting.
  static double learn_target(const Params& p, State& s, const Observation& seen) {
    const bool compute = p.target == Target::compute;
    const double sample = compute ? seen.step_s - seen.network_s : seen.network_s;
    if (!plausible(sample)) return 0;
    s.sample[s.samples++] = sample;
    const auto known = static_cast<std::ptrdiff_t>(s.samples);
    auto sorted = s.sample;
    std::sort(sorted.begin(), sorted.begin() + known);
    const double target = sorted[(s.samples - 1) / 4] * (compute ? p.share : 1);
    if (s.samples == kStart) {
      s.target = target;
      s.sample.fill(0);
      s.samples = 0;
      return target;
    }
    return compute && s.samples >= kFirst ? target : 0;
  }

  /// r, whose weights depend on steps and not on how many of them had reports.
  static void slow_down(State& s, const Observation& seen, double target) {
    const double now = std::min(seen.network_s / target, kMost);
    double kept = 1;
    for (uint64_t gap = std::min<uint64_t>(seen.step - s.seen, 64); gap > 0; --gap) {
      kept *= 1 - kWeight;
    }
    s.slowdown = s.slowdown == 0 ? now : now + kept * (s.slowdown - now);
    for (std::size_t i = kAgree - 1; i > 0; --i)
      s.last[i] = seen.step == s.seen + 1 ? s.last[i - 1] : 0;
    s.last[0] = now;
    s.seen = seen.step;
  }

  /// Every five steps; or as soon as one halving will not do for two steps in a row, where an
  /// update that meets the first waits for the second. A mean counts in updates of five steps.
  static bool due(const Params& p, const State& s, uint64_t step) {
    if (s.updated == 0) return true;
    if (p.mean > 0) return step - s.updated >= kEvery;
    return risen(s) || step - s.updated >= kEvery + (s.last.front() / 2 > kHigh ? kRisen - 1 : 0);
  }

  /// The faster of the last two steps; both are on what holds now.
  static double least_risen(const State& s) {
    return *std::min_element(s.last.begin(), s.last.begin() + kRisen);
  }
  static bool risen(const State& s) { return least_risen(s) / 2 > kHigh; }

  /// Halves; once the target stands, as often as the faster of two risen steps needs.
  static void fall(const Position& at, State& s, uint64_t step, bool learning, Move& move) {
    if (at.value == least(at.range)) {
      s.slowdown = 0;  // what is left to see is the end of it, which r would put off
      return;
    }
    const bool far = risen(s) && !learning;
    const double from = amount(at.range, at.value);
    if (s.passed * kGrown < from) {
      s.knee = std::min(s.knee, s.passed);
    } else if (far) {
      s.knee = from;
    }
    double left = far ? least_risen(s) : trend(s);
    do {
      move.value = shrunk(at.range, move.value, 0.5);
      left /= 2;
    } while (far && left > kHigh);
    move.reason = Reason::slow;
    // A time falls with what is sent. Until the new setting holds, reports are on the old one.
    s.slowdown = far ? 0 : left;
    s.settled = step + kDelay + 1;
    s.seen = s.settled - 1;
    s.last.fill(0);
  }

  /// Before the target stands nothing grows.
  static void decide(const Position& at, State& s, const Observation& seen, bool learning,
                     Move& move) {
    move.slowdown = risen(s) ? least_risen(s) : trend(s);
    if (risen(s) || trend(s) > kHigh) {
      fall(at, s, seen.step, learning, move);
      return;
    }
    if (slowest(s) <= kHigh) s.passed = amount(at.range, at.value);
    if (trend(s) < kLow && !learning) {
      if (at.value == most(at.range)) {
        if (at.may_turn && dense_fits(at, s, seen))
          switch_path(s, seen.step, move, true, Reason::dense);
        return;
      }
      const double back = std::clamp(s.knee / amount(at.range, at.value) - 1, 0.0, 1.0);
      const double next = grown(at.range, at.value, std::max(back, room(s)));
      // A step of an integer may be a large one: none that would be taken back.
      const double growth = amount(at.range, next) / amount(at.range, at.value);
      const bool known = amount(at.range, next) <= s.knee;
      if (!known && trend(s) * growth > kHigh) return;
      s.slowdown = trend(s);
      move.value = next;
      move.reason = Reason::fast;
    }
  }

  static double slowest_of_last(const State& s) {
    return *std::max_element(s.last.begin(), s.last.end());
  }
  /// r, or the slowest of the last steps where all of them say that r is out of date.
  static double trend(const State& s) {
    const double slowest = slowest_of_last(s);
    return s.last.back() > 0 && slowest <= kEmpty ? slowest : s.slowdown;
  }
  static double slowest(const State& s) { return std::max(trend(s), slowest_of_last(s)); }

  /// Factor by which more may be sent: a tenth more, or what r and each of the last steps leave of
  /// the target, since a time grows by at most the bytes sent; at most twice.
  static double room(const State& s) {
    return s.last.back() > 0 ? std::clamp(1 / slowest(s) - 1, 0.1, 1.0) : 0.1;
  }

  /// The time now, with the bytes of float32 instead of this rule's.
  static bool dense_fits(const Position& at, const State& s, const Observation& seen) {
    if (at.range.dense_bytes == 0) return false;
    const uint64_t own = at.range.most_bytes == 0 ? seen.bytes : at.range.most_bytes;
    const uint64_t others = seen.bytes > own ? seen.bytes - own : 0;
    const double time = at.history.predict(seen.step, others + at.range.dense_bytes);
    return time > 0 && time <= s.target;
  }

  static void switch_path(State& s, uint64_t step, Move& move, bool uncompressed, Reason reason) {
    move.uncompressed = uncompressed;
    move.reason = reason;
    s.settled = step + kEvery;
    s.updated = step;
    s.slowdown = 0;
    s.last.fill(0);
  }

  /// The value of an update in the mean: at most twice the mean, or a stretch of large values would
  /// have to be repeated when it leaves the window.
  static double most_credit(const Params& p, const Range& range) {
    return std::min(2 * amount(range, p.mean), amount(range, most(range)));
  }
  static double credit(const Params& p, const Range& range, double sent) {
    return std::min(sent, most_credit(p, range));
  }

  static void keep_mean(const Params& p, const Position& at, State& s, Move& move) {
    double sum = 0;
    for (std::size_t i = 0; i < kWindow; ++i) sum += i == s.place ? 0 : s.sent[i];
    const double floor = kWindow * amount(at.range, p.mean) - sum;
    if (!move.uncompressed && amount(at.range, move.value) < floor) {
      move.value = value_of(at.range, floor);
      move.reason = Reason::mean;
    }
    s.sent[s.place] = credit(p, at.range, amount(at.range, move.value));
    s.place = (s.place + 1) % kWindow;
  }
};

}  // namespace laconic::control

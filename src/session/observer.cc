// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/observer.h"

#include <algorithm>
#include <cmath>

namespace laconic::session {

using control::Duration;
using control::Ratio;
using control::Report;

namespace {
constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
}  // namespace

void Observer::begin_step(uint64_t step, double now, uint16_t settings) noexcept {
  if (any_step_) {
    // Nothing takes no time: the clock stands, or it went back, and what it was before is no bound.
    const Sums& s = now_;
    ended_[ended_count_++ % kKept] = {
        .network = s.batches && s.network > 0 ? s.network : kUnknown,
        .encode = s.encode,
        .decode = s.decode,
        .step = now > began_ ? now - began_ : kUnknown,
        .residual = s.sampled ? std::sqrt(s.residual / s.gradient) : kUnknown};
    compose();
    if ((s.batches && !(s.network > 0)) || now < began_) last_completed_ = -HUGE_VAL;
  }
  now_ = {};
  began_ = now;
  step_ = step;
  settings_ = settings;
  any_step_ = true;
}

void Observer::compose() noexcept {
  report_.report = {.network = Duration::of(median(&Ended::network)),
                    .encode = Duration::of(median(&Ended::encode)),
                    .decode = Duration::of(median(&Ended::decode)),
                    .step = Duration::of(median(&Ended::step)),
                    .residual = Ratio::of(median(&Ended::residual)),
                    .settings = settings_};
  report_.step = step_;
}

/// The lower one of two.
double Observer::median(double Ended::*what) const noexcept {
  std::array<double, kKept> known;
  size_t count = 0;
  for (const Ended& e : std::span(ended_).first(std::min<uint64_t>(ended_count_, kKept))) {
    if (e.*what >= 0) known[count++] = e.*what;
  }
  if (count == 0) return kUnknown;
  const auto middle = known.begin() + static_cast<std::ptrdiff_t>((count - 1) / 2);
  std::nth_element(known.begin(), middle, known.begin() + static_cast<std::ptrdiff_t>(count));
  return *middle;
}

void Observer::carried() noexcept {
  due_ = ended_count_ != 0;
  if (due_) ++report_.turn;
  told_ = static_cast<double>(ended_count_);
  ended_count_ = 0;
}

void Observer::batch(const Timing& timing) noexcept {
  const double taken = timing.completed - std::max(timing.issued, last_completed_);
  // A clock that jumps, or a driver that does not know.
  const bool known = timing.completed >= timing.issued && std::isfinite(taken);
  now_.batches = true;
  now_.network += known ? std::max(taken, 0.0) : std::numeric_limits<double>::quiet_NaN();
  last_completed_ = known ? std::max(timing.completed, last_completed_) : -HUGE_VAL;
}

void Observer::norms(double residual, double gradient) noexcept {
  now_.residual += residual;
  now_.gradient += gradient;
  now_.sampled = true;
}

void Observer::heard(const collective::HeardReports& heard, uint32_t world) noexcept {
  if (!due_) return;
  due_ = false;
  const auto silent = std::ranges::count_if(heard.reports, &Report::missing);
  missing_ += heard.reports.empty() ? world : static_cast<uint64_t>(silent);
  const Duration agreed = control::agreed_network(heard.reports);
  const Duration own = report_.report.network;
  network_ += told_ * agreed.value();
  if (!agreed.missing() && !own.missing())
    straggler_ += told_ * std::max(own.value() - agreed.value(), 0.0);
}

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/observer.h"

#include <algorithm>
#include <cmath>

namespace laconic::session {

using control::Duration;
using control::Ratio;
using control::Report;

void Observer::begin_step(uint64_t step, double now, uint16_t settings) noexcept {
  due_ = any_step_;
  if (any_step_) {
    const Sums& s = now_;
    report_.report = {
        .network = s.batches ? Duration::of(s.network) : Duration(),
        .encode = Duration::of(s.encode),
        .decode = Duration::of(s.decode),
        .step = Duration::of(now - began_),
        .residual = s.sampled ? Ratio::of(std::sqrt(s.residual / s.gradient)) : Ratio(),
        .settings = settings_};
    report_.step = step_;
    ++report_.turn;
  }
  now_ = {};
  began_ = now;
  step_ = step;
  settings_ = settings;
  any_step_ = true;
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
  network_ += agreed.value();
  if (!agreed.missing() && !own.missing())
    straggler_ += std::max(own.value() - agreed.value(), 0.0);
}

}  // namespace laconic::session

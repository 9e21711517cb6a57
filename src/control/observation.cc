// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/observation.h"

#include <algorithm>

namespace laconic::control {
namespace {

constexpr double kDay = 86400;

/// NaN, infinity and what is negative count as nothing.
double amount(double x) noexcept { return x > 0 && x < 1e12 ? x : 0; }

Observation of_step(uint64_t step, std::size_t reports, uint64_t bytes) noexcept {
  Observation seen;
  seen.step = step;
  seen.bytes = bytes;
  seen.reports = static_cast<uint32_t>(reports);
  return seen;
}

void add(const Figures& rank, Observation& seen) noexcept {
  if (!plausible(rank.network_s) || !plausible(rank.step_s)) {
    ++seen.missing;
    return;
  }
  const bool first = seen.network_s == 0;
  seen.network_s = first ? rank.network_s : std::min(seen.network_s, rank.network_s);
  seen.step_s = first ? rank.step_s : std::min(seen.step_s, rank.step_s);
  seen.slowest_s = std::max(seen.slowest_s, rank.network_s);
  seen.encode_s = std::max(seen.encode_s, amount(rank.encode_s));
  seen.decode_s = std::max(seen.decode_s, amount(rank.decode_s));
  seen.residual_ratio = std::max(seen.residual_ratio, amount(rank.residual_ratio));
}

}  // namespace

bool plausible(double seconds) noexcept { return seconds > 0 && seconds < kDay; }

Observation observe(uint64_t step, std::span<const Figures> ranks, uint64_t bytes) noexcept {
  Observation seen = of_step(step, ranks.size(), bytes);
  for (const Figures& rank : ranks) add(rank, seen);
  return seen;
}

Figures figures_of(const Report& report) noexcept {
  return {report.network.value(), report.encode.value(), report.decode.value(), report.step.value(),
          report.residual.value()};
}

Observation observe(uint64_t step, std::span<const Report> ranks, uint64_t bytes) noexcept {
  Observation seen = of_step(step, ranks.size(), bytes);
  for (const Report& rank : ranks) add(figures_of(rank), seen);
  return seen;
}

}  // namespace laconic::control

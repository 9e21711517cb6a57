// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Observation: what all ranks agree on about a step: the input of every control policy.
#pragma once

#include <cstdint>
#include <span>

#include "control/report.h"

namespace laconic::control {

/// One rank's report, decoded. What was not measured is NaN or 0.
struct Figures {
  double network_s = 0;  ///< in collectives, waiting for others included
  double encode_s = 0;
  double decode_s = 0;
  double step_s = 0;  ///< the whole step
  double residual_ratio = 0;
};

/// Times that a policy may believe: above 0 and below a day, whatever a clock did.
[[nodiscard]] bool plausible(double seconds) noexcept;

struct Observation {
  uint64_t step = 0;          ///< the step in which it is known; it is about an earlier one
  double network_s = 0;       ///< minimum over ranks: the last rank to arrive does not wait
  double slowest_s = 0;       ///< the maximum: the difference is waiting for stragglers
  double step_s = 0;          ///< the minimum over ranks
  double encode_s = 0;        ///< the maximum over ranks
  double decode_s = 0;        ///< the maximum over ranks
  double residual_ratio = 0;  ///< the maximum over ranks
  uint64_t bytes = 0;         ///< received by one rank in the observed step
  uint32_t reports = 0;       ///< that were due; 0: a step without reports, which holds nothing up
  uint32_t missing = 0;       ///< of these, missing or senseless

  /// May a policy decide by it?
  [[nodiscard]] bool usable() const noexcept { return reports > 0 && missing == 0 && bytes > 0; }
  /// Were there reports, and no policy may decide by them?
  [[nodiscard]] bool held() const noexcept { return reports > 0 && !usable(); }
};

/// A report without plausible network and step seconds is missing.
[[nodiscard]] Observation observe(uint64_t step, std::span<const Figures> ranks,
                                  uint64_t bytes) noexcept;

/// The figures of a report; missing ones are 0.
[[nodiscard]] Figures figures_of(const Report& report) noexcept;
[[nodiscard]] Observation observe(uint64_t step, std::span<const Report> ranks,
                                  uint64_t bytes) noexcept;

}  // namespace laconic::control

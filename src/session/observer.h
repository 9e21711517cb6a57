// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Observer: what this rank measures of its steps and reports to the other ranks, and the reports it
// receives. If exchanges of some steps carry no report, the next report has the medians of these
// steps. Reads no clock: times are arguments, in seconds of a monotonic clock.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <span>

#include "collective/exchange/reports.h"
#include "control/report.h"

namespace laconic::session {

/// When a batch went out, and when its last byte was there: the driver's clock. NaN: not known.
struct Timing {
  double issued = std::numeric_limits<double>::quiet_NaN();
  double completed = std::numeric_limits<double>::quiet_NaN();
};

class Observer {
 public:
  /// Steps that are kept until a report includes them.
  static constexpr uint32_t kKept = 64;

  /// Step `step` begins, and the one before it has ended. `settings`: low bits of the hash of those
  /// in force from now on.
  void begin_step(uint64_t step, double now, uint16_t settings = 0) noexcept;
  /// A batch of the step took the network from its issue, or from the end of the batch before it,
  /// to its end.
  void batch(const Timing& timing) noexcept;
  void encode(double seconds) noexcept { now_.encode += seconds; }
  void decode(double seconds) noexcept { now_.decode += seconds; }
  /// Sums of squares over the same elements of residual and gradient.
  void norms(double residual, double gradient) noexcept;

  /// About the step before this one, or all since the last report: medians of what was measured.
  /// Missing in the first.
  [[nodiscard]] const collective::OwnReport& report() const noexcept { return report_; }

  /// An exchange of this step carries report().
  void carried() noexcept;
  /// The exchange that carried report() has ended: what all ranks said, of `world`.
  void heard(const collective::HeardReports& reports, uint32_t world) noexcept;
  /// Failed: no reports were received.
  void lost(uint32_t world) noexcept { heard({}, world); }

  /// Is there a step before this one, about which ranks report?
  [[nodiscard]] bool due() const noexcept { return due_; }

  // Since creation:
  /// Reports that were due, and did not come or said nothing.
  [[nodiscard]] uint64_t missing() const noexcept { return missing_; }
  /// The network's share of this rank's time in collectives,
  [[nodiscard]] double network_seconds() const noexcept { return network_; }
  /// and the wait for ranks that came later.
  [[nodiscard]] double straggler_seconds() const noexcept { return straggler_; }

 private:
  /// A step that has ended; NaN or below 0: not measured.
  struct Ended {
    double network = 0;
    double encode = 0;
    double decode = 0;
    double step = 0;
    double residual = 0;
  };
  /// Sums of the current step.
  struct Sums {
    double network = 0;  // NaN: some batch's times are not known
    bool batches = false;
    double encode = 0;
    double decode = 0;
    double residual = 0;
    double gradient = 0;
    bool sampled = false;
  };

  void compose() noexcept;
  [[nodiscard]] double median(double Ended::*what) const noexcept;

  Sums now_;
  std::array<Ended, kKept> ended_{};  // the last ones
  uint64_t ended_count_ = 0;          // since the last report
  double began_ = 0;
  double last_completed_ = -std::numeric_limits<double>::infinity();
  uint64_t step_ = 0;
  uint16_t settings_ = 0;
  bool any_step_ = false;
  bool due_ = false;  // there is a step before this one, about which ranks report
  double told_ = 0;   // steps that it is about
  collective::OwnReport report_;
  uint64_t missing_ = 0;
  double network_ = 0;
  double straggler_ = 0;
};

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Metrics of an aggregation server over HTTP, in Prometheus's text format. Uses prometheus-cpp if
// the build has it; otherwise a twin returns the reason.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "aggregation/server/server.h"
#include "laconic/error.h"

namespace laconic::tools {

struct WorkerFigures {
  uint64_t lag = 0;       ///< closed sums that it has not acknowledged
  double round_trip = 0;  ///< seconds
};

struct JobFigures {
  uint64_t number = 0;
  aggregation::JobState state = aggregation::JobState::gathering;
  aggregation::JobStats stats;
  uint32_t open = 0, kept = 0;  ///< slots
  std::vector<WorkerFigures> workers;
};

/// A copy, for other threads than the server's.
struct Figures {
  std::vector<JobFigures> jobs;
  aggregation::ServerStats server;
  uint64_t memory = 0;
};
[[nodiscard]] Figures figures_of(const aggregation::Server& server);
[[nodiscard]] std::string_view state_name(aggregation::JobState state) noexcept;

class Metrics {
 public:
  virtual ~Metrics() = default;
  /// Shown from now on.
  virtual void show(Figures figures) = 0;
  /// HOST:PORT that it listens at.
  [[nodiscard]] virtual const std::string& address() const = 0;
};

/// `address`: HOST:PORT; port 0: any.
Result<std::unique_ptr<Metrics>> open_metrics(const std::string& address);
/// "": this build has metrics; else why not.
[[nodiscard]] std::string_view why_no_metrics() noexcept;

}  // namespace laconic::tools

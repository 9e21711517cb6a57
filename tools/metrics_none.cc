// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The twin of metrics_prometheus.cc.
#include "metrics.h"

namespace laconic::tools {

std::string_view why_no_metrics() noexcept {
  return "this build has no prometheus-cpp (Debian and Ubuntu: prometheus-cpp-dev)";
}

Result<std::unique_ptr<Metrics>> open_metrics(const std::string&) {
  return Error{Errc::unsupported, "--metrics: " + std::string(why_no_metrics()),
               "build the command where it is installed, or remove --metrics"};
}

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "error_metrics.h"

#include <algorithm>
#include <cmath>

namespace laconic::tools {

ErrorMetrics compare(std::span<const float> original, std::span<const float> decoded) {
  double xx = 0, yy = 0, xy = 0, dd = 0, largest = 0;
  for (std::size_t i = 0; i < original.size(); ++i) {
    const double x = original[i], y = decoded[i];
    xx += x * x;
    yy += y * y;
    xy += x * y;
    dd += (x - y) * (x - y);
    largest = std::max(largest, std::fabs(x - y));
  }
  ErrorMetrics metrics;
  metrics.relative_l2 = dd == 0 ? 0 : std::sqrt(dd / xx);
  metrics.cosine = xx == 0 && yy == 0 ? 1 : xx == 0 || yy == 0 ? 0 : xy / std::sqrt(xx * yy);
  metrics.max_abs = largest;
  return metrics;
}

Json to_json(const ErrorMetrics& metrics) {
  return {{"relative_l2", metrics.relative_l2},
          {"cosine", metrics.cosine},
          {"max_abs", metrics.max_abs}};
}

}  // namespace laconic::tools

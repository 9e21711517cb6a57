// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "json.h"

namespace laconic::tools {

/// Three measures, because each has a blind spot: the relative error hides a few ruined elements,
/// the cosine hides a wrong scale, and the largest error says nothing about the rest.
struct ErrorMetrics {
  double relative_l2 = 0;  ///< |x − y| / |x|; 0 when both are zero
  double cosine = 1;       ///< x·y / (|x||y|); 1 when both are zero
  double max_abs = 0;      ///< max |x_i − y_i|
};

ErrorMetrics compare(std::span<const float> original, std::span<const float> decoded);
Json to_json(const ErrorMetrics& metrics);

}  // namespace laconic::tools

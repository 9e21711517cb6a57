// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/sidco_fit.h"

#include <algorithm>
#include <cmath>

namespace laconic::codecs::sidco {
namespace {

constexpr double kLaterParts = 16;

}  // namespace

uint32_t max_stages(double delta) {
  const double stages = std::ceil(std::log(delta) / std::log(0.5));
  return static_cast<uint32_t>(std::clamp(stages, 1.0, double{kMostStages}));
}

uint32_t fixed_stages(double delta) {
  const double later = std::round(std::log(kFirstRatio / delta) / std::log(kLaterParts));
  return 1 + static_cast<uint32_t>(std::max(later, 0.0));
}

}  // namespace laconic::codecs::sidco

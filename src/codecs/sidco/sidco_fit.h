// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The mathematics of SIDCo, which the device shares (kernels/sidco/sidco_elements.h), and the
// number of stages that a ratio takes.
#pragma once

#include <cstdint>

#include "kernels/sidco/sidco_elements.h"

namespace laconic::codecs::sidco {

using kernels::sidco::Adaptation;
using kernels::sidco::first_threshold;
using kernels::sidco::gamma_fit;
using kernels::sidco::in_band;
using kernels::sidco::inverse_upper_gamma;
using kernels::sidco::kFirstRatio;
using kernels::sidco::kNoShape;
using kernels::sidco::Law;
using kernels::sidco::Mode;
using kernels::sidco::Moments;
using kernels::sidco::pareto_fit;
using kernels::sidco::Shape;
using kernels::sidco::tail_threshold;
using kernels::sidco::Threshold;
using kernels::sidco::threshold_at;
using kernels::sidco::threshold_from;
using kernels::sidco::Totals;
using kernels::sidco::upper_gamma;

inline constexpr uint32_t kMostStages = 30;
/// Stages from which a ratio δ gains nothing: ceil(ln δ / ln ½), from 1 to kMostStages.
[[nodiscard]] uint32_t max_stages(double delta);

/// Stages for a ratio δ without adaptation: after the first, each keeps about 1/16.
[[nodiscard]] uint32_t fixed_stages(double delta);

}  // namespace laconic::codecs::sidco

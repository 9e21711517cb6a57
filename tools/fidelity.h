// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The errors of a spec on one gradient: laconic verify --spec.
#pragma once

#include <cstdint>
#include <string_view>

#include "files.h"
#include "json.h"
#include "laconic/error.h"

namespace laconic::tools {

/// x is the gradient, y what one encoding of it without feedback decodes to. ȳ is the mean of what
/// `steps` steps of that same gradient decode to, with the spec's own memory between them.
struct Fidelity {
  double ratio = 0;         ///< bytes of x / bytes of the payload, without the frame's header
  double cosine = 0;        ///< x·y / (|x||y|); 0 where y is zero
  double nmse = 0;          ///< |x − y|² / |x|²
  double max_error = 0;     ///< max |x_i − y_i|
  double bias = 0;          ///< x·y / |x|² − 1: below 0 where y is shorter along x
  double steady_ratio = 0;  ///< bytes of x / mean bytes of a step's payload
  double steady_nmse = 0;   ///< |x − ȳ|² / |x|²
};

/// A line on each figure: what it is, and what it does not see.
std::string_view fidelity_help();

/// The spec's error; invalid_argument for a gradient that is empty or zero, non_finite for one that
/// holds NaN or infinity; what encoding refuses.
Result<Fidelity> fidelity_of(std::string_view spec, const FileTensor& gradient, uint32_t steps);
Json to_json(const Fidelity& fidelity);

}  // namespace laconic::tools

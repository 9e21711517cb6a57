// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums of lanes as engines take them: in the lanes' own type, rounded after each addition.
#pragma once

#include <cstdint>

#include "laconic/dtype.h"

namespace laconic::engines {

/// total[i] += x[i] for `count` lanes. No alignment is needed.
void add_lanes(DType type, uint8_t* total, const uint8_t* x, uint64_t count) noexcept;
/// total[i] = total[i] * of_total + x[i] * of_x for `count` lanes of float32, rounded after each
/// operation. No alignment is needed.
void add_scaled_lanes(uint8_t* total, float of_total, const uint8_t* x, float of_x,
                      uint64_t count) noexcept;
/// x[i] *= factor for `count` lanes of float32. No alignment is needed.
void scale_lanes(uint8_t* x, float factor, uint64_t count) noexcept;

}  // namespace laconic::engines

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by thc on the CPU and on the device: limits, norms, and Work::kept of a unit: maxima (u16)
// and ranges (f32) of its blocks, and whether round 0 has left this rank's norms among the maxima.
#pragma once

#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "kernels/rotate/grid.h"
#include "laconic/bytes.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

/// Blocks with a larger norm are refused: nothing overflows, whatever p is.
inline constexpr float kMostNorm = 0x1p116F;

[[nodiscard]] LACONIC_HOST_DEVICE inline float norm_of_squares(double squares) noexcept {
  return static_cast<float>(std::sqrt(squares));
}
/// The upper half of a float, rounded up: orders like the norms.
[[nodiscard]] constexpr uint16_t short_norm(float norm) noexcept {
  return static_cast<uint16_t>((float_bits(norm) + 0xFFFFU) >> 16);
}
/// Otherwise all ranks have zeros in the block, or nearly.
[[nodiscard]] LACONIC_HOST_DEVICE inline bool codes_mean_something(float range) noexcept {
  return range >= kTinyRange;
}
/// Offset of the ranges in Work::kept.
[[nodiscard]] constexpr uint64_t thc_ranges_at(uint64_t blocks) noexcept {
  return round_up(blocks * sizeof(uint16_t), 64);
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Arithmetic of @NAME@ for one block or one element, on the CPU and on GPUs.
#pragma once

#include <cstdint>
#include <limits>

#include "base/host_device.h"

namespace laconic::kernels {

inline constexpr uint64_t k@TYPE@ScaleBytes = 4;
/// Lanes of the sum over a block: lane l adds elements l, l + 32, …. They are then folded.
inline constexpr uint32_t k@TYPE@Lanes = 32;

/// `sum`: of the magnitudes of n elements.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr float @NAME@_scale(double sum, uint64_t n) {
  return static_cast<float>(sum / static_cast<double>(n));
}
/// Finite, not negative.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr bool @NAME@_scale_is_valid(float scale) {
  return scale >= 0 && scale <= std::numeric_limits<float>::max();
}
/// A block's bytes, and where they begin. Every block but the last has `block` elements.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t @NAME@_block_bytes(uint64_t n) {
  return k@TYPE@ScaleBytes + (n + 7) / 8;
}
[[nodiscard]] LACONIC_HOST_DEVICE constexpr uint64_t @NAME@_bytes(uint64_t n, uint32_t block) {
  const uint64_t rest = n % block;
  return n / block * @NAME@_block_bytes(block) + (rest == 0 ? 0 : @NAME@_block_bytes(rest));
}

}  // namespace laconic::kernels

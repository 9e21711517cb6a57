// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Indices and values element by element: the reference, and the tails of the vector loops.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/rotate/grid.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

/// The factor of y, and the largest magnitude of the product.
struct GridPosition {
  float factor = 0;
  float most = 0;

  LACONIC_HOST_DEVICE GridPosition(float range, uint32_t g) noexcept
      : factor(32768.0F * static_cast<float>(g) / range), most(32768.0F * static_cast<float>(g)) {}

  /// Adding it to a product gives 2^23 + U, whose low bits are U.
  [[nodiscard]] LACONIC_HOST_DEVICE float magic() const noexcept { return 0x1p23F + most; }
  /// U of y.
  [[nodiscard]] LACONIC_HOST_DEVICE uint32_t of(float y) const noexcept {
    const float product = y * factor;
    const float low = product > -most ? product : -most;
    const float clamped = low < most ? low : most;
    return float_bits(clamped + magic()) & 0x7FFFFFU;
  }
};

/// The number of the position's Grid::cell.
[[nodiscard]] constexpr uint32_t grid_cell(uint32_t position) noexcept {
  return position >> 16 & (kGridPositions - 1);
}
/// `r`: 16 random bits, the lowest one set.
[[nodiscard]] constexpr uint32_t index_in_cell(uint32_t cell, uint32_t position,
                                               uint32_t r) noexcept {
  const uint32_t gap = cell & 63U, offset = cell >> 6 & 63U, z = cell >> 12;
  return z + (r * gap < (offset << 16 | (position & 0xFFFFU)) ? 1U : 0U);
}
[[nodiscard]] inline uint32_t grid_index(const Grid& grid, uint32_t position, uint32_t r) noexcept {
  return index_in_cell(grid.cell[grid_cell(position)], position, r);
}

/// Elements that share 8 blocks of Philox.
inline constexpr uint32_t kGridGroup = 128;

/// The block of Philox that element e of a parameter draws from.
[[nodiscard]] constexpr uint64_t grid_counter(uint64_t e) noexcept {
  return e / kGridGroup * 8 + e % 16 / 2;
}
/// Its random bits, from that block.
[[nodiscard]] constexpr uint32_t grid_bits(const RandomBlock& block, uint64_t e) noexcept {
  const uint32_t word = block[2 * (e / 32 % 2) + e % 2];
  const uint32_t half = e / 16 % 2 == 0 ? word & 0xFFFFU : word >> 16;
  return (e / 64 % 2 == 0 ? half : (half << 8 | half >> 8) & 0xFFFFU) | 1U;
}
[[nodiscard]] inline uint32_t grid_random(RandomKey key, uint64_t e) noexcept {
  return grid_bits(philox(key, grid_counter(e)), e);
}

/// The value of index z is grid_value(2·T[z] - g, …).
[[nodiscard]] LACONIC_HOST_DEVICE inline float grid_value(int32_t doubled, float scale) noexcept {
  return static_cast<float>(doubled) * scale;
}
[[nodiscard]] LACONIC_HOST_DEVICE inline float value_scale(float range, uint32_t g) noexcept {
  return range / static_cast<float>(g);
}
[[nodiscard]] LACONIC_HOST_DEVICE inline float mean_scale(float range, uint32_t g,
                                                          uint32_t divisor) noexcept {
  return range / static_cast<float>(g * divisor);
}
/// The integer that grid_value takes for a table value, and for a sum of `added` of them.
[[nodiscard]] constexpr int32_t doubled_value(uint32_t value, uint32_t g) noexcept {
  return 2 * static_cast<int32_t>(value) - static_cast<int32_t>(g);
}
[[nodiscard]] constexpr int32_t doubled_sum(uint32_t sum, uint32_t g, uint32_t added) noexcept {
  return 2 * static_cast<int32_t>(sum) - static_cast<int32_t>(added * g);
}
/// The values of all indices.
struct GridValues {
  alignas(64) float of[kMaxTable] = {};

  GridValues(const Grid& grid, float range) noexcept {
    const float scale = value_scale(range, grid.last);
    for (uint32_t z = 0; z < 1U << grid.bits; ++z) {
      of[z] = grid_value(doubled_value(grid.value[z], grid.last), scale);
    }
  }
};

[[nodiscard]] constexpr uint64_t grid_bytes(uint64_t n, uint32_t bits) noexcept {
  return (n * bits + 7) / 8;
}

/// The index that begins at bit `shift` of the upper of two bytes.
[[nodiscard]] constexpr uint32_t code_in_window(uint32_t window, uint32_t shift,
                                                uint32_t bits) noexcept {
  return window >> (16 - shift - bits) & ((1U << bits) - 1);
}
/// Index i of those packed at `codes`; no byte after it is read.
[[nodiscard]] inline uint32_t code_at(const uint8_t* codes, uint32_t bits, uint64_t i) noexcept {
  const uint64_t at = i * bits;
  const auto shift = static_cast<uint32_t>(at % 8);
  uint32_t window = uint32_t{codes[at / 8]} << 8;
  if (shift + bits > 8) window |= codes[at / 8 + 1];
  return code_in_window(window, shift, bits);
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Indices and values element by element: the reference, and the tails of the vector loops.
#pragma once

#include <cstdint>

#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/rotate/grid.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

/// The factor of y, and the largest magnitude of the product.
struct GridPosition {
  float factor = 0;
  float most = 0;

  GridPosition(float range, uint32_t g) noexcept
      : factor(32768.0F * static_cast<float>(g) / range), most(32768.0F * static_cast<float>(g)) {}

  /// Adding it to a product gives 2^23 + U, whose low bits are U.
  [[nodiscard]] float magic() const noexcept { return 0x1p23F + most; }
  /// U of y.
  [[nodiscard]] uint32_t of(float y) const noexcept {
    const float product = y * factor;
    const float low = product > -most ? product : -most;
    const float clamped = low < most ? low : most;
    return float_bits(clamped + magic()) & 0x7FFFFFU;
  }
};

/// `r`: 16 random bits, the lowest one set.
[[nodiscard]] inline uint32_t grid_index(const Grid& grid, uint32_t position, uint32_t r) noexcept {
  const uint32_t cell = grid.cell[position >> 16 & (kGridPositions - 1)];
  const uint32_t gap = cell & 63U, offset = cell >> 6 & 63U, z = cell >> 12;
  return z + (r * gap < (offset << 16 | (position & 0xFFFFU)) ? 1U : 0U);
}

/// Elements that share 8 blocks of Philox.
inline constexpr uint32_t kGridGroup = 128;

/// The random bits of element e of a parameter.
[[nodiscard]] inline uint32_t grid_random(RandomKey key, uint64_t e) noexcept {
  const RandomBlock block = philox(key, e / kGridGroup * 8 + e % 16 / 2);
  const uint32_t word = block[2 * (e / 32 % 2) + e % 2];
  const uint32_t half = e / 16 % 2 == 0 ? word & 0xFFFFU : word >> 16;
  return (e / 64 % 2 == 0 ? half : (half << 8 | half >> 8) & 0xFFFFU) | 1U;
}

/// The value of index z is grid_value(2·T[z] - g, …).
[[nodiscard]] inline float grid_value(int32_t doubled, float scale) noexcept {
  return static_cast<float>(doubled) * scale;
}
[[nodiscard]] inline float value_scale(float range, uint32_t g) noexcept {
  return range / static_cast<float>(g);
}
[[nodiscard]] inline float mean_scale(float range, uint32_t g, uint32_t divisor) noexcept {
  return range / static_cast<float>(g * divisor);
}
/// The values of all indices.
struct GridValues {
  alignas(64) float of[kMaxTable] = {};

  GridValues(const Grid& grid, float range) noexcept {
    const float scale = value_scale(range, grid.last);
    for (uint32_t z = 0; z < 1U << grid.bits; ++z) {
      of[z] = grid_value(2 * int32_t{grid.value[z]} - static_cast<int32_t>(grid.last), scale);
    }
  }
};

[[nodiscard]] constexpr uint64_t grid_bytes(uint64_t n, uint32_t bits) noexcept {
  return (n * bits + 7) / 8;
}

/// Index i of those packed at `codes`; no byte after it is read.
[[nodiscard]] inline uint32_t code_at(const uint8_t* codes, uint32_t bits, uint64_t i) noexcept {
  const uint64_t at = i * bits, shift = at % 8;
  uint32_t window = uint32_t{codes[at / 8]} << 8;
  if (shift + bits > 8) window |= codes[at / 8 + 1];
  return window >> (16 - shift - bits) & ((1U << bits) - 1);
}

}  // namespace laconic::kernels

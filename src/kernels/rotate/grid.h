// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Elements as indices into a table of integers 0 = T[0] < T[1] < … < T[2^bits - 1] = g, the same on
// all ranks, so that sums of T[index] are sums of values. An index stands for the value
// (T[index] - g/2)·2B/g, B being the range. With every operation rounded to float32:
//
//   position  U = y·(32768·g / B), clamped to ±32768·g, plus 32768·g, to the nearest integer, ties
//             to even: 65536 times the place in [0, g]
//   index     z with T[z] <= U/65536 < T[z + 1]; z + 1 if r·gap < U - 65536·T[z], gap being
//             T[z + 1] - T[z] and r an odd number of 16 random bits; the last one at g
//   value     (2·T[index] - g)·(B/g)
//   mean      (2·S - added·g)·(B / (g·divisor)), S being a sum of `added` table values
//
// so an index's mean value is y, clamped to ±B, to (gap + 1)/65536 of a grid step 2B/g.
//
// The random bits of the element with offset e in its parameter: block (e/128)·8 + (e%16)/2 of
// Philox, word 2·((e/32)%2) + e%2, its low half if (e/16)%2 == 0, else its high half, whose bytes
// change places if (e/64)%2 == 1; then the lowest bit is set. So 128 elements share 8 blocks, in an
// order that vectors of 4, 8 or 16 lanes all produce without moving anything across lanes. Of what
// two elements share, each has another byte on top: alone, each has 16 random bits, and their joint
// distribution is off that of independent ones by 1/256.
//
// Indices are packed from a byte's start on, the first one's highest bit first.
#pragma once

#include <cstdint>

#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

/// g; larger ones gain less than 1 %.
inline constexpr uint32_t kMaxGrid = 63;
inline constexpr uint32_t kGridPositions = 64;  ///< of U/65536, rounded down
inline constexpr uint32_t kMaxTable = 16;

/// Ranges below it, and from 2^120 on, are not for quantize: its factors would overflow.
inline constexpr float kTinyRange = 0x1p-100F;

/// A table, with what quantize needs to know about every position.
struct Grid {
  uint32_t bits = 0;
  uint32_t last = 0;  ///< g
  alignas(16) uint8_t value[kMaxTable] = {};
  /// z in the high 4 bits, position - T[z] in 6, gap in the low 6. After g as at g.
  alignas(64) uint16_t cell[kGridPositions] = {};
};

/// `values`: 2^bits values, ascending from 0 to at most kMaxGrid; bits 2 to 4.
[[nodiscard]] constexpr Grid make_grid(uint32_t bits, const uint8_t* values) noexcept {
  Grid grid;
  grid.bits = bits;
  const uint32_t size = 1U << bits;
  for (uint32_t z = 0; z < size; ++z) grid.value[z] = values[z];
  grid.last = values[size - 1];
  for (uint32_t position = 0, z = 0; position < kGridPositions; ++position) {
    while (z + 1 < size && values[z + 1] <= position) ++z;
    const bool inside = z + 1 < size;
    const uint32_t gap = inside ? uint32_t{values[z + 1]} - values[z] : 1;
    const uint32_t offset = inside ? position - values[z] : 0;
    grid.cell[position] = static_cast<uint16_t>(z << 12 | offset << 6 | gap);
  }
  return grid;
}

struct RoundingStream {
  RandomKey key;
  uint64_t first = 0;  ///< offset of the first element in its parameter, a multiple of 128
};

/// For a sum of table values: the number of terms, and the divisor.
struct GridMean {
  uint32_t added = 0;
  uint32_t divisor = 1;
};

struct GridKernels {
  /// Packed indices of y[0, n), n a multiple of 256; kTinyRange <= range < 2^120. `values`
  /// takes what they stand for; null, or y itself. A NaN gets any index.
  void (*quantize)(const float* y, uint32_t n, const Grid& grid, float range, RoundingStream random,
                   uint8_t* codes, float* values);
  /// The values of n packed indices.
  void (*dequantize)(const uint8_t* codes, uint32_t n, const Grid& grid, float range, float* y);
  /// Means of n sums, by lanes of 8 and 16 bits.
  void (*mean8)(const void* lanes, uint32_t n, uint32_t g, GridMean mean, float range, float* y);
  void (*mean16)(const void* lanes, uint32_t n, uint32_t g, GridMean mean, float range, float* y);

  // The rest takes any n, and any table of 2^bits values (16 bytes are read).
  /// lanes = T[index] of n packed indices.
  void (*expand8)(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table,
                  void* lanes);
  void (*expand16)(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table,
                   void* lanes);
  /// lanes += T[index]; a sum beyond the lane wraps.
  void (*add8)(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table, void* lanes);
  void (*add16)(const uint8_t* codes, uint64_t n, uint32_t bits, const uint8_t* table, void* lanes);
  /// expand8 of the first of `count` >= 1 operands and add8 of the others at once.
  void (*sum8)(const uint8_t* const* codes, uint32_t count, uint64_t n, uint32_t bits,
               const uint8_t* table, void* lanes);
  /// add8 of `count` operands at once.
  void (*add_all8)(const uint8_t* const* codes, uint32_t count, uint64_t n, uint32_t bits,
                   const uint8_t* table, void* lanes);
};

const GridKernels& grid_kernels(Isa isa) noexcept;
extern const GridKernels kGridScalar;

}  // namespace laconic::kernels

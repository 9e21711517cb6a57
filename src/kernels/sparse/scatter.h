// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The decoder's side of sparse payloads: unpacking indices of a fixed number of bits, adding values
// at indices, and clearing large targets.
#pragma once

#include <cstdint>

#include "laconic/bytes.h"
#include "laconic/isa.h"

namespace laconic::kernels {

/// Indices are packed without gaps, least significant bit first, `width` <= 32 bits each.
struct PackedIndices {
  const uint8_t* bits = nullptr;
  uint64_t readable = 0;  ///< bytes that may be read from `bits`: at least the packed ones
  uint32_t width = 0;
};

struct ScatterKernels {
  /// out[j] = index first + j, j < n. `first` is a multiple of 8.
  void (*unpack)(const PackedIndices& packed, uint64_t first, uint32_t n, uint32_t* out);
  /// x[0, n) = 0 past the caches: for targets that do not fit there.
  void (*clear_streaming)(float* x, uint64_t n);
};

const ScatterKernels& scatter_kernels(Isa isa) noexcept;
extern const ScatterKernels kScatterScalar;

/// Index i alone, reading nothing outside `readable`.
[[nodiscard]] inline uint32_t packed_index(const PackedIndices& packed, uint64_t i) noexcept {
  const uint64_t bit = i * packed.width;
  const uint64_t byte = bit / 8;
  if (byte >= packed.readable) return 0;  // width 0 and nothing else to read
  uint64_t window = 0;
  const uint64_t left = packed.readable - byte;
  std::memcpy(&window, packed.bits + byte, left < 8 ? left : 8);
  const uint64_t mask = (uint64_t{1} << packed.width) - 1;
  return static_cast<uint32_t>((window >> (bit % 8)) & mask);
}

/// target[index[j]] += weight · value[j], j ascending; `values` are floats at any alignment.
/// Product and sum are rounded on their own. Fetches lines ahead for targets outside the caches.
void scatter_add(float* target, const uint32_t* index, const uint8_t* values, uint32_t n,
                 float weight) noexcept;

}  // namespace laconic::kernels

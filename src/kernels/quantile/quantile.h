// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Exact quantiles by counting, and bins between them. Floats are compared by their image, an
// unsigned integer in the same order: 2^31 plus or minus the bits of the magnitude, so that -0
// equals 0.
//
// Order statistics come from three counts: of the upper 16 bits of every image, then of the next
// 8 bits of those images whose upper bits are those of a wanted rank, then of the last 8.
// Of few elements all images are sorted.
//
// Codes come from thresholds t_1 <= t_2 <= …, images: the code of x is how many are at most its
// image. `base` has the answer for the smallest image with given upper bits; as many binary steps
// follow as the fullest of them needs.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint32_t kQuantileBuckets = 65536;  ///< of upper bits
inline constexpr uint32_t kQuantileRow = 256;        ///< counters of 8 bits
inline constexpr uint32_t kQuantileBins = 256;       ///< at most
inline constexpr uint32_t kQuantileLanes = 8;
inline constexpr uint32_t kQuantileSorted = 4096;  ///< elements that are sorted at most

/// The images of x[0, n) in ascending order; returns the largest absolute bits. `images` and
/// `other` have n places each; all are overwritten.
uint32_t quantile_sort(const float* x, uint64_t n, uint32_t* images, uint32_t* other) noexcept;

struct QuantileBins {
  const uint8_t* base = nullptr;         ///< kQuantileBuckets
  const uint32_t* thresholds = nullptr;  ///< 2·kQuantileBins: bins - 1, then all ones
  uint32_t steps = 0;
  uint32_t bins = 0;
  uint32_t width = 0;  ///< bits of a code, 1 to 8
};

/// A payload: float32 values of the bins, then codes without gaps, bit b of code i at i·width + b.
struct QuantileLayout {
  uint32_t bins = 0;
  uint32_t width = 0;
  uint64_t code_bytes = 0;
};

struct QuantileKernels {
  /// Counts images by their upper 16 bits; returns the largest absolute bits.
  uint32_t (*count_upper)(const float* x, uint64_t n, uint32_t* counts);
  /// Collects the images of x[0, n) for which groups[upper 16 bits] is not 0, in their order;
  /// returns their number. The rest of members[0, n) is overwritten.
  uint64_t (*collect)(const float* x, uint64_t n, const uint16_t* groups, uint32_t* members);
  /// Packs the values of x[0, n), ceil(n·width/8) bytes with zeros after the last. sums[b] becomes
  /// the sum of the elements with value b, in double: element i is added to lane i mod 8, then
  /// lanes are folded 4, 2, 1.
  void (*encode)(const float* x, uint64_t n, const QuantileBins& bins, uint8_t* packed,
                 double* sums);
  /// out_i = ((base + w0·value0_i) + …) for i in [begin, end), begin a multiple of 64; operands are
  /// payloads, at most kQuantileTerms.
  void (*decode)(float* out, Output output, const Weighted* payloads, uint32_t count,
                 QuantileLayout layout, uint64_t begin, uint64_t end);
};

inline constexpr uint32_t kQuantileTerms = 16;

const QuantileKernels& quantile_kernels(Isa isa) noexcept;
extern const QuantileKernels kQuantileScalar;

}  // namespace laconic::kernels

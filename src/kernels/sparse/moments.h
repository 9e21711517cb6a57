// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums over the magnitudes above a threshold: what SIDCo's fits need. Every float sum has one fixed
// association, so that all instruction sets and thread counts give the same bits: chunks of
// kMomentsChunk elements from the unit's start, inside a chunk 64 lanes (lane l adds elements l,
// l + 64, …; an element below the threshold adds 0), folded 32, 16, …, 1.
#pragma once

#include <cstdint>

#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint32_t kMomentsChunk = 1U << 14;
inline constexpr uint32_t kMomentsLanes = 64;

/// Which elements count, those with magnitude_key(x) >= floor, and as what: z = |x|·scale - shift.
struct MomentsInput {
  uint32_t floor = 1;  ///< 1: every non-zero element
  float scale = 1.0F;  ///< a power of two against under- and overflow of the squares
  float shift = 0.0F;  ///< in scaled units
};

/// Moments of one chunk. Fields that a kernel does not promise are unchanged.
struct ChunkMoments {
  float sum = 0;           ///< Σ z
  float square = 0;        ///< Σ z²
  float log_fraction = 0;  ///< Σ log2(m) where |x| = m·2^e, m in [√½, √2)
  int32_t exponent = 0;    ///< Σ e
  uint32_t count = 0;
  uint32_t min_key = 0x7FFFFFFFU;
  uint32_t max_key = 0;
};

/// log2(1 + t) = t·(c0 + t·(c1 + …)) for m = 1 + t in [√½, √2): error below 2.2e-6.
[[nodiscard]] constexpr float log2_coefficient(int i) noexcept {
  constexpr float kOf[6] = {1.4427134990692139F,  -0.7211318612098694F, 0.4793480634689331F,
                            -0.3674902617931366F, 0.32215431332588196F, -0.20658989250659943F};
  return kOf[i];
}
/// Bits of √½: |x| = m·2^e with e = (key - kSqrtHalf) >> 23 and the rest of the bits in m.
inline constexpr int32_t kSqrtHalf = 0x3F3504F3;

struct MomentsKernels {
  /// sum, count, min_key, max_key. n <= kMomentsChunk, in all three.
  void (*mean)(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out);
  /// the same and square
  void (*variance)(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out);
  /// the same as `mean`, and log_fraction and exponent of the unscaled |x|. A denormal counts as
  /// its bits read: log2 between -127 and -126.
  void (*log_mean)(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out);
};

const MomentsKernels& moments_kernels(Isa isa) noexcept;
extern const MomentsKernels kMomentsScalar;

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Random rotation in blocks: y = H·D·x / √d. D flips signs at random, H is Hadamard's matrix in
// Sylvester's order, d a power of two from 256 to 8192. The levels (a, b) -> (a + b, a - b) run
// from distance 1 to distance d/2, each sum and difference in float32; then one product with
// rotation_scale(d), and on the way back the sign.
//
// The sign of the element with offset e in its parameter: bit e % 32 of word (e/32) % 4 of Philox
// block e/128, 1 being minus.
//
// A sum in a transform is at most √d times the block's norm. So nothing overflows below
// kLargestNorm.
#pragma once

#include <cstdint>

#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

inline constexpr uint32_t kSmallestRotation = 256;
inline constexpr uint32_t kLargestRotation = 8192;

/// Norms from here on count as not finite.
inline constexpr float kLargestNorm = 0x1p120F;

struct SignStream {
  RandomKey key;
  uint64_t first = 0;  ///< offset of the block's first element in its parameter, a multiple of 128
};

/// One block each. Elements beyond `count` <= d are zeros.
struct RotateKernels {
  /// Σ (x_i + add_i)², each sum x + add in float32, the squares and their sum in double: 32 virtual
  /// lanes (lane l adds elements l, l + 32, …), folded 16, 8, 4, 2, 1. `add` may be null. Neither
  /// overflows nor loses anything to underflow for finite operands, but where x + add does.
  double (*square_norm)(const float* x, const float* add, uint64_t count);
  /// y[0, d) = H·D·(x + add) / √d; `add` may be null. y is apart from both.
  void (*rotate)(const float* x, const float* add, uint64_t count, uint32_t d, SignStream signs,
                 float* y);
  /// With x = D·H·y / √d: out = weight·x for i < count, or out += weight·x with `add`. y is
  /// overwritten.
  void (*unrotate)(float* y, uint32_t d, SignStream signs, uint64_t count, float weight, bool add,
                   float* out);
  /// residual = (x + add) - D·H·y / √d for i < count; `add` may be null, or residual itself. y is
  /// overwritten.
  void (*remainder)(float* y, uint32_t d, SignStream signs, uint64_t count, const float* x,
                    const float* add, float* residual);
};

const RotateKernels& rotate_kernels(Isa isa) noexcept;
extern const RotateKernels kRotateScalar;

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// 8-bit quantization in blocks. With max = the largest |x| of a block, in float32, every operation
// rounded:
//
//   scale   = max / 127, one step towards 0 if scale·127 would be infinite (max = FLT_MAX alone);
//             0 if max < kInt8Tiny
//   inverse = 127 / max, one step towards 0 if max·inverse would exceed 127; 0 if max < kInt8Tiny
//   nearest     code = x·inverse to the nearest integer, ties to even
//   stochastic  code = floor((f + r) / 2^15), f = x·inverse·2^15 to the nearest integer,
//               r = 15 random bits
//
// so |code| <= 127 always. A block that is not finite gets scale 0 and codes 0.
//
// The random bits of the element with offset e in its parameter: block (e/64)·8 + (e%16)/2 of
// Philox, word 2·((e/32)%2) + e%2, its low 15 bits if (e/16)%2 == 0, else its high 15. So 64
// elements share 8 blocks, in an order that vectors of 4, 8 or 16 lanes all produce without moving
// anything across lanes.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

/// 127 · 2^-126: below it, the scale would be a denormal number, and 127 / max could overflow.
inline constexpr float kInt8Tiny = 0x1.FCp-120F;

/// The largest float whose product with 127 is finite.
inline constexpr float kInt8LargestScale = 0x1.020406p121F;

/// The layout of a payload: values start after the scales.
struct Int8Layout {
  uint32_t block = 256;
  uint64_t codes_at = 0;
};

struct Int8Kernels {
  /// Quantizes x[0, n) from a block's start on: ceil(n / block) scales, n codes (int8). False if an
  /// x is not finite.
  bool (*encode_nearest)(const float* x, uint64_t n, uint32_t block, void* scales, void* codes);
  /// `first` is the offset of x[0] in its parameter.
  bool (*encode_stochastic)(const float* x, uint64_t n, uint32_t block, void* scales, void* codes,
                            RandomKey key, uint64_t first);
  /// out_i = ((base + w0·(code0_i·scale0)) + …) for i in [begin, end), begin a block's start;
  /// operands are payloads. At most kInt8Terms of them.
  void (*decode)(float* out, Output output, const Weighted* payloads, uint32_t count,
                 Int8Layout layout, uint64_t begin, uint64_t end);
  /// Whether one of n bytes is -128, the code that no encoder writes.
  bool (*any_minus_128)(const void* codes, uint64_t n);
};

inline constexpr uint32_t kInt8Terms = 16;

const Int8Kernels& int8_kernels(Isa isa) noexcept;
extern const Int8Kernels kInt8Scalar;

}  // namespace laconic::kernels

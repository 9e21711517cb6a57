// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Natural compression: magnitudes rounded at random to powers of two, by integer arithmetic on the
// bits of a float. With u the bits of x and r = 23 random bits,
//
//   sum  = u + r                   carries into the exponent for mantissa of 2^23 values of r
//   E    = bits 23 .. 30 of sum    the biased exponent of one of the two neighbours
//   code = clamp(E, 18, 145) - 18, bit 7: the sign
//
// so P(up) = mantissa / 2^23 exactly. A code c stands for ±2^((c mod 128) - 109), and for ±0 where
// c mod 128 is 0.
//
// The bits r of the element with offset e in its parameter: if (e/16)%2 == 0 its word (core/
// random_group.h) rotated left by 7, the low 23 bits, else the word's high 23 bits. Of the two that
// share a word each has 16 bits of its own on top, and below them, where they decide once in 65536
// elements, the other one's first seven.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

struct NaturalKernels {
  /// n codes of one byte; `first` is the offset of x[0] in its parameter. False if an x is not
  /// finite.
  bool (*encode)(const float* x, uint64_t n, void* codes, RandomKey key, uint64_t first);
  /// out_i = ((base + w0·value(code0_i)) + …) for i in [begin, end); operands are codes.
  void (*decode)(float* out, Output output, const Weighted* payloads, uint32_t count,
                 uint64_t begin, uint64_t end);
};

const NaturalKernels& natural_kernels(Isa isa) noexcept;
extern const NaturalKernels kNaturalScalar;

}  // namespace laconic::kernels

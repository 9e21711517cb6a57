// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Loops over float spans that the pipeline and most codecs share. Any length, any alignment
// (operands of type void* need not even have a float's); nothing outside [0, n) is read or written.
// Every product and every sum is rounded on its own: all instruction sets give the same bits.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"

namespace laconic::kernels {

struct Scan {
  bool any_nonzero = false;  ///< -0 counts as zero
  bool all_finite = true;
  float max_abs = 0;  ///< of the absolute bits: infinity or NaN when not all finite
};

struct BasicKernels {
  Scan (*scan)(const float* x, uint64_t n);
  /// Stops at the first block with a nonzero element.
  bool (*any_nonzero)(const float* x, uint64_t n);
  /// max |x + y|, by absolute bits like Scan::max_abs.
  float (*max_abs_sum)(const float* x, const float* y, uint64_t n);

  /// max |a·y + b·x| and max |v + (w·u + x)|, as above.
  float (*max_abs_blend)(float a, const float* y, float b, const float* x, uint64_t n);
  float (*max_abs_momentum)(const float* v, float w, const float* u, const float* x, uint64_t n);

  /// out += x
  void (*add)(float* out, const float* x, uint64_t n);
  /// out += w·x
  void (*axpy)(float* out, float w, const float* x, uint64_t n);
  /// out = a·out + b·x
  void (*blend)(float a, float* out, float b, const float* x, uint64_t n);
  /// out *= w
  void (*scale)(float* out, float w, uint64_t n);
  /// out = w·x
  void (*mul)(void* out, float w, const void* x, uint64_t n);
  /// out = ((x0 + x1) + x2 + …)·w over `count` >= 1 rows, in their order.
  void (*sum_rows)(float* out, const void* const* rows, uint32_t count, float w, uint64_t n);
  /// out_i = ((base + w0·d0_i) + w1·d1_i) + … for i in [begin, end); base = out_i for Output::add,
  /// else none (so a single -0 stays -0).
  void (*weighted_sum)(float* out, Output output, const Weighted* terms, uint32_t count,
                       uint64_t begin, uint64_t end);
};

const BasicKernels& basic_kernels(Isa isa) noexcept;
extern const BasicKernels kBasicScalar;

}  // namespace laconic::kernels

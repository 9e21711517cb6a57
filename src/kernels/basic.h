// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Loops over float spans that the pipeline and most codecs share. Any alignment, any length; no
// reads or writes outside [0, n).
#pragma once

#include <cstdint>

#include "laconic/isa.h"

namespace laconic::kernels {

struct Scan {
  bool any_nonzero = false;  ///< -0 counts as zero
  bool all_finite = true;
  float max_abs = 0;  ///< of the absolute bits: infinity or NaN when not all finite
};

struct BasicKernels {
  Scan (*scan)(const float* x, uint64_t n);
  /// out += x
  void (*add)(float* out, const float* x, uint64_t n);
};

const BasicKernels& basic_kernels(Isa isa) noexcept;
extern const BasicKernels kBasicScalar;

}  // namespace laconic::kernels

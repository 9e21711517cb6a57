// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Between float32 and the two 16-bit floats, with the rounding and the special cases of
// laconic/dtype.h. 16-bit sides are untyped: any alignment. Products and sums are float32, each
// rounded on its own.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/dtype.h"
#include "laconic/isa.h"

namespace laconic::kernels {

struct CastKernels {
  /// out = f16(w·x); with `saturate` finite products beyond the range become ±65504, else infinity.
  void (*narrow_f16)(void* out, float w, const float* x, uint64_t n, bool saturate);
  /// out = bf16(w·x)
  void (*narrow_bf16)(void* out, float w, const float* x, uint64_t n);
  /// out_i = ((base + w0·d0_i) + w1·d1_i) + … for i in [begin, end); see
  /// BasicKernels::weighted_sum.
  void (*weighted_sum_f16)(float* out, Output output, const Weighted* terms, uint32_t count,
                           uint64_t begin, uint64_t end);
  void (*weighted_sum_bf16)(float* out, Output output, const Weighted* terms, uint32_t count,
                            uint64_t begin, uint64_t end);
  /// narrow_f16 and narrow_bf16 past the caches, for outputs larger than them.
  void (*stream_f16)(void* out, float w, const float* x, uint64_t n, bool saturate);
  void (*stream_bf16)(void* out, float w, const float* x, uint64_t n);
};

const CastKernels& cast_kernels(Isa isa) noexcept;
extern const CastKernels kCastScalar;

/// out = x, exact; `type` is f16 or bf16.
inline void widen(const CastKernels& k, DType type, float* out, const void* x, uint64_t n) {
  const Weighted term{x, 1.0F};
  (type == DType::f16 ? k.weighted_sum_f16 : k.weighted_sum_bf16)(out, choose_output(false, n * 4),
                                                                  &term, 1, 0, n);
}
/// out = x, rounded; `type` is f16 (finite values beyond its range become infinity) or bf16.
inline void narrow(const CastKernels& k, DType type, void* out, const float* x, uint64_t n) {
  if (type == DType::f16) k.narrow_f16(out, 1.0F, x, n, false);
  if (type == DType::bf16) k.narrow_bf16(out, 1.0F, x, n);
}

}  // namespace laconic::kernels

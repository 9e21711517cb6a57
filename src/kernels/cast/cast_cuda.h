// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The casts on a GPU: C symbols of liblaconic_cuda, which is opened at run time. All pointers are
// device pointers aligned to their elements; `stream` is a cudaStream_t. Calls only enqueue. Same
// bits as kernels/cast/cast.h: both run the functions of laconic/dtype.h. Return 0, or the
// cudaError_t of the launch; kCastNoCuda in a build without CUDA.
#pragma once

#include <cstdint>

namespace laconic::kernels {
inline constexpr int32_t kCastNoCuda = -1;
}  // namespace laconic::kernels

#pragma GCC visibility push(default)
extern "C" {
/// out = f16(w·x), saturating finite products if `saturate` is not 0.
int32_t laconic_cuda_narrow_f16(uint16_t* out, float w, const float* x, uint64_t n,
                                int32_t saturate, void* stream);
/// out = bf16(w·x)
int32_t laconic_cuda_narrow_bf16(uint16_t* out, float w, const float* x, uint64_t n, void* stream);
/// out = w·x, or out += w·x if `add` is not 0; product and sum rounded separately.
int32_t laconic_cuda_widen_f16(float* out, float w, const uint16_t* x, uint64_t n, int32_t add,
                               void* stream);
int32_t laconic_cuda_widen_bf16(float* out, float w, const uint16_t* x, uint64_t n, int32_t add,
                                void* stream);
}  // extern "C"
#pragma GCC visibility pop

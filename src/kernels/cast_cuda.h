// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Casts between fp32 and the two 16-bit floats on the GPU, bit for bit what the functions of
// laconic/dtype.h give on the CPU. Plain C symbols: liblaconic_cuda.so exports them and is opened
// at run time. Where CUDA is not built, cast_no_cuda.cc has the same symbols and every call returns
// LACONIC_CUDA_ABSENT.
//
// in and out are device pointers of n elements, aligned to their type; stream is a cudaStream_t
// (null is the default stream). A call only enqueues. Returns a cudaError_t, 0 is success.
#pragma once

#include <cstdint>

#define LACONIC_CUDA_ABSENT (-1)

#if defined(__GNUC__)
#define LACONIC_CUDA_API __attribute__((visibility("default")))
#else
#define LACONIC_CUDA_API
#endif

extern "C" {

LACONIC_CUDA_API int32_t laconic_cuda_f32_to_f16(const float* in, uint16_t* out, uint64_t n,
                                                 void* stream);
LACONIC_CUDA_API int32_t laconic_cuda_f32_to_bf16(const float* in, uint16_t* out, uint64_t n,
                                                  void* stream);
LACONIC_CUDA_API int32_t laconic_cuda_f16_to_f32(const uint16_t* in, float* out, uint64_t n,
                                                 void* stream);
LACONIC_CUDA_API int32_t laconic_cuda_bf16_to_f32(const uint16_t* in, float* out, uint64_t n,
                                                  void* stream);

}  // extern "C"

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast_cuda.h"

int32_t laconic_cuda_f32_to_f16(const float*, uint16_t*, uint64_t, void*) {
  return LACONIC_CUDA_ABSENT;
}
int32_t laconic_cuda_f32_to_bf16(const float*, uint16_t*, uint64_t, void*) {
  return LACONIC_CUDA_ABSENT;
}
int32_t laconic_cuda_f16_to_f32(const uint16_t*, float*, uint64_t, void*) {
  return LACONIC_CUDA_ABSENT;
}
int32_t laconic_cuda_bf16_to_f32(const uint16_t*, float*, uint64_t, void*) {
  return LACONIC_CUDA_ABSENT;
}

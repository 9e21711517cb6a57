// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast_cuda.h"

using laconic::kernels::kCastNoCuda;

int32_t laconic_cuda_narrow_f16(uint16_t*, float, const float*, uint64_t, int32_t, void*) {
  return kCastNoCuda;
}
int32_t laconic_cuda_narrow_bf16(uint16_t*, float, const float*, uint64_t, void*) {
  return kCastNoCuda;
}
int32_t laconic_cuda_widen_f16(float*, float, const uint16_t*, uint64_t, int32_t, void*) {
  return kCastNoCuda;
}
int32_t laconic_cuda_widen_bf16(float*, float, const uint16_t*, uint64_t, int32_t, void*) {
  return kCastNoCuda;
}

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast.h"
#include "kernels/cast/cast_elements.h"
#include "kernels/core/weighted_sum_scalar.h"

namespace laconic::kernels {
namespace {

void narrow_f16(void* out, float w, const float* x, uint64_t n, bool saturate) {
  for (uint64_t i = 0; i < n; ++i) put<uint16_t>(out, i, encode_f16(w, x[i], saturate));
}

void narrow_bf16(void* out, float w, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) put<uint16_t>(out, i, encode_bf16(w, x[i]));
}

void weighted_sum_f16(float* out, Output output, const Weighted* terms, uint32_t count,
                      uint64_t begin, uint64_t end) {
  weighted_sum_scalar(out, output, terms, count, begin, end, &decode_f16);
}

void weighted_sum_bf16(float* out, Output output, const Weighted* terms, uint32_t count,
                       uint64_t begin, uint64_t end) {
  weighted_sum_scalar(out, output, terms, count, begin, end, &decode_bf16);
}

}  // namespace

constinit const CastKernels kCastScalar{&narrow_f16,        &narrow_bf16, &weighted_sum_f16,
                                        &weighted_sum_bf16, &narrow_f16,  &narrow_bf16};

}  // namespace laconic::kernels

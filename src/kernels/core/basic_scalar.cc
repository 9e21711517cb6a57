// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/core/basic.h"
#include "kernels/core/weighted_sum_scalar.h"

namespace laconic::kernels {
namespace {

uint32_t absolute_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU; }

// Absolute bits order as the magnitudes do, with infinity and NaN on top.
Scan scan(const float* x, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, absolute_bits(x[i]));
  return {bits != 0, bits < 0x7F800000U, std::bit_cast<float>(bits)};
}

bool any_nonzero(const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    if (absolute_bits(x[i]) != 0) return true;
  }
  return false;
}

float max_abs_sum(const float* x, const float* y, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, absolute_bits(x[i] + y[i]));
  return std::bit_cast<float>(bits);
}

float max_abs_blend(float a, const float* y, float b, const float* x, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, absolute_bits(a * y[i] + b * x[i]));
  return std::bit_cast<float>(bits);
}

float max_abs_momentum(const float* v, float w, const float* u, const float* x, uint64_t n) {
  uint32_t bits = 0;
  for (uint64_t i = 0; i < n; ++i) bits = std::max(bits, absolute_bits(v[i] + (w * u[i] + x[i])));
  return std::bit_cast<float>(bits);
}

void blend(float a, float* out, float b, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) out[i] = a * out[i] + b * x[i];
}

void add(float* out, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) out[i] += x[i];
}

void axpy(float* out, float w, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) out[i] += w * x[i];
}

void scale(float* out, float w, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) out[i] *= w;
}

void mul(void* out, float w, const void* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) put<float>(out, i, w * at<float>(x, i));
}

void sum_rows(float* out, const void* const* rows, uint32_t count, float w, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) {
    float sum = at<float>(rows[0], i);
    for (uint32_t r = 1; r < count; ++r) sum += at<float>(rows[r], i);
    out[i] = sum * w;
  }
}

void weighted_sum(float* out, Output output, const Weighted* terms, uint32_t count, uint64_t begin,
                  uint64_t end) {
  weighted_sum_scalar(out, output, terms, count, begin, end, &at<float>);
}

}  // namespace

constinit const BasicKernels kBasicScalar{
    &scan, &any_nonzero, &max_abs_sum, &max_abs_blend, &max_abs_momentum, &add,
    &axpy, &blend,       &scale,       &mul,           &sum_rows,         &weighted_sum};

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/basic.h"

namespace laconic::kernels {
namespace {

Scan scan(const float* x, uint64_t n) {
  uint32_t max_bits = 0;  // absolute bits order as the magnitudes do, with infinity and NaN on top
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t a = std::bit_cast<uint32_t>(x[i]) & 0x7FFFFFFFU;
    max_bits = a > max_bits ? a : max_bits;
  }
  return {max_bits != 0, max_bits < 0x7F800000U, std::bit_cast<float>(max_bits)};
}

void add(float* out, const float* x, uint64_t n) {
  for (uint64_t i = 0; i < n; ++i) out[i] += x[i];
}

}  // namespace

constinit const BasicKernels kBasicScalar{&scan, &add};

}  // namespace laconic::kernels

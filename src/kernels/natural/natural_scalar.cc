// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/natural/natural.h"
#include "kernels/natural/natural_elements.h"

namespace laconic::kernels {
namespace {

bool encode(const float* x, uint64_t n, void* codes, RandomKey key, uint64_t first) {
  bool finite = true;
  for (uint64_t i = 0; i < n; ++i) {
    finite = finite && (float_bits(x[i]) & 0x7FFFFFFFU) < 0x7F800000U;
    put<uint8_t>(codes, i, natural_element(x[i], key, first + i));
  }
  return finite;
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count, uint64_t begin,
            uint64_t end) {
  weighted_sum_scalar(out, output, payloads, count, begin, end, &natural_value);
}

}  // namespace

constinit const NaturalKernels kNaturalScalar{&encode, &decode};

}  // namespace laconic::kernels

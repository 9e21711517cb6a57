// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/sparse/scatter.h"

namespace laconic::kernels {
namespace {

void unpack(const PackedIndices& packed, uint64_t first, uint32_t n, uint32_t* out) {
  for (uint32_t j = 0; j < n; ++j) out[j] = packed_index(packed, first + j);
}

void clear_streaming(float* x, uint64_t n) { std::fill_n(x, n, 0.0F); }

}  // namespace

constinit const ScatterKernels kScatterScalar{&unpack, &clear_streaming};

void scatter_add(float* target, const uint32_t* index, const uint8_t* values, uint32_t n,
                 float weight) noexcept {
  constexpr uint32_t kAhead = 32;
  uint32_t j = 0;
  for (; j + kAhead < n; ++j) {
    __builtin_prefetch(target + index[j + kAhead], 1);
    target[index[j]] += weight * load<float>(values + 4 * uint64_t{j});
  }
  for (; j < n; ++j) target[index[j]] += weight * load<float>(values + 4 * uint64_t{j});
}

}  // namespace laconic::kernels

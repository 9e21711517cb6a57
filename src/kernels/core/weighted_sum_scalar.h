// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Element access at any alignment, and the weighted sum one element at a time: the reference, and
// the tails of the vector loops.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/core/output.h"

namespace laconic::kernels {

template <class T>
[[nodiscard]] inline T at(const void* data, uint64_t i) noexcept {
  T value;
  std::memcpy(&value, static_cast<const char*>(data) + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
inline void put(void* data, uint64_t i, T value) noexcept {
  std::memcpy(static_cast<char*>(data) + i * sizeof(T), &value, sizeof(T));
}

/// See BasicKernels::weighted_sum. `decode(data, i)` gives element i of an operand.
template <class Decode>
inline void weighted_sum_scalar(float* out, Output output, const Weighted* terms, uint32_t count,
                                uint64_t begin, uint64_t end, Decode decode) {
  if (count == 0) {
    if (output != Output::add) std::fill(out + begin, out + end, 0.0F);
    return;
  }
  for (uint64_t i = begin; i < end; ++i) {
    const float first = terms[0].weight * decode(terms[0].data, i);
    float sum = output == Output::add ? out[i] + first : first;
    for (uint32_t t = 1; t < count; ++t) sum += terms[t].weight * decode(terms[t].data, i);
    out[i] = sum;
  }
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/sparse/select.h"

namespace laconic::kernels {
namespace {

// Without a branch on the data: at the usual densities it would be mispredicted often.
uint32_t select(const float* x, uint32_t n, uint64_t, uint32_t base, uint32_t floor,
                uint32_t* index, float* value) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; ++i) {
    index[found] = base + i;
    value[found] = x[i];
    found += magnitude_key(x[i]) >= floor ? 1U : 0U;
  }
  return found;
}

uint32_t select_sum(const float* x, const float* y, uint32_t n, uint64_t, uint32_t base,
                    uint32_t floor, uint32_t* index, float* value) {
  uint32_t found = 0;
  for (uint32_t i = 0; i < n; ++i) {
    index[found] = base + i;
    value[found] = x[i] + y[i];
    found += magnitude_key(value[found]) >= floor ? 1U : 0U;
  }
  return found;
}

uint32_t select_added(const float* x, float* y, uint32_t n, uint64_t behind, uint32_t base,
                      uint32_t floor, uint32_t* index, float* value) {
  for (uint32_t i = 0; i < n; ++i) y[i] += x[i];
  return select(y, n, behind, base, floor, index, value);
}

uint64_t count(const float* x, uint64_t n, uint32_t floor) {
  uint64_t found = 0;
  for (uint64_t i = 0; i < n; ++i) found += magnitude_key(x[i]) >= floor ? 1U : 0U;
  return found;
}

void group_max(const float* x, uint64_t n, uint32_t groups, uint32_t* maximum) {
  const uint64_t block = kGroupColumns * group_rows(n, groups);
  std::fill_n(maximum, groups, 0U);
  for (uint64_t begin = 0; begin < n; begin += block, maximum += kGroupColumns) {
    const uint64_t end = std::min(n, begin + block);
    for (uint64_t i = begin; i < end; ++i) {
      uint32_t& most = maximum[i % kGroupColumns];
      most = std::max(most, magnitude_key(x[i]));
    }
  }
}

SignCounts count_signs(const float* x, uint64_t n) {
  SignCounts c;
  for (uint64_t i = 0; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    c.positive += bits - 1 < 0x7FFFFFFFU ? 1U : 0U;
    c.negative += bits > 0x80000000U ? 1U : 0U;
  }
  return c;
}

}  // namespace

constinit const SelectKernels kSelectScalar{&select, &select_sum, &select_added,
                                            &count,  &group_max,  &count_signs};

}  // namespace laconic::kernels

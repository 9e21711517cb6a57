// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Picking elements by magnitude. Magnitudes are compared as integers (the float's bits without the
// sign): the order is the same, it is total (NaN on top, -0 equal to 0), and it does not depend on
// the processor's treatment of denormals.
#pragma once

#include <bit>
#include <cstdint>

#include "laconic/isa.h"

namespace laconic::kernels {

/// |a| < |b| exactly when magnitude_key(a) < magnitude_key(b).
[[nodiscard]] constexpr uint32_t magnitude_key(float x) noexcept {
  return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU;
}

/// Most elements that one call of `select` takes; small enough for the second look at a block to
/// hit the first-level cache.
inline constexpr uint32_t kSelectBlock = 4096;
/// Entries past the last one that `select` may overwrite.
inline constexpr uint32_t kSelectSlack = 16;

/// Elements above and below zero, by the sign bit: NaN has one, zeros count as neither.
struct SignCounts {
  uint64_t positive = 0;
  uint64_t negative = 0;
};

/// Groups of group_max(): its rows' elements, and how many rows share a group.
inline constexpr uint64_t kGroupColumns = 64;
[[nodiscard]] constexpr uint64_t group_rows(uint64_t n, uint32_t groups) noexcept {
  return n == 0 ? 1 : (n - 1) / groups + 1;
}

struct SelectKernels {
  /// Selects the elements of x[0, n), n <= kSelectBlock, whose key is at least `floor`, in
  /// ascending order: base + i to `index`, the element to `value`. Both have capacity for n +
  /// kSelectSlack entries. Returns their number. `behind` elements of the same array follow: they
  /// may be prefetched.
  uint32_t (*select)(const float* x, uint32_t n, uint64_t behind, uint32_t base, uint32_t floor,
                     uint32_t* index, float* value);
  /// The same of the sums x[i] + y[i], each rounded.
  uint32_t (*select_sum)(const float* x, const float* y, uint32_t n, uint64_t behind, uint32_t base,
                         uint32_t floor, uint32_t* index, float* value);
  /// y[i] += x[i], then the same of y. `behind` elements follow in both.
  uint32_t (*select_added)(const float* x, float* y, uint32_t n, uint64_t behind, uint32_t base,
                           uint32_t floor, uint32_t* index, float* value);
  /// How many elements have a key of at least `floor`.
  uint64_t (*count)(const float* x, uint64_t n, uint32_t floor);
  /// maximum[g] = largest key of group g; 0 for an empty group. Elements lie in rows of 64; of each
  /// ceil(n / groups) rows, column c is one group. `groups` is a positive multiple of 64.
  void (*group_max)(const float* x, uint64_t n, uint32_t groups, uint32_t* maximum);
  SignCounts (*count_signs)(const float* x, uint64_t n);
};

const SelectKernels& select_kernels(Isa isa) noexcept;
extern const SelectKernels kSelectScalar;

}  // namespace laconic::kernels

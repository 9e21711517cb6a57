// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Prefetches that stay within what a caller lent.
#pragma once

#include <cstdint>

namespace laconic::kernels {

/// Where a loop over elements below `end` fetches ahead while it is at p: kBytes further on, and
/// never behind the last element: a page there that nobody has touched costs a failed walk of page
/// tables for each line. An array has an element at least.
template <uintptr_t kBytes = 4096>
[[gnu::always_inline]] inline uintptr_t within(const float* p, const float* end) noexcept {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) + kBytes;
  const uintptr_t last = reinterpret_cast<uintptr_t>(end) - sizeof(float);
  return at < last ? at : last;
}

/// prefetch_ahead() where the loop knows its end.
template <uintptr_t kBytes = 4096>
[[gnu::always_inline]] inline void prefetch_within(const float* p, const float* end) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(within<kBytes>(p, end)));
}

}  // namespace laconic::kernels

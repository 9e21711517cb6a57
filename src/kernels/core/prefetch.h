// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Prefetches that stay within what a caller lent.
#pragma once

#include <cstdint>

namespace laconic::kernels {

/// The address that a loop over elements below `end` prefetches while it is at p: kBytes ahead, and
/// never after the last element, because an untouched page there costs a failed page walk per line.
/// An array has at least one element.
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

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Allocations that fail: one file of a test program includes this. Sanitizers have allocators of
// their own: there nothing is defined, and a test asks for LACONIC_ASAN and LACONIC_TSAN.
#pragma once

#include "support/sanitizer.h"

#if !defined(LACONIC_ASAN) && !defined(LACONIC_TSAN)

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace laconic::test {

/// Counts down the allocations of this thread; the one that meets 0 fails, once. -1: none does.
inline thread_local int64_t countdown = -1;
/// Bytes that this thread has requested.
inline thread_local uint64_t taken = 0;

inline bool fails() { return countdown >= 0 && countdown-- == 0; }

inline void* allocate(size_t bytes) {
  taken += bytes;
  void* p = fails() ? nullptr : std::malloc(bytes);
  if (p == nullptr) throw std::bad_alloc();
  return p;
}

}  // namespace laconic::test

void* operator new(size_t bytes) { return laconic::test::allocate(bytes); }
void* operator new[](size_t bytes) { return laconic::test::allocate(bytes); }
void operator delete(void* p) noexcept { std::free(p); }
void operator delete[](void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }
void operator delete[](void* p, size_t) noexcept { std::free(p); }

/// The allocator that arenas call.
extern "C" void* aligned_alloc(size_t alignment, size_t bytes) {
  void* p = nullptr;
  laconic::test::taken += bytes;
  if (laconic::test::fails() || posix_memalign(&p, alignment, bytes) != 0) return nullptr;
  return p;
}

#endif

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/arena.h"

#include <cstdlib>
#include <utility>

#ifdef __linux__
#include <sys/mman.h>
#endif

namespace laconic {
namespace {

constexpr uint64_t kCacheLine = 64;
constexpr uint64_t kHugePage = uint64_t{2} << 20;
constexpr uint64_t kLargest = uint64_t{1} << 62;  // rounding up cannot wrap

uint8_t* allocate(uint64_t bytes, uint64_t alignment) noexcept {
  void* p = std::aligned_alloc(alignment, bytes);
#ifdef __linux__
  // Advice: a kernel that refuses it changes nothing but the speed.
  if (p != nullptr && alignment == kHugePage) (void)madvise(p, bytes, MADV_HUGEPAGE);
#endif
  return static_cast<uint8_t*>(p);
}

}  // namespace

Arena::~Arena() { std::free(data_); }

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), capacity_(std::exchange(other.capacity_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(capacity_, other.capacity_);
  return *this;
}

bool Arena::reserve(uint64_t bytes) noexcept {
  if (bytes <= capacity_) return true;
  if (bytes > kLargest) return false;
  const uint64_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  const uint64_t rounded = round_up(bytes, alignment);
  uint8_t* fresh = allocate(rounded, alignment);
  if (fresh == nullptr) return false;
  std::free(data_);
  data_ = fresh;
  capacity_ = rounded;
  return true;
}

}  // namespace laconic

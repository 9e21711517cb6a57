// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <span>

#include "laconic/bytes.h"

namespace laconic::conformance {

/// Memory of exactly the requested size, 64-byte aligned (plus `shift` bytes on purpose), between
/// two canaries and filled with a byte of the caller's choice. The second canary starts at the very
/// next byte.
class Guarded {
 public:
  Guarded() : Guarded(0) {}
  explicit Guarded(uint64_t bytes, uint8_t fill = 0xA5, uint64_t shift = 0)
      : size_(bytes), shift_(shift), total_(round_up(2 * kCanary + shift + bytes, kCanary)) {
    memory_.reset(static_cast<uint8_t*>(std::aligned_alloc(kCanary, total_)));
    std::memset(memory_.get(), kCanaryByte, total_);
    if (size_ > 0) std::memset(data(), fill, size_);
  }

  [[nodiscard]] uint8_t* data() const { return memory_.get() + kCanary + shift_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] MutBytes bytes() const { return {data(), size_}; }
  [[nodiscard]] std::span<float> floats() const {
    return {reinterpret_cast<float*>(data()), size_ / sizeof(float)};
  }

  [[nodiscard]] bool intact() const {
    const uint8_t* const end = memory_.get() + total_;
    for (const uint8_t* p = memory_.get(); p < data(); ++p) {
      if (*p != kCanaryByte) return false;
    }
    for (const uint8_t* p = data() + size_; p < end; ++p) {
      if (*p != kCanaryByte) return false;
    }
    return true;
  }

 private:
  static constexpr uint64_t kCanary = 64;
  static constexpr uint8_t kCanaryByte = 0xC7;
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };

  uint64_t size_;
  uint64_t shift_;
  uint64_t total_;
  std::unique_ptr<uint8_t, Free> memory_;
};

/// A copy of `values` between canaries, `shift` bytes off its alignment.
inline Guarded guarded_copy(std::span<const float> values, uint64_t shift = 0) {
  Guarded copy(values.size_bytes(), 0, shift);
  if (!values.empty()) std::memcpy(copy.data(), values.data(), values.size_bytes());
  return copy;
}
inline Guarded guarded_copy(Bytes bytes, uint64_t shift = 0) {
  Guarded copy(bytes.size(), 0, shift);
  if (!bytes.empty()) std::memcpy(copy.data(), bytes.data(), bytes.size());
  return copy;
}

}  // namespace laconic::conformance

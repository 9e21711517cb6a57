// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "laconic/bytes.h"

namespace laconic {

/// Bytes that only grow: what the objects above the codecs lend out call after call. 64-byte
/// aligned; from 2 MiB on aligned to 2 MiB and offered to the kernel as huge pages. New memory is
/// not initialised.
class Arena {
 public:
  Arena() = default;
  ~Arena();
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;

  /// At least `bytes` bytes, or false when the system has no memory (then nothing changed). Growing
  /// keeps no contents and moves the buffer; asking for what is there already costs a comparison.
  [[nodiscard]] bool reserve(uint64_t bytes) noexcept;

  [[nodiscard]] MutBytes bytes() noexcept { return {data_, static_cast<std::size_t>(capacity_)}; }
  [[nodiscard]] uint64_t capacity() const noexcept { return capacity_; }

 private:
  uint8_t* data_ = nullptr;
  uint64_t capacity_ = 0;
};

}  // namespace laconic

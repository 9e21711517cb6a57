// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "laconic/bytes.h"

namespace laconic::codecs {

/// Packs indices of `width` bits each, up to 32, without gaps, from the least significant bit on.
class IndexPacker {
 public:
  IndexPacker(uint8_t* out, uint32_t width) noexcept : out_(out), width_(width) {}

  void append(const uint32_t* index, uint64_t m) noexcept {
    uint64_t pending = pending_;
    uint32_t bits = bits_;
    uint8_t* out = out_;
    for (uint64_t j = 0; j < m; ++j) {
      pending |= uint64_t{index[j]} << bits;
      bits += width_;
      if (bits >= 32) {  // a periodic pattern of the width: well predicted
        store(out, static_cast<uint32_t>(pending));
        out += 4;
        pending >>= 32;
        bits -= 32;
      }
    }
    pending_ = pending;
    bits_ = bits;
    out_ = out;
  }
  /// Moves to entry `first`, a multiple of 8, where bytes begin; before the first append.
  void skip(uint64_t first) noexcept { out_ += first / 8 * width_; }
  /// Writes the last bits: once, when all are appended.
  void finish() noexcept { std::memcpy(out_, &pending_, ceil_div(bits_, 8)); }

 private:
  uint8_t* out_;
  uint32_t width_;
  uint32_t bits_ = 0;  // fewer than 32 between calls
  uint64_t pending_ = 0;
};

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Codes without gaps, bit b of code i at i·bits + b: eight of them are `bits` bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/core/weighted_sum_scalar.h"

namespace laconic::kernels {

inline constexpr uint64_t kByteOnes = 0x0101010101010101U;

/// Values packed per step.
inline constexpr uint64_t kPackedTogether = 8;

[[nodiscard]] constexpr uint64_t low_mask(uint32_t bits) noexcept {
  return bits >= 64 ? ~uint64_t{0} : (uint64_t{1} << bits) - 1;
}
/// `bits` ones at the bottom of every lane of `lane` bits.
[[nodiscard]] constexpr uint64_t lane_mask(uint32_t lane, uint32_t bits) noexcept {
  uint64_t mask = 0;
  for (uint32_t at = 0; at < 64; at += lane) mask |= low_mask(bits) << at;
  return mask;
}

/// Halves of lanes, `used` bits of each: together at the lane's bottom, and apart again.
struct Halves {
  uint64_t low = 0, high = 0, joined = 0;  // masks
  uint32_t shift = 0;

  Halves(uint32_t lane, uint32_t used)
      : low(lane_mask(lane, used)),
        high(low << lane / 2),
        joined(low << used),
        shift(lane / 2 - used) {}
  [[nodiscard]] uint64_t join(uint64_t x) const noexcept { return (x & low) | (x & high) >> shift; }
  [[nodiscard]] uint64_t part(uint64_t x) const noexcept {
    return (x & low) | (x & joined) << shift;
  }
};

/// Moves eight codes of 1 <= w <= 8 bits together, and apart again with their signs. Made once for
/// many.
struct NarrowPacking {
  Halves pair, quad, eight;
  uint64_t sign = 0, extension = 0;

  explicit NarrowPacking(uint32_t w)
      : pair(16, w),
        quad(32, 2 * w),
        eight(64, 4 * w),
        sign(kByteOnes << (w - 1)),
        extension(low_mask(8 - w) << 1) {}

  [[nodiscard]] uint64_t pack(uint64_t codes) const noexcept {
    return eight.join(quad.join(pair.join(codes)));
  }
  [[nodiscard]] uint64_t unpack(uint64_t bits) const noexcept {
    const uint64_t codes = pair.part(quad.part(eight.part(bits)));
    return codes | (codes & sign) * extension;
  }
};

/// The same for four codes of 8 < w < 16 bits.
struct WidePacking {
  Halves pair, quad;
  uint64_t sign = 0, extension = 0;

  explicit WidePacking(uint32_t w)
      : pair(32, w),
        quad(64, 2 * w),
        sign(lane_mask(16, 1) << (w - 1)),
        extension(low_mask(16 - w) << 1) {}

  [[nodiscard]] uint64_t pack(uint64_t codes) const noexcept { return quad.join(pair.join(codes)); }
  [[nodiscard]] uint64_t unpack(uint64_t bits) const noexcept {
    const uint64_t codes = pair.part(quad.part(bits));
    return codes | (codes & sign) * extension;
  }
};

[[nodiscard]] constexpr uint64_t packed_bytes(uint64_t n, uint32_t bits) noexcept {
  return (n * bits + 7) / 8;
}

/// Packs and unpacks by these packings, eight codes by eight. Where the last of them would touch
/// bytes beyond the end, through a copy. (Two loops, because a copy of unknown size is a call.)
template <class Packing>
inline void pack_narrow(const Packing& packing, const int8_t* codes, uint64_t n, uint32_t bits,
                        uint8_t* out) noexcept {
  const uint64_t bytes = packed_bytes(n, bits);
  uint64_t i = 0, to = 0;
  for (; to + 8 <= bytes; i += kPackedTogether, to += bits) {
    put<uint64_t>(out + to, 0, packing.pack(at<uint64_t>(codes + i, 0)));
  }
  for (; i < n; i += kPackedTogether, to += bits) {
    const uint64_t word = packing.pack(at<uint64_t>(codes + i, 0));
    std::memcpy(out + to, &word, std::min<uint64_t>(8, bytes - to));
  }
}
template <class Packing>
inline void pack_wide(const Packing& packing, const int16_t* codes, uint64_t n, uint32_t bits,
                      uint8_t* out) noexcept {
  struct Two {
    uint64_t words[2];
  };
  const auto eight = [&](uint64_t i) {
    const uint64_t low = packing.pack(at<uint64_t>(codes + i, 0));
    const uint64_t high = packing.pack(at<uint64_t>(codes + i, 1));
    return Two{{low | high << 4 * bits, high >> (64 - 4 * bits)}};
  };
  const uint64_t bytes = packed_bytes(n, bits);
  uint64_t i = 0, to = 0;
  for (; to + 16 <= bytes; i += kPackedTogether, to += bits) put<Two>(out + to, 0, eight(i));
  for (; i < n; i += kPackedTogether, to += bits) {
    const Two two = eight(i);
    std::memcpy(out + to, &two, std::min<uint64_t>(16, bytes - to));
  }
}
template <class Packing>
inline void unpack_narrow(const Packing& packing, const uint8_t* packed, uint64_t n, uint32_t bits,
                          int8_t* codes) noexcept {
  const uint64_t bytes = packed_bytes(n, bits);
  uint64_t i = 0, from = 0;
  for (; from + 8 <= bytes; i += kPackedTogether, from += bits) {
    put<uint64_t>(codes + i, 0, packing.unpack(at<uint64_t>(packed + from, 0)));
  }
  for (; i < n; i += kPackedTogether, from += bits) {
    uint64_t word = 0;
    std::memcpy(&word, packed + from, std::min<uint64_t>(8, bytes - from));
    put<uint64_t>(codes + i, 0, packing.unpack(word));
  }
}
template <class Packing>
inline void unpack_wide(const Packing& packing, const uint8_t* packed, uint64_t n, uint32_t bits,
                        int16_t* codes) noexcept {
  const auto eight = [&](uint64_t i, uint64_t low, uint64_t high) {
    put<uint64_t>(codes + i, 0, packing.unpack(low));
    put<uint64_t>(codes + i, 1, packing.unpack(low >> 4 * bits | high << (64 - 4 * bits)));
  };
  const uint64_t bytes = packed_bytes(n, bits);
  uint64_t i = 0, from = 0;
  for (; from + 16 <= bytes; i += kPackedTogether, from += bits) {
    eight(i, at<uint64_t>(packed + from, 0), at<uint64_t>(packed + from, 1));
  }
  for (; i < n; i += kPackedTogether, from += bits) {
    uint64_t words[2] = {0, 0};
    std::memcpy(words, packed + from, std::min<uint64_t>(16, bytes - from));
    eight(i, words[0], words[1]);
  }
}

/// Packs n codes; `codes` has room for the rest of the last eight, which is overwritten with zeros.
inline void pack_codes(int8_t* codes, uint64_t n, uint32_t bits, uint8_t* out) noexcept {
  for (uint64_t i = n; i % kPackedTogether != 0; ++i) codes[i] = 0;
  pack_narrow(NarrowPacking(bits), codes, n, bits, out);
}
inline void pack_codes(int16_t* codes, uint64_t n, uint32_t bits, uint8_t* out) noexcept {
  for (uint64_t i = n; i % kPackedTogether != 0; ++i) codes[i] = 0;
  pack_wide(WidePacking(bits), codes, n, bits, out);
}

/// Unpacks n codes from a byte's start on; `codes` has room for the rest of the last eight.
inline void unpack_codes(const uint8_t* packed, uint64_t n, uint32_t bits, int8_t* codes) noexcept {
  if (bits == 8) {
    std::memcpy(codes, packed, n);
  } else {
    unpack_narrow(NarrowPacking(bits), packed, n, bits, codes);
  }
}
inline void unpack_codes(const uint8_t* packed, uint64_t n, uint32_t bits,
                         int16_t* codes) noexcept {
  if (bits == 16) {
    std::memcpy(codes, packed, 2 * n);
  } else {
    unpack_wide(WidePacking(bits), packed, n, bits, codes);
  }
}

}  // namespace laconic::kernels

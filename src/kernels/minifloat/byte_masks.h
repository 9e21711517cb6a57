// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shuffles of eight bytes by a mask of eight bits: what PEXT and PDEP do where they are not
// microcode, as on Zen 1 and 2.
#pragma once

#include <array>
#include <cstdint>

namespace laconic::kernels {

/// Per mask, places of eight bytes as PSHUFB takes them; 0x80 gives zero.
struct ByteMasks {
  std::array<uint64_t, 256> together;  ///< the wanted bytes, one behind the other
  std::array<uint64_t, 256> apart;     ///< bytes that lie one behind the other, to wanted places
};

constexpr ByteMasks make_byte_masks() noexcept {
  ByteMasks made{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint64_t together = 0x8080808080808080U, apart = together, found = 0;
    for (uint64_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1U) == 0) continue;
      together ^= (uint64_t{0x80} ^ i) << 8 * found;
      apart ^= (uint64_t{0x80} ^ found) << 8 * i;
      ++found;
    }
    made.together[mask] = together;
    made.apart[mask] = apart;
  }
  return made;
}

inline constexpr ByteMasks kByteMasks = make_byte_masks();

}  // namespace laconic::kernels

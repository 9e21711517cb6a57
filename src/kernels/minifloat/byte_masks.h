// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace laconic::kernels {

/// For each mask of eight bits, the positions of its bytes in sequence; zero after the last.
constexpr std::array<uint64_t, 256> make_byte_masks() noexcept {
  std::array<uint64_t, 256> places{};
  for (uint32_t mask = 0; mask < 256; ++mask) {
    uint64_t found = 0;
    for (uint64_t i = 0; i < 8; ++i) {
      if ((mask >> i & 1U) != 0) places[mask] |= i << 8 * found++;
    }
  }
  return places;
}
inline constexpr std::array<uint64_t, 256> kByteMasks = make_byte_masks();

}  // namespace laconic::kernels

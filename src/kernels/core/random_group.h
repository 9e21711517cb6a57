// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which random word an element takes: of the element with offset e in its parameter, word
// 2·((e/32)%2) + e%2 of block (e/64)·8 + (e%16)/2 of Philox. So 64 elements share 8 blocks, and two
// a word, in an order that vectors of 4, 8 or 16 lanes all produce without moving anything across
// lanes.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "laconic/random.h"

namespace laconic::kernels {

inline constexpr uint64_t kRandomGroup = 64;

[[nodiscard]] constexpr uint64_t random_group_counter(uint64_t e) noexcept {
  return e / kRandomGroup * 8 + e % 16 / 2;
}
[[nodiscard]] constexpr uint32_t random_group_word(uint64_t e) noexcept {
  return static_cast<uint32_t>(2 * (e / 32 % 2) + e % 2);
}
/// The word that an element shares with the one 16 places on or before.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint32_t random_word(RandomKey key, uint64_t e) noexcept {
  return philox(key, random_group_counter(e))[random_group_word(e)];
}

/// 15 of its bits.
[[nodiscard]] constexpr uint32_t random_fifteen(uint32_t word, uint64_t e) noexcept {
  return e / 16 % 2 == 0 ? word & 0x7FFFU : word >> 17;
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Counter-based randomness: Philox4x32-10 (Salmon et al., SC 2011). Nothing is sequential: a word
// is a pure function of (key, counter), so cuts, chunks, threads, instruction sets and GPUs cannot
// change it.
#pragma once

#include <array>
#include <cstdint>

namespace laconic {

/// Two words of key. Streams: shared_key for what all ranks must share (random-k's indices,
/// PowerSGD's start); own_key for rounding, which must differ between ranks and between the hops of
/// one exchange.
struct RandomKey {
  uint32_t k0 = 0;
  uint32_t k1 = 0;
  friend bool operator==(const RandomKey&, const RandomKey&) = default;
};

using RandomBlock = std::array<uint32_t, 4>;

/// One Philox4x32-10 block. `counter` is the element's index divided by what one block serves.
[[nodiscard]] constexpr RandomBlock philox(RandomKey key, uint64_t counter,
                                           uint64_t stream = 0) noexcept {
  uint32_t c0 = static_cast<uint32_t>(counter), c1 = static_cast<uint32_t>(counter >> 32);
  uint32_t c2 = static_cast<uint32_t>(stream), c3 = static_cast<uint32_t>(stream >> 32);
  uint32_t k0 = key.k0, k1 = key.k1;
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = static_cast<uint64_t>(c0) * 0xD2511F53U;
    const uint64_t p1 = static_cast<uint64_t>(c2) * 0xCD9E8D57U;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return {c0, c1, c2, c3};
}

/// Key of what all ranks share: a function of (seed, step, parameter) only.
[[nodiscard]] RandomKey shared_key(uint64_t seed, uint64_t step, uint64_t parameter) noexcept;
/// Key of what must differ between ranks and hops.
[[nodiscard]] RandomKey own_key(uint64_t seed, uint64_t step, uint64_t parameter, uint32_t rank,
                                uint32_t hop) noexcept;

}  // namespace laconic

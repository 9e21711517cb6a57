// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/random.h"

namespace laconic {
namespace {

// Different starting points, so that an own key is never the shared key of other inputs by
// construction. Fractional bits of the square roots of 2 and 3.
constexpr uint64_t kSharedDomain = 0x6A09E667F3BCC908U;
constexpr uint64_t kOwnDomain = 0xBB67AE8584CAA73BU;

// Finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014; constants: Stafford's variant 13). A
// bijection of 64 bits.
constexpr uint64_t mix(uint64_t x) noexcept {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

// One input after the other; the odd increment keeps (0, 0, ...) away from the fixed point of mix.
constexpr uint64_t absorb(uint64_t state, uint64_t input) noexcept {
  return mix((state ^ mix(input + 0x9E3779B97F4A7C15U)) + 0x9E3779B97F4A7C15U);
}

constexpr uint64_t absorb_common(uint64_t domain, uint64_t seed, uint64_t step,
                                 uint64_t parameter) noexcept {
  return absorb(absorb(absorb(domain, seed), step), parameter);
}

constexpr RandomKey to_key(uint64_t x) noexcept {
  return {static_cast<uint32_t>(x), static_cast<uint32_t>(x >> 32)};
}

}  // namespace

RandomKey shared_key(uint64_t seed, uint64_t step, uint64_t parameter) noexcept {
  return to_key(absorb_common(kSharedDomain, seed, step, parameter));
}

RandomKey own_key(uint64_t seed, uint64_t step, uint64_t parameter, uint32_t rank,
                  uint32_t hop) noexcept {
  const uint64_t who = static_cast<uint64_t>(hop) << 32 | rank;
  return to_key(absorb(absorb_common(kOwnDomain, seed, step, parameter), who));
}

}  // namespace laconic

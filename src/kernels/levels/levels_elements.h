// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Random levels element by element, and packing: the reference, and the tails of the vector loops.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/levels/levels.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

// ---- steps ----

struct LevelStep {
  float step = 0;
  float factor = 0;
  bool finite = true;
};

/// Of a bucket with this norm. No |x| <= norm gets a code beyond `levels`, and levels·step is
/// finite.
[[nodiscard]] inline LevelStep level_step(float norm, uint32_t levels) noexcept {
  const auto step_down = [](float x) { return bits_float(float_bits(x) - 1); };
  constexpr uint32_t kInfinity = 0x7F800000U;
  if (float_bits(norm) >= kInfinity) return {0, 0, false};
  const auto most = static_cast<float>(levels);
  const float step = norm / most;
  if (step < kTinyStep) return {};
  const float limit = most * 32768.0F;
  const float factor = limit / norm;
  return {float_bits(step * most) >= kInfinity ? step_down(step) : step,
          norm * factor > limit ? step_down(factor) : factor, true};
}

/// Virtual lanes of a sum.
inline constexpr uint32_t kMomentLanes = 32;

/// Folds 8 lanes that are left of 32.
[[nodiscard]] inline double fold_eight(const double* lanes) noexcept {
  const double a = lanes[0] + lanes[4], b = lanes[1] + lanes[5];
  const double c = lanes[2] + lanes[6], d = lanes[3] + lanes[7];
  return (a + c) + (b + d);
}

/// The norm from the sum of squares: at least the largest magnitude, as every rounding on the way
/// keeps the order. Infinite when it is beyond FLT_MAX.
[[nodiscard]] inline float level_norm(double squares) noexcept {
  return static_cast<float>(std::sqrt(squares));
}

// ---- codes ----

/// Adding it rounds to an integer, ties to even, that stands in the low bits.
inline constexpr double kDoubleMagic = 0x1.8p52;

[[nodiscard]] inline int32_t nearest_integer(float f) noexcept {
  return static_cast<int32_t>((static_cast<double>(f) + kDoubleMagic) - kDoubleMagic);
}

/// `r`: 15 random bits. |x·factor| is at most 2^30.
[[nodiscard]] inline int32_t level_code(float x, float factor, uint32_t r) noexcept {
  return (nearest_integer(x * factor) + static_cast<int32_t>(r)) >> 15;
}

/// Bits of a ternary code's share of the step: more than a float has, and a product of up to 63
/// steps still fits 32 bits.
inline constexpr uint32_t kTernaryBits = 25;
inline constexpr float kTernaryOne = 0x1p25F;

/// `r`: so many random bits.
[[nodiscard]] inline int32_t ternary_code(float x, float factor, uint32_t r) noexcept {
  const float f = std::min(std::max(x * factor, -kTernaryOne), kTernaryOne);
  return (nearest_integer(f) + static_cast<int32_t>(r)) >> kTernaryBits;
}

/// The factor of a step, 0 of 0: the step itself is surely rounded to 1.
[[nodiscard]] inline float ternary_factor(float step) noexcept {
  if (step == 0) return 0;
  const float factor = kTernaryOne / step;
  return step * factor < kTernaryOne ? bits_float(float_bits(factor) + 1) : factor;
}

/// Elements that share 8 blocks of Philox.
inline constexpr uint64_t kLevelGroup = 64;

[[nodiscard]] inline uint64_t level_random_counter(uint64_t e) noexcept {
  return e / kLevelGroup * 8 + e % 16 / 2;
}
[[nodiscard]] inline uint32_t level_random_word(uint64_t e) noexcept {
  return static_cast<uint32_t>(2 * (e / 32 % 2) + e % 2);
}
/// The word that an element shares with the one 16 places on or before.
[[nodiscard]] inline uint32_t random_word(RandomKey key, uint64_t e) noexcept {
  return philox(key, level_random_counter(e))[level_random_word(e)];
}
/// The random bits of element e of a parameter.
[[nodiscard]] inline uint32_t level_random(RandomKey key, uint64_t e) noexcept {
  const uint32_t word = random_word(key, e);
  return e / 16 % 2 == 0 ? word & 0x7FFFU : word >> 17;
}
[[nodiscard]] inline uint32_t ternary_random(RandomKey key, uint64_t e) noexcept {
  const uint32_t word = random_word(key, e);
  return (e / 16 % 2 == 0 ? word << 16 | word >> 16 : word) >> (32 - kTernaryBits);
}

// ---- packing: eight codes are `bits` bytes ----

inline constexpr uint64_t kByteOnes = 0x0101010101010101U;

/// Codes that are packed at a time.
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

/// Moves eight codes of 1 < w < 8 bits together, and apart again with their signs. Made once for
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

// ---- decoding ----

[[nodiscard]] inline float level_value(int32_t code, float step) noexcept {
  return static_cast<float>(code) * step;
}

/// The codes of one term in a part of a bucket, and its element i.
template <class Code>
struct BucketCodes {
  const Code* codes = nullptr;
  float step = 0;
};
template <class Code>
[[nodiscard]] inline float bucket_element(const void* part, uint64_t i) noexcept {
  const auto& p = *static_cast<const BucketCodes<Code>*>(part);
  return level_value(p.codes[i], p.step);
}

[[nodiscard]] inline uint32_t pair_at(const void* codes, uint64_t i) noexcept {
  return static_cast<uint32_t>(static_cast<const uint8_t*>(codes)[i / 4]) >> (2 * (i % 4)) & 3U;
}

}  // namespace laconic::kernels

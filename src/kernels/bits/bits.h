// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One bit per element: [x >= 0], so -0 counts as positive. Element i is bit i % 8 of byte i / 8;
// the bits after the last element are zero. A bit decodes to one of two floats.
//
// The sums of the negative and of the other elements have one fixed association: chunks of at most
// kBitsChunk elements, inside a chunk 32 lanes (lane l adds elements l, l + 32, …), folded 16, 8,
// …, 1. A chunk with an element that is not finite, or whose sum overflows, has a sum that is not.
//
// Any alignment; nothing outside the stated spans is touched.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint64_t kBitsChunk = uint64_t{1} << 14;
inline constexpr uint32_t kBitsLanes = 32;

/// Most terms that BitsKernels::decode and ::vote take at once.
inline constexpr uint32_t kBitsTerms = 16;
inline constexpr uint32_t kVoteTerms = 120;

/// Sums of one chunk.
struct BitsSums {
  float negative = 0;      ///< Σ a where a < 0
  float positive = 0;      ///< Σ a where a >= 0
  uint64_t positives = 0;  ///< how many there are
};

/// The values of a bit.
struct BitsValues {
  float zero = -1;  ///< of a bit that is 0: a < 0
  float one = 1;
};

/// One payload's bits, from the first element on that a call decodes, and what they add.
struct BitsTerm {
  const uint8_t* bits = nullptr;
  BitsValues values;
};

struct BitsKernels {
  /// Bits of x. False if an x is not finite.
  bool (*pack)(const float* x, uint64_t n, uint8_t* bits);
  /// Bits and sums of a = x + e (of x where e is null), n <= kBitsChunk.
  BitsSums (*pack_sums)(const float* x, const float* e, uint64_t n, uint8_t* bits);
  /// e = a − value of a's bit, a = x + e.
  void (*keep_rest)(const float* x, float* e, uint64_t n, BitsValues values);
  /// out = (base + value0) + value1 + …, in the order of the terms; base = out for Output::add,
  /// else none: the first value is the start.
  void (*decode)(float* out, Output output, const BitsTerm* terms, uint32_t count, uint64_t n);
  /// out = base + weight · (ones − zeros among `count` bits): what adding ±weight one by one
  /// gives while every sum on the way is a multiple of `weight` that a float holds.
  void (*vote)(float* out, Output output, const uint8_t* const* bits, uint32_t count, float weight,
               uint64_t n);
  /// x = +1 where x >= 0, else −1.
  void (*sign)(float* x, uint64_t n);
};

const BitsKernels& bits_kernels(Isa isa) noexcept;
extern const BitsKernels kBitsScalar;

/// The bit of an element, the value of a bit, and what the value leaves of the element.
[[nodiscard]] constexpr bool bit_of(float a) noexcept { return a >= 0; }
[[nodiscard]] constexpr float value_of(bool bit, const BitsValues& values) noexcept {
  return bit ? values.one : values.zero;
}
[[nodiscard]] constexpr float rest_of(float a, const BitsValues& values) noexcept {
  return a - value_of(bit_of(a), values);
}

/// Bit of element i.
[[nodiscard]] constexpr bool bit_at(const uint8_t* bits, uint64_t i) noexcept {
  return (uint32_t{bits[i / 8]} >> (i % 8) & 1U) != 0;
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// INCEPTIONN's classes: an element is stored in 32, 16 or 8 bits or not at all, by its magnitude.
// With the bound B and h = floor(B/2):
//
//   tag 3   |x| >= 1             float32
//   tag 2   2^-h <= |x| < 1      sign, 15 bits: |x|·2^14 to the nearest integer, ties to even;
//                                stands for c·2^-14
//   tag 1   2^-B <= |x| < 2^-h   sign, 7 bits: floor(|x|·2^(7+h)); stands for (c + 1/2)·2^-(7+h)
//   tag 0   smaller              nothing; 0
//
// All operations are exact but the rounding itself. The error is at most 2^-15 with tag 2 and
// 2^-(8+h) with tag 1, so never more than 2^-B for B up to kInceptionnBound.
//
// Tags lie four to a byte, element i in the bits from 2·(i%4) on of byte i/4. Each class has a
// stream of its own, in the order of the elements.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint32_t kInceptionnBound = 15;

/// Constants that depend on the bound.
struct InceptionnForm {
  uint32_t byte_bits = 0;  ///< 2^-B as float bits
  uint32_t half_bits = 0;  ///< 2^-h
  float byte_scale = 0;    ///< 2^(7+h)
  float byte_step = 0;     ///< 2^-(7+h)
};
InceptionnForm inceptionn_form(uint32_t bound) noexcept;

/// Elements of each class.
struct InceptionnCounts {
  uint64_t full = 0;
  uint64_t half = 0;
  uint64_t byte = 0;
};

/// Output position of each class.
struct InceptionnOut {
  uint8_t* full = nullptr;
  uint8_t* half = nullptr;
  uint8_t* byte = nullptr;
};

/// Input position of each class. Streams do not extend beyond `end`.
struct InceptionnIn {
  const uint8_t* full = nullptr;
  const uint8_t* half = nullptr;
  const uint8_t* byte = nullptr;
  const uint8_t* end = nullptr;
};

struct InceptionnKernels {
  /// Writes the tags of x[0, n), ceil(n/4) bytes with zeros after the last, and counts the classes.
  /// False if an x is not finite.
  bool (*classify)(const float* x, uint64_t n, const InceptionnForm& form, uint8_t* tags,
                   InceptionnCounts* counts);
  /// Appends the fields of x[0, n), and nothing else, to the streams.
  void (*pack)(const float* x, uint64_t n, const InceptionnForm& form, InceptionnOut to);
  /// Counts the classes of n tags.
  InceptionnCounts (*count)(const uint8_t* tags, uint64_t n);
  /// out_i = w·value_i, or out_i + w·value_i for Output::add, of n tags; moves `from` on. Each
  /// product and each sum is rounded.
  void (*unpack)(const uint8_t* tags, uint64_t n, const InceptionnForm& form, InceptionnIn* from,
                 float w, Output output, float* out);
  /// Whether all of n floats, at any alignment, are finite.
  bool (*all_finite)(const void* values, uint64_t n);
};

const InceptionnKernels& inceptionn_kernels(Isa isa) noexcept;
extern const InceptionnKernels kInceptionnScalar;

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Kernels of the codecs that send a level per element: qsgd and terngrad, which round to one of two
// levels at random, and u8, which takes the nearest value of a table. Any length, any alignment;
// nothing outside the stated spans is touched.
//
// Random levels. With a step, what one level is worth:
//
//   level    code = floor((f + r) / 2^15), f = x·factor to the nearest integer, r = 15 random bits,
//            factor = 2^15 / step
//   ternary  code = floor((f + r) / 2^25), f = x·factor to the nearest integer and clamped to
//            ±2^25, r = 25 random bits, factor = 2^25 / step
//
// whose means are x/step, to half of the last bit and to float's own rounding. Of an element's word
// (core/random_group.h), which it shares with the one 16 places on or before, a level takes the low
// 15 bits if (e/16)%2 == 0, else the high 15. A ternary code takes the high 25, and if
// (e/16)%2 == 0 the word's halves change places: each of two elements has another half on top.
#pragma once

#include <cstdint>

#include "kernels/core/output.h"
#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

/// Below these steps everything becomes zero: factor could overflow.
inline constexpr float kTinyStep = 0x1p-110F;
inline constexpr float kTinyTernaryStep = 0x1p-100F;

inline constexpr uint32_t kLevelTerms = 16;

enum class LevelNorm : uint8_t { l2, max };

/// A payload of buckets: steps (f32), then codes of `bits` bits each.
struct BucketLayout {
  uint32_t levels = 127;
  uint32_t bits = 8;  ///< ceil(log2(2·levels + 1))
  uint32_t bucket = 512;
  LevelNorm norm = LevelNorm::l2;
  uint64_t codes_at = 0;
};

/// Sums over a span: 32 virtual lanes (lane l adds elements l, l + 32, …), folded 16, 8, 4, 2, 1.
struct LevelMoments {
  double sum = 0;
  double squares = 0;
  uint32_t max_bits = 0;  ///< largest absolute bits; 0x7F800000 or more if one is not finite
};

/// Rounds values to the levels −1, 0 and 1; what lies beyond ±1 becomes ±1.
struct TernaryRounding {
  float step = 0;  ///< 0 or at least kTinyTernaryStep
  RandomKey key;
  uint64_t first = 0;  ///< offset of x[0] in its parameter
};

struct LevelsKernels {
  /// Codes x[0, n) from a bucket's start on: ceil(n / bucket) steps, n packed codes from a byte's
  /// start on. False if an x is not finite, or a norm beyond FLT_MAX. `first` is the offset of x[0]
  /// in its parameter.
  bool (*encode_buckets)(const float* x, uint64_t n, BucketLayout layout, void* steps, void* codes,
                         RandomKey key, uint64_t first);
  /// out_i = ((base + w0·(code0_i·step0)) + …) for i in [begin, end), begin a bucket's start and a
  /// multiple of 8; operands are payloads, at most kLevelTerms. Not for 8 bits: that is int8.
  void (*decode_buckets)(float* out, Output output, const Weighted* payloads, uint32_t count,
                         BucketLayout layout, uint64_t begin, uint64_t end);
  /// Whether every one of n packed codes lies in [−levels, levels].
  bool (*codes_valid)(const void* codes, uint64_t n, uint32_t bits, uint32_t levels);

  LevelMoments (*moments)(const float* x, uint64_t n);
  /// Codes of x[0, n), a byte each.
  void (*ternary)(const float* x, uint64_t n, TernaryRounding rounding, void* codes);
  /// The same in 2 bits each, from a byte's start on.
  void (*ternary_pairs)(const float* x, uint64_t n, TernaryRounding rounding, void* codes);
  /// bytes[j] = 121 + Σ 3^(4 − i)·rows[i·stride + j] for j < columns.
  void (*pack_digits)(const int8_t* rows, uint64_t stride, uint64_t columns, uint8_t* bytes);
  /// out_i = (base + value0[code0_i]) + … for i in [begin, end), begin a multiple of 64; `data` of
  /// a term is a PairTerm. At most kLevelTerms.
  void (*decode_pairs)(float* out, Output output, const struct PairTerm* terms, uint32_t count,
                       uint64_t begin, uint64_t end);

  /// codes_i = sign(x) · tree_index(|x|·inverse), inverse being that of the largest |x| or less.
  void (*tree_encode)(const float* x, uint64_t n, float inverse, void* codes);
  /// out_i = (base + sign·value0[|code0_i|]) + …; at most kLevelTerms. No code is −128.
  void (*tree_decode)(float* out, Output output, const struct TreeTerm* terms, uint32_t count,
                      uint64_t begin, uint64_t end);
};

/// Codes of 2 bits, and what each of them adds to the output: of 0, 1, (none), −1.
struct PairTerm {
  const void* codes = nullptr;
  float value[4] = {0, 0, 0, 0};
};

inline constexpr uint32_t kTreeValues = 128;

/// Signed codes of a byte, and what each magnitude adds to the output.
struct TreeTerm {
  const void* codes = nullptr;
  alignas(64) float value[kTreeValues] = {};
};

const LevelsKernels& levels_kernels(Isa isa) noexcept;
extern const LevelsKernels kLevelsScalar;

}  // namespace laconic::kernels

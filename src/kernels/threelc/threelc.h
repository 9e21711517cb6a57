// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// 3LC (Lim, Andersen, Kaminsky, arXiv 1802.07389): ternary quantization with error accumulation,
// five digits per byte; kernels/threelc/zero_run.h shortens the runs of the byte of five zeros. A
// tensor of n values is seen as a matrix of five rows of `stride` = ceil(n / 5) columns, row-major;
// byte j holds column j. Kernels work on complete columns: the caller keeps them off the at most
// four columns that reach beyond n. Any alignment; nothing outside the stated spans is touched.
#pragma once

#include <bit>
#include <cstdint>

#include "base/host_device.h"
#include "laconic/isa.h"

namespace laconic::kernels {

inline constexpr uint32_t kDigits = 5;     ///< ternary digits per byte, most significant first
inline constexpr uint8_t kZeroByte = 121;  ///< five zeros: 81 + 27 + 9 + 3 + 1

/// Weights of the digits of a byte.
inline constexpr uint32_t kDigitWeight[kDigits] = {81, 27, 9, 3, 1};

/// Maps values to digits: q = +1 if a > threshold, −1 if a < −threshold, else 0.
struct ThreeLcScale {
  float m = 0;          ///< what one digit is worth: 0 or not below the smallest normal number
  float threshold = 0;  ///< the largest float that is not above m / 2
};

/// Step 2 of the encoder: m = s · max, the maximum given by its absolute bits. False when m
/// overflows or the maximum is not finite.
[[nodiscard]] LACONIC_HOST_DEVICE constexpr bool threelc_scale(float s, uint32_t max_bits,
                                                               ThreeLcScale* scale) noexcept {
  const float largest = std::bit_cast<float>(0x7F7FFFFFU);
  // Below the smallest normal number m / 2 would round, and nothing might ever be sent.
  if (max_bits < 0x00800000U) {
    *scale = {0, largest};
    return true;
  }
  const float m = s * std::bit_cast<float>(max_bits);
  if (!(m <= largest)) return false;
  float half = 0.5F * m;
  if (half + half > m) half = std::bit_cast<float>(std::bit_cast<uint32_t>(half) - 1);
  *scale = {m, half};
  return true;
}

/// One payload's digit bytes and what its digits −1, 0, +1 add to the output.
struct ThreeLcTerm {
  const uint8_t* bytes = nullptr;
  float value[3] = {0, 0, 0};
};

/// Columns that unpack_stream() needs after a call that is not the last one, so that no vector is
/// cut.
inline constexpr uint64_t kStreamFollow = 16;

/// Most terms that unpack() takes at once.
inline constexpr uint32_t kMaxUnpackTerms = 8;

struct ThreeLcKernels {
  /// Largest absolute bits of x + e (of x where e is null): above 0x7F7FFFFF where any is infinite
  /// or NaN. `prefetch`: a hint, on which no bit depends.
  uint32_t (*max_abs_bits)(const float* x, const float* e, uint64_t n, bool prefetch);
  /// bytes[j] = digits of column j of a = x + e, and e = a − m·q. Null e: a = x, nothing is stored.
  /// `fetch_next`: what lies five rows further comes next, and is not in a cache.
  void (*pack)(const float* x, float* e, uint64_t stride, uint64_t columns, ThreeLcScale scale,
               bool fetch_next, uint8_t* bytes);
  /// out[i·stride + j] = (base + value0[digit]) + value1[digit] + …, base = out if `add`, else 0.
  void (*unpack)(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns, float* out,
                 uint64_t stride, bool add);
  /// The same without `add`, with stores past the caches: for outputs that no cache holds. A row is
  /// cut only at addresses that are multiples of a vector: `follow` columns after `columns` may be
  /// written as well, and unless `first`, the columns before the first such address are skipped,
  /// because the call before wrote them.
  void (*unpack_stream)(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns,
                        uint64_t follow, bool first, float* out, uint64_t stride);
};

const ThreeLcKernels& threelc_kernels(Isa isa) noexcept;
extern const ThreeLcKernels kThreeLcScalar;

/// Digit of weight `weight` in a byte: 0, 1, 2 for −1, 0, +1.
[[nodiscard]] constexpr uint32_t digit_of(uint8_t byte, uint32_t weight) noexcept {
  return byte / weight % 3;
}

/// One value: its digit's contribution −1, 0, +1, and a − m·q, which is exact by Sterbenz's lemma,
/// as m/2 < |a| ≤ m.
struct Quantized {
  int32_t q = 0;
  float rest = 0;
};
[[nodiscard]] constexpr Quantized quantize(float a, ThreeLcScale scale) noexcept {
  if (a > scale.threshold) return {1, a - scale.m};
  if (a < -scale.threshold) return {-1, a + scale.m};
  return {0, a};
}

}  // namespace laconic::kernels

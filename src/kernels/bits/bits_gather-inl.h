// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Bits of several payloads by element: a byte has a bit of each of eight. Included by bits_hwy.cc
// after highway.h, once per target.
#if defined(LACONIC_KERNELS_BITS_GATHER_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_BITS_GATHER_INL_H_
#undef LACONIC_KERNELS_BITS_GATHER_INL_H_
#else
#define LACONIC_KERNELS_BITS_GATHER_INL_H_
#endif

#include <array>
#include <cstring>

#include "kernels/core/byte_table-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

using B = hn::ScalableTag<uint8_t>;
using VB = hn::Vec<B>;

/// Payloads whose bits fill a byte.
constexpr uint32_t kGroup = 8;

HWY_INLINE hn::Mask<B> load_bits(const uint8_t* bits, uint64_t at) {
  uint8_t bytes[8] = {};  // LoadMaskBits needs 8 bytes
  std::memcpy(bytes, bits + at / 8, hn::MaxLanes(B()) / 8);
  return hn::LoadMaskBits(B(), bytes);
}

#if LACONIC_BYTE_TABLE
/// The bits of 64 elements from `at` on of at most eight payloads: bit t of a byte is that of
/// payload t. `bits(t)` is where its bits begin.
template <class Bits>
HWY_INLINE __m512i gather_64(const Bits& bits, uint32_t count, uint64_t at) {
  __m512i gathered = _mm512_setzero_si512();
  for (uint32_t t = 0; t < count; ++t) {
    const auto bit = _mm512_set1_epi8(static_cast<char>(1U << t));
    gathered = _mm512_mask_add_epi8(gathered, load_bits(bits(t), at).raw, gathered, bit);
  }
  return gathered;
}

/// The same of 512 elements, 64 a vector, without masks: words of 64 bits are transposed, then
/// bytes, then bits.
template <class Bits>
HWY_INLINE void gather_512(const Bits& bits, uint32_t count, uint64_t at, __m512i gathered[8]) {
  __m512i row[kGroup];
  for (uint32_t t = 0; t < kGroup; ++t) {
    row[t] = t < count ? _mm512_loadu_si512(bits(t) + at / 8) : _mm512_setzero_si512();
  }
  // Words: of the terms 2p and 2p + 1 side by side, then lanes of 128 bits.
  for (uint32_t odd = 0; odd < 2; ++odd) {
    __m512i two[4];
    for (uint32_t p = 0; p < 4; ++p) {
      two[p] = odd == 0 ? _mm512_unpacklo_epi64(row[2 * p], row[2 * p + 1])
                        : _mm512_unpackhi_epi64(row[2 * p], row[2 * p + 1]);
    }
    const __m512i low01 = _mm512_shuffle_i64x2(two[0], two[1], 0x44);
    const __m512i low23 = _mm512_shuffle_i64x2(two[2], two[3], 0x44);
    const __m512i high01 = _mm512_shuffle_i64x2(two[0], two[1], 0xEE);
    const __m512i high23 = _mm512_shuffle_i64x2(two[2], two[3], 0xEE);
    gathered[odd] = _mm512_shuffle_i64x2(low01, low23, 0x88);
    gathered[2 + odd] = _mm512_shuffle_i64x2(low01, low23, 0xDD);
    gathered[4 + odd] = _mm512_shuffle_i64x2(high01, high23, 0x88);
    gathered[6 + odd] = _mm512_shuffle_i64x2(high01, high23, 0xDD);
  }
  // Bytes: 8q + 7 - t is byte q of term t. Bits: a product with the rows of a matrix of 8 by 8, the
  // highest first, of which each of eight unit vectors picks a column.
  static constexpr std::array<uint8_t, 64> kFrom = [] {
    std::array<uint8_t, 64> from{};
    for (uint32_t i = 0; i < 64; ++i) from[i] = static_cast<uint8_t>(8 * (7 - i % 8) + i / 8);
    return from;
  }();
  const __m512i bytes = _mm512_loadu_si512(kFrom.data());
  const __m512i units = _mm512_set1_epi64(static_cast<int64_t>(0x8040201008040201U));
  for (uint32_t j = 0; j < 8; ++j) {
    const __m512i matrix = _mm512_permutexvar_epi8(bytes, gathered[j]);
    // Highway's target does not name GFNI, which its processors have: simd.cc looks for it.
    __asm__("vgf2p8affineqb $0, %2, %1, %0" : "=v"(gathered[j]) : "v"(units), "v"(matrix));
  }
}

/// body(i, bytes) for every 64 of n elements.
template <class Bits, class Body>
HWY_INLINE void for_gathered(const Bits& bits, uint32_t count, uint64_t n, const Body& body) {
  uint64_t i = 0;
  for (; i + 512 <= n; i += 512) {
    __m512i gathered[8];
    gather_512(bits, count, i, gathered);
    for (uint64_t j = 0; j < 8; ++j) body(i + 64 * j, gathered[j]);
  }
  for (; i < n; i += 64) body(i, gather_64(bits, count, i));
}
#endif

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#endif  // include guard

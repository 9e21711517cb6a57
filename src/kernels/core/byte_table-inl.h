// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Words of 32 bits by an index of 7: 64 at a time, each byte of a word from a table of its own, as
// AVX-512 with VBMI looks bytes up. Included by *_hwy.cc files that define HWY_WANT_AVX3_DL, after
// highway.h, once per target; LACONIC_BYTE_TABLE says whether this target has it.
#if defined(LACONIC_KERNELS_BYTE_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_BYTE_TABLE_INL_H_
#undef LACONIC_KERNELS_BYTE_TABLE_INL_H_
#else
#define LACONIC_KERNELS_BYTE_TABLE_INL_H_
#endif

#include "kernels/core/simd.h"

// Also what packs four vectors of words to bytes, which all of AVX-512 can.
#undef LACONIC_BYTE_TABLE
#define LACONIC_BYTE_TABLE (LACONIC_SIMD_BODY && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3_DL)

#if LACONIC_SIMD_BODY && HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// Bytes of four vectors of words, in each lane of 128 bits four of the first vector, then of the
/// second, third and fourth: what two turns of packing leave.
HWY_INLINE __m512i pack_words(const __m512i words[4]) {
  return _mm512_packus_epi16(_mm512_packus_epi32(words[0], words[1]),
                             _mm512_packus_epi32(words[2], words[3]));
}
/// 64 bytes of memory in the order of pack_words(), or back.
HWY_INLINE __m512i turn_words(__m512i bytes) {
  return _mm512_permutexvar_epi32(
      _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15), bytes);
}

#if LACONIC_BYTE_TABLE
/// Minimum number of elements for which a table is worth its cost.
inline constexpr uint64_t kByteTablePays = 512;

class ByteTable {
 public:
  HWY_INLINE ByteTable() = default;
  /// A table of 128 words.
  HWY_INLINE explicit ByteTable(const void* words) {
    const auto* at = static_cast<const uint8_t*>(words);
    for (uint32_t half = 0; half < 2; ++half) {
      __m512i rows[4];
      for (uint32_t v = 0; v < 4; ++v) rows[v] = _mm512_loadu_si512(at + 256 * half + 64 * v);
      for (uint32_t k = 0; k < 4; ++k) {
        __m512i bytes[4];
        for (uint32_t v = 0; v < 4; ++v) {
          bytes[v] = _mm512_and_si512(_mm512_srli_epi32(rows[v], 8 * k), _mm512_set1_epi32(0xFF));
        }
        table_[half][k] = turn_words(pack_words(bytes));
      }
    }
  }

  /// Words of indices, of which the lowest 7 bits count, in the order of pack_words(); zero where
  /// `wanted` has no bit; `flips` of an index goes into its word's highest byte.
  HWY_INLINE void find(__m512i indices, __mmask64 wanted, __m512i flips, __m512i words[4]) const {
    __m512i plane[4];
    for (uint32_t k = 0; k < 4; ++k) {
      plane[k] = _mm512_maskz_permutex2var_epi8(wanted, table_[0][k], indices, table_[1][k]);
    }
    plane[3] = _mm512_xor_si512(plane[3], flips);
    join(plane, words);
  }
  HWY_INLINE void find(__m512i indices, __m512i words[4]) const {
    find(indices, ~__mmask64{0}, _mm512_setzero_si512(), words);
  }

  /// Looks up an index of 8 bits: words for indices with the highest bit are in `upper`.
  HWY_INLINE void find_with(const ByteTable& upper, __m512i indices, __m512i words[4]) const {
    const __mmask64 high = _mm512_movepi8_mask(indices);
    __m512i plane[4];
    for (uint32_t k = 0; k < 4; ++k) {
      const __m512i low = _mm512_permutex2var_epi8(table_[0][k], indices, table_[1][k]);
      plane[k] = _mm512_mask_blend_epi8(
          high, low, _mm512_permutex2var_epi8(upper.table_[0][k], indices, upper.table_[1][k]));
    }
    join(plane, words);
  }

 private:
  static HWY_INLINE void join(const __m512i plane[4], __m512i words[4]) {
    const __m512i low01 = _mm512_unpacklo_epi8(plane[0], plane[1]);
    const __m512i low23 = _mm512_unpacklo_epi8(plane[2], plane[3]);
    const __m512i high01 = _mm512_unpackhi_epi8(plane[0], plane[1]);
    const __m512i high23 = _mm512_unpackhi_epi8(plane[2], plane[3]);
    words[0] = _mm512_unpacklo_epi16(low01, low23);
    words[1] = _mm512_unpackhi_epi16(low01, low23);
    words[2] = _mm512_unpacklo_epi16(high01, high23);
    words[3] = _mm512_unpackhi_epi16(high01, high23);
  }

  __m512i table_[2][4];  // [which 64 words][byte]
};
#endif  // LACONIC_BYTE_TABLE

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // AVX-512

#endif  // include guard

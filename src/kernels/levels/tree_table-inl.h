// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// u8's codes where tables are looked up byte by byte. Included by levels_hwy.cc after highway.h,
// once per target.
#if defined(LACONIC_KERNELS_TREE_TABLE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_TREE_TABLE_INL_H_
#undef LACONIC_KERNELS_TREE_TABLE_INL_H_
#else
#define LACONIC_KERNELS_TREE_TABLE_INL_H_
#endif

#include "kernels/core/byte_table-inl.h"
#include "kernels/core/stream-inl.h"
#include "kernels/levels/tree.h"

#if LACONIC_BYTE_TABLE
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

/// By pieces, since gathers are slow on Zen 5.
class TreeSearch {
 public:
  HWY_INLINE TreeSearch() : bounds_(kTreePieces.next_bound.data()) {
    octaves_[0] = _mm512_load_si512(kTreePieces.octave.data());
    octaves_[1] = _mm512_load_si512(kTreePieces.octave.data() + 16);
    offset_ = _mm512_load_ps(kTreePieces.offset.data());
    slope_ = _mm512_load_ps(kTreePieces.slope.data());
  }
  /// Signed codes of 64 elements.
  HWY_INLINE __m512i codes(const float* x, VF inverse) const {
    __m512i y[4], bits[4], index[4], bound[4];
    for (uint32_t v = 0; v < 4; ++v) {
      y[v] = _mm512_castps_si512(_mm512_mul_ps(_mm512_loadu_ps(x + 16 * v), inverse.raw));
      const __m512i magnitude = _mm512_and_si512(y[v], _mm512_set1_epi32(0x7FFFFFFF));
      bits[v] = _mm512_max_epi32(magnitude, _mm512_set1_epi32(kTreeLow));
      index[v] = floor_of(bits[v]);
    }
    bounds_.find(pack_words(index), bound);
    __m512i code[4];
    for (uint32_t v = 0; v < 4; ++v) {
      const __mmask16 next = _mm512_cmpge_epi32_mask(bits[v], bound[v]);
      index[v] = _mm512_mask_add_epi32(index[v], next, index[v], _mm512_set1_epi32(1));
      const __mmask16 negative = _mm512_movepi32_mask(y[v]);
      code[v] = _mm512_mask_sub_epi32(index[v], negative, _mm512_setzero_si512(), index[v]);
    }
    const __m512i bytes = _mm512_packs_epi16(_mm512_packs_epi32(code[0], code[1]),
                                             _mm512_packs_epi32(code[2], code[3]));
    return turn_words(bytes);
  }

 private:
  HWY_INLINE __m512i floor_of(__m512i bits) const {
    const __m512i octave =
        _mm512_permutex2var_epi32(octaves_[0], _mm512_srli_epi32(bits, 23), octaves_[1]);
    const __m512i piece = _mm512_srli_epi32(_mm512_add_epi32(octave, bits), 24);
    const __m512 offset = _mm512_permutexvar_ps(piece, offset_);
    const __m512 slope = _mm512_permutexvar_ps(piece, slope_);
    return _mm512_cvttps_epi32(_mm512_fmadd_ps(slope, _mm512_castsi512_ps(bits), offset));
  }

  __m512i octaves_[2];
  __m512 offset_, slope_;
  ByteTable bounds_;
};

/// What 64 codes from i on add.
HWY_INLINE void tree_values_64(const ByteTable& table, const TreeTerm& term, uint64_t i,
                               VF values[4]) {
  const __m512i codes = turn_words(_mm512_loadu_si512(static_cast<const uint8_t*>(term.codes) + i));
  const __m512i signs = _mm512_and_si512(codes, _mm512_set1_epi8(static_cast<char>(0x80)));
  __m512i words[4];
  table.find(_mm512_abs_epi8(codes), ~__mmask64{0}, signs, words);
  for (uint32_t v = 0; v < 4; ++v) values[v] = VF{_mm512_castsi512_ps(words[v])};
}

template <Output kOutput>
HWY_INLINE uint64_t add_trees(float* out, const TreeTerm* terms, uint32_t count, uint64_t begin,
                              uint64_t end) {
  ByteTable tables[kLevelTerms];
  for (uint32_t t = 0; t < count; ++t) tables[t] = ByteTable(terms[t].value);
  uint64_t i = begin;
  for (; i + 64 <= end; i += 64) {
    VF sum[4], more[4];
    tree_values_64(tables[0], terms[0], i, sum);
    if constexpr (kOutput == Output::add) {
      prefetch_span(out + i, 64 * sizeof(float));
      for (uint32_t v = 0; v < 4; ++v) sum[v] = hn::Add(load_f32(out, i + 16 * v), sum[v]);
    }
    for (uint32_t t = 1; t < count; ++t) {
      tree_values_64(tables[t], terms[t], i, more);
      for (uint32_t v = 0; v < 4; ++v) sum[v] = hn::Add(sum[v], more[v]);
    }
    for (uint32_t v = 0; v < 4; ++v) store_f32<kOutput>(sum[v], out + i + 16 * v);
  }
  return i;
}

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_BYTE_TABLE

#endif  // include guard

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/minifloat/byte_masks.h"
#include "kernels/minifloat/inceptionn.h"
#include "kernels/minifloat/inceptionn_elements.h"

#define HWY_WANT_AVX3_DL  // tables of bytes, and bytes that are moved apart
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/minifloat/inceptionn_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/byte_table-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)

bool all_finite(const void* values, uint64_t n) {
  VI most = hn::Zero(I32());
  uint64_t i = 0;
  for (; i + lanes32() <= n; i += lanes32()) {
    const VI bits = hn::BitCast(I32(), load_f32(values, i));
    most = hn::Max(most, hn::And(bits, hn::Set(I32(), 0x7FFFFFFF)));
  }
  const auto seen = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), most)));
  return seen < 0x7F800000U &&
         inceptionn_all_finite(static_cast<const char*>(values) + i * sizeof(float), n - i);
}

/// inceptionn_count, with this target's instruction for it.
InceptionnCounts count(const uint8_t* tags, uint64_t n) {
  uint64_t full = 0, low = 0, high = 0, begin = 0;
  const uint64_t whole = n / 32 * 32;
#if LACONIC_BYTE_TABLE  // and words are counted in vectors
  const __m512i ones = _mm512_set1_epi64(0x5555555555555555);
  __m512i fulls = _mm512_setzero_si512(), lows = fulls, highs = fulls;
  for (; begin + 256 <= whole; begin += 256) {
    const __m512i words = _mm512_loadu_si512(tags + begin / 4);
    const __m512i even = _mm512_and_si512(words, ones);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi64(words, 1), ones);
    fulls = _mm512_add_epi64(fulls, _mm512_popcnt_epi64(_mm512_and_si512(even, odd)));
    lows = _mm512_add_epi64(lows, _mm512_popcnt_epi64(even));
    highs = _mm512_add_epi64(highs, _mm512_popcnt_epi64(odd));
  }
  full = static_cast<uint64_t>(_mm512_reduce_add_epi64(fulls));
  low = static_cast<uint64_t>(_mm512_reduce_add_epi64(lows));
  high = static_cast<uint64_t>(_mm512_reduce_add_epi64(highs));
#endif
  for (uint64_t i = begin; i < whole; i += 32) {
    const auto word = at<uint64_t>(tags + i / 4, 0);
    const uint64_t odd = word >> 1 & 0x5555555555555555U, even = word & 0x5555555555555555U;
    full += static_cast<uint64_t>(__builtin_popcountll(odd & even));
    high += static_cast<uint64_t>(__builtin_popcountll(odd));
    low += static_cast<uint64_t>(__builtin_popcountll(even));
  }
  const InceptionnCounts rest = inceptionn_count(tags + whole / 4, n - whole);
  return {rest.full + full, rest.half + high - full, rest.byte + low - full};
}

#if LACONIC_AVX512 || LACONIC_AVX2

#if LACONIC_AVX512
/// Two masks of 32 elements as their 32 tags.
HWY_INLINE uint64_t tags_of(uint64_t even, uint64_t odd) {
  return _pdep_u64(even, 0x5555555555555555U) | _pdep_u64(odd, 0xAAAAAAAAAAAAAAAAU);
}
#else
/// A zero behind each of 32 bits: a square without carries.
HWY_INLINE uint64_t spread(uint32_t bits) {
  const __m128i v = _mm_cvtsi32_si128(static_cast<int>(bits));
  return static_cast<uint64_t>(_mm_cvtsi128_si64(_mm_clmulepi64_si128(v, v, 0)));
}
/// Two masks of 32 elements as their 32 tags; the second is mostly empty.
HWY_INLINE uint64_t tags_of(uint32_t even, uint32_t odd) {
  const uint64_t tags = spread(even);
  return odd == 0 ? tags : tags | spread(odd) << 1;
}
#endif

#if LACONIC_AVX512
struct Masks {
  uint32_t byte, half, full;  // |x| at least that of the class
};

struct Compare {
  __m512i byte, half, one, magnitude;
  HWY_INLINE explicit Compare(const InceptionnForm& form)
      : byte(_mm512_set1_epi32(static_cast<int>(form.byte_bits))),
        half(_mm512_set1_epi32(static_cast<int>(form.half_bits))),
        one(_mm512_set1_epi32(static_cast<int>(kInceptionnOne))),
        magnitude(_mm512_set1_epi32(0x7FFFFFFF)) {}
  HWY_INLINE __m512i load(const float* x) const {
    return _mm512_and_si512(_mm512_loadu_si512(x), magnitude);
  }
  HWY_INLINE Masks masks(__m512i a) const {
    return {_mm512_cmpge_epi32_mask(a, byte), _mm512_cmpge_epi32_mask(a, half),
            _mm512_cmpge_epi32_mask(a, one)};
  }
};

bool classify(const float* x, uint64_t n, const InceptionnForm& form, uint8_t* tags,
              InceptionnCounts* counts) {
  const Compare compare(form);
  __m512i most = _mm512_setzero_si512();
  uint64_t bytes = 0, halves = 0, fulls = 0, i = 0;
  for (; i + 32 <= n; i += 32) {
    prefetch_span(x + i, 32 * sizeof(float));
    const __m512i a = compare.load(x + i), b = compare.load(x + i + 16);
    const __m512i larger = _mm512_max_epi32(a, b);
    most = _mm512_max_epi32(most, larger);
    const uint32_t byte = _mm512_cmpge_epi32_mask(a, compare.byte) |
                          uint32_t{_mm512_cmpge_epi32_mask(b, compare.byte)} << 16;
    uint32_t even = byte, odd = 0;
    bytes += static_cast<uint64_t>(__builtin_popcount(byte));
    if (_mm512_cmpge_epi32_mask(larger, compare.half) != 0) {
      const Masks of_a = compare.masks(a), of_b = compare.masks(b);
      odd = of_a.half | of_b.half << 16;
      const uint32_t full = of_a.full | of_b.full << 16;
      even = (byte & ~odd) | full;
      halves += static_cast<uint64_t>(__builtin_popcount(odd));
      fulls += static_cast<uint64_t>(__builtin_popcount(full));
    }
    put<uint64_t>(tags + i / 4, 0, tags_of(even, odd));
  }
  InceptionnCounts rest;
  const bool rest_finite = inceptionn_classify(x + i, n - i, form, tags + i / 4, &rest);
  counts->full += rest.full + fulls;
  counts->half += rest.half + halves - fulls;
  counts->byte += rest.byte + bytes - halves;
  return rest_finite && _mm512_reduce_max_epi32(most) < 0x7F800000;
}

HWY_INLINE uint32_t first_bits(uint32_t count) { return _bzhi_u32(0xFFFFFFFFU, count); }

void pack(const float* x, uint64_t n, const InceptionnForm& form, InceptionnOut to) {
  const Compare compare(form);
  const __m512 scale = _mm512_set1_ps(form.byte_scale);
  uint64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    prefetch_span(x + i, 16 * sizeof(float));
    const __m512i bits = _mm512_loadu_si512(x + i);
    const __m512i a = _mm512_and_si512(bits, compare.magnitude);
    const __m512 magnitude = _mm512_castsi512_ps(a);
    const uint32_t above = _mm512_cmpge_epi32_mask(a, compare.half);
    const uint32_t byte = _mm512_cmpge_epi32_mask(a, compare.byte) & ~above;
    const __m512i code = _mm512_cvttps_epi32(_mm512_mul_ps(magnitude, scale));
    const __m512i sign = _mm512_srli_epi32(bits, 24);
    // code | (sign & 0x80)
    const __m512i field = _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi32(0x80), 0xF8);
    const auto written = static_cast<uint32_t>(__builtin_popcount(byte));
    const __m512i packed = _mm512_maskz_compress_epi32(static_cast<__mmask16>(byte), field);
    _mm_mask_storeu_epi8(to.byte, static_cast<__mmask16>(first_bits(written)),
                         _mm512_cvtepi32_epi8(packed));
    to.byte += written;
    if (above == 0) continue;
    const uint32_t full = _mm512_cmpge_epi32_mask(a, compare.one);
    const uint32_t half = above & ~full;
    const __m512 rounded = _mm512_add_ps(_mm512_mul_ps(magnitude, _mm512_set1_ps(0x1p14F)),
                                         _mm512_set1_ps(kInceptionnMagic));
    const __m512i half_sign =
        _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x8000));
    const __m512i half_field = _mm512_ternarylogic_epi32(half_sign, _mm512_castps_si512(rounded),
                                                         _mm512_set1_epi32(0x7FFF), 0xF8);
    const auto halves = static_cast<uint32_t>(__builtin_popcount(half));
    _mm256_mask_storeu_epi16(to.half, static_cast<__mmask16>(first_bits(halves)),
                             _mm512_cvtepi32_epi16(_mm512_maskz_compress_epi32(
                                 static_cast<__mmask16>(half), half_field)));
    to.half += halves * sizeof(uint16_t);
    const auto fulls = static_cast<uint32_t>(__builtin_popcount(full));
    _mm512_mask_storeu_epi32(to.full, static_cast<__mmask16>(first_bits(fulls)),
                             _mm512_maskz_compress_epi32(static_cast<__mmask16>(full), bits));
    to.full += fulls * sizeof(float);
  }
  inceptionn_pack(x + i, n - i, form, to);
}

#if LACONIC_BYTE_TABLE
/// In byte k, how many of the bits below 8·(k + 1) are set.
HWY_INLINE uint64_t counts_up_to(uint64_t bits) {
  uint64_t x = bits - (bits >> 1 & 0x5555555555555555U);
  x = (x & 0x3333333333333333U) + (x >> 2 & 0x3333333333333333U);
  x = (x + (x >> 4)) & 0x0F0F0F0F0F0F0F0FU;
  return x * 0x0101010101010101U;
}

/// In byte i, how many of the bits below i are set, if bit i is; byte k of `before` counts those
/// below 8·k. In place of VPEXPANDB, which is slow on Zen 5.
HWY_INLINE __m512i places_of(uint64_t bits, uint64_t before) {
  const __m512i eights =
      _mm512_setr_epi32(0x00000000, 0x00000000, 0x01010101, 0x01010101, 0x02020202, 0x02020202,
                        0x03030303, 0x03030303, 0x04040404, 0x04040404, 0x05050505, 0x05050505,
                        0x06060606, 0x06060606, 0x07070707, 0x07070707);
  __m512i x = _mm512_maskz_mov_epi8(bits, _mm512_set1_epi8(1));
  x = _mm512_add_epi8(x, _mm512_slli_epi64(x, 8));
  x = _mm512_add_epi8(x, _mm512_slli_epi64(x, 16));
  x = _mm512_add_epi8(x, _mm512_slli_epi64(x, 32));
  const __m512i base = _mm512_shuffle_epi8(_mm512_set1_epi64(static_cast<int64_t>(before)), eights);
  return _mm512_add_epi8(_mm512_add_epi8(x, base), _mm512_set1_epi8(-1));
}
#endif

struct Unpack {
  const InceptionnForm& form;
  __m512 weight;

  HWY_INLINE Unpack(const InceptionnForm& f, float w) : form(f), weight(_mm512_set1_ps(w)) {}

  template <Output kOutput>
  HWY_INLINE void put(__m512 product, float* out) const {
    if constexpr (kOutput == Output::add) product = _mm512_add_ps(_mm512_loadu_ps(out), product);
    store_f32<kOutput>(VF{product}, out);
  }

  /// The 16 elements whose tags are in `word`.
  template <Output kOutput>
  HWY_INLINE void sixteen(uint32_t word, InceptionnIn& in, float* out) const {
    const __m512 step = _mm512_set1_ps(form.byte_step), bias = _mm512_set1_ps(0.5F);
    const __m512i sign_bit = _mm512_set1_epi32(static_cast<int>(0x80000000U));
    const uint32_t even = _pext_u32(word, 0x55555555U), odd = _pext_u32(word, 0xAAAAAAAAU);
    const uint32_t byte = even & ~odd;
    const auto bytes = static_cast<uint32_t>(__builtin_popcount(byte));
    const __m512i fields = _mm512_maskz_expand_epi32(
        static_cast<__mmask16>(byte), _mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(
                                          static_cast<__mmask16>(first_bits(bytes)), in.byte)));
    in.byte += bytes;
    const __m512 c = _mm512_cvtepi32_ps(_mm512_and_si512(fields, _mm512_set1_epi32(0x7F)));
    const __m512 magnitude =
        _mm512_maskz_mul_ps(static_cast<__mmask16>(byte), _mm512_add_ps(c, bias), step);
    // a field's sign bit was extended to bit 31
    __m512i value =
        _mm512_ternarylogic_epi32(_mm512_castps_si512(magnitude), fields, sign_bit, 0xF8);
    if (odd != 0) {
      const uint32_t half = odd & ~even, full = odd & even;
      const auto halves = static_cast<uint32_t>(__builtin_popcount(half));
      const __m512i half_fields = _mm512_maskz_expand_epi32(
          static_cast<__mmask16>(half), _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(
                                            static_cast<__mmask16>(first_bits(halves)), in.half)));
      in.half += halves * sizeof(uint16_t);
      const __m512 half_magnitude = _mm512_mul_ps(
          _mm512_cvtepi32_ps(_mm512_and_si512(half_fields, _mm512_set1_epi32(0x7FFF))),
          _mm512_set1_ps(0x1p-14F));
      value = _mm512_or_si512(value, _mm512_ternarylogic_epi32(_mm512_castps_si512(half_magnitude),
                                                               half_fields, sign_bit, 0xF8));
      const auto fulls = static_cast<uint32_t>(__builtin_popcount(full));
      value = _mm512_mask_expand_epi32(
          value, static_cast<__mmask16>(full),
          _mm512_maskz_loadu_epi32(static_cast<__mmask16>(first_bits(fulls)), in.full));
      in.full += fulls * sizeof(float);
    }
    put<kOutput>(_mm512_mul_ps(weight, _mm512_castsi512_ps(value)), out);
  }

#if LACONIC_BYTE_TABLE
  /// 64 elements that are stored in a byte or not at all; `present` says which are.
  template <Output kOutput>
  HWY_INLINE void sixty_four(uint64_t present, const ByteTable& products, InceptionnIn& in,
                             float* out) const {
    const uint64_t before = counts_up_to(present);  // of each eight: the present up to its end
    const auto bytes = static_cast<uint32_t>(before >> 56);
    const __m512i stored = _mm512_maskz_loadu_epi8(_bzhi_u64(~uint64_t{0}, bytes), in.byte);
    in.byte += bytes;
    const __m512i places = places_of(present, before << 8);
    const __m512i fields = turn_words(_mm512_maskz_permutexvar_epi8(present, places, stored));
    const __mmask64 wanted = _mm512_movepi8_mask(turn_words(_mm512_movm_epi8(present)));
    const __m512i signs = _mm512_and_si512(fields, _mm512_set1_epi8(static_cast<char>(0x80)));
    __m512i words[4];
    products.find(fields, wanted, signs, words);
    for (uint32_t v = 0; v < 4; ++v) put<kOutput>(_mm512_castsi512_ps(words[v]), out + 16 * v);
  }
#endif
};

#if LACONIC_BYTE_TABLE
/// 1 KiB ahead of p, and never behind the payload: two narrow streams beside stores past the caches
/// are more than processors follow by themselves.
HWY_INLINE void fetch_ahead(const uint8_t* p, const uint8_t* end) {
  const auto at = reinterpret_cast<uintptr_t>(p) + 1024;
  const auto last = reinterpret_cast<uintptr_t>(end) - 1;
  __builtin_prefetch(reinterpret_cast<const void*>(HWY_MIN(at, last)));
}

/// Elements 64 at a time. Returns how many are done.
template <Output kOutput>
HWY_INLINE uint64_t unpack_blocks(const uint8_t* tags, uint64_t n, const Unpack& unpack, float w,
                                  InceptionnIn& in, float* out) {
  alignas(64) float product[128];
  for (uint32_t c = 0; c < 128; ++c) {
    const float value = (static_cast<float>(c) + 0.5F) * unpack.form.byte_step;
    product[c] = w * value;
  }
  const ByteTable products(product);
  uint64_t i = 0;
  for (; i + 64 <= n; i += 64) {
    const auto low = at<uint64_t>(tags + i / 4, 0), high = at<uint64_t>(tags + i / 4, 1);
    if constexpr (kOutput == Output::add) prefetch_span(out + i, 64 * sizeof(float));
    fetch_ahead(tags + i / 4, in.end);
    fetch_ahead(in.byte, in.end);
    if (((low | high) & 0xAAAAAAAAAAAAAAAAU) == 0) {
      const uint64_t present =
          _pext_u64(low, 0x5555555555555555U) | _pext_u64(high, 0x5555555555555555U) << 32;
      unpack.sixty_four<kOutput>(present, products, in, out + i);
    } else {
      for (uint64_t k = 0; k < 64; k += 16) {
        unpack.sixteen<kOutput>(at<uint32_t>(tags + (i + k) / 4, 0), in, out + i + k);
      }
    }
  }
  return i;
}
#endif

template <Output kOutput>
HWY_INLINE void unpack_as(const uint8_t* tags, uint64_t n, const InceptionnForm& form,
                          InceptionnIn* from, float w, float* out) {
  InceptionnIn in = *from;
  const Unpack unpack(form, w);
  uint64_t i = 0;
#if LACONIC_BYTE_TABLE
  const bool zeros_are_zeros = float_bits(w * 0.0F) == 0;
  if (n >= kByteTablePays && zeros_are_zeros) {
    i = unpack_blocks<kOutput>(tags, n, unpack, w, in, out);
  }
#endif
  for (; i + 16 <= n; i += 16) {
    if constexpr (kOutput == Output::add) prefetch_span(out + i, 16 * sizeof(float));
    unpack.sixteen<kOutput>(at<uint32_t>(tags + i / 4, 0), in, out + i);
  }
  inceptionn_unpack(tags + i / 4, n - i, form, &in, w, kOutput, out + i);
  *from = in;
}
#else  // AVX2
/// Bytes of 0xFF where the 8 elements of a group are in a class, and the signs of four vectors of
/// comparisons as bits.
struct Compare {
  __m256i byte, half, one;  // one less: there is only "greater"
  HWY_INLINE explicit Compare(const InceptionnForm& form)
      : byte(_mm256_set1_epi32(static_cast<int>(form.byte_bits) - 1)),
        half(_mm256_set1_epi32(static_cast<int>(form.half_bits) - 1)),
        one(_mm256_set1_epi32(static_cast<int>(kInceptionnOne) - 1)) {}
};

/// Four vectors of words of 32 bits as bytes in their order.
HWY_INLINE __m256i narrow(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
HWY_INLINE __m256i narrow_unsigned(__m256i a, __m256i b, __m256i c, __m256i d) {
  const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(a, b), _mm256_packus_epi32(c, d));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}
HWY_INLINE __m256i load_bits(const float* x) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
}
HWY_INLINE uint32_t bits_of(__m256i bytes) {
  return static_cast<uint32_t>(_mm256_movemask_epi8(bytes));
}
HWY_INLINE __m128i load_eight(const void* bytes) {
  return _mm_loadl_epi64(static_cast<const __m128i*>(bytes));
}

bool classify(const float* x, uint64_t n, const InceptionnForm& form, uint8_t* tags,
              InceptionnCounts* counts) {
  const Compare compare(form);
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF);
  __m256i most = _mm256_setzero_si256();
  uint64_t bytes = 0, halves = 0, fulls = 0, i = 0;
  for (; i + 32 <= n; i += 32) {
    prefetch_span(x + i, 32 * sizeof(float));
    __m256i a[4];
    for (uint64_t v = 0; v < 4; ++v) a[v] = _mm256_and_si256(load_bits(x + i + 8 * v), magnitude);
    const auto above = [&](__m256i bound) LACONIC_LAMBDA {
      return bits_of(narrow(_mm256_cmpgt_epi32(a[0], bound), _mm256_cmpgt_epi32(a[1], bound),
                            _mm256_cmpgt_epi32(a[2], bound), _mm256_cmpgt_epi32(a[3], bound)));
    };
    const __m256i larger =
        _mm256_max_epi32(_mm256_max_epi32(a[0], a[1]), _mm256_max_epi32(a[2], a[3]));
    most = _mm256_max_epi32(most, larger);
    const uint32_t byte = above(compare.byte);
    uint32_t even = byte, odd = 0;
    bytes += static_cast<uint64_t>(__builtin_popcount(byte));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi32(larger, compare.half)) != 0) {
      odd = above(compare.half);
      const uint32_t full = above(compare.one);
      even = (byte & ~odd) | full;
      halves += static_cast<uint64_t>(__builtin_popcount(odd));
      fulls += static_cast<uint64_t>(__builtin_popcount(full));
    }
    put<uint64_t>(tags + i / 4, 0, tags_of(even, odd));
  }
  InceptionnCounts rest;
  const bool rest_finite = inceptionn_classify(x + i, n - i, form, tags + i / 4, &rest);
  counts->full += rest.full + fulls;
  counts->half += rest.half + halves - fulls;
  counts->byte += rest.byte + bytes - halves;
  const auto seen = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), VI{most})));
  return rest_finite && seen < 0x7F800000U;
}

/// Whole words are written: what lies behind the last byte belongs to somebody else.
constexpr uint64_t kStaged = 1024;

/// Packs 32 elements; the bytes go to `staged`.
HWY_INLINE uint8_t* pack_group(const float* x, const InceptionnForm& form, const Compare& compare,
                               uint8_t* HWY_RESTRICT staged, InceptionnOut& to) {
  const __m256i magnitude = _mm256_set1_epi32(0x7FFFFFFF), sign = _mm256_set1_epi32(0x80);
  const __m256 scale = _mm256_set1_ps(form.byte_scale);
  __m256i field[4], wanted[4], above[4];
  for (uint64_t v = 0; v < 4; ++v) {
    const __m256i bits = load_bits(x + 8 * v);
    const __m256i a = _mm256_and_si256(bits, magnitude);
    above[v] = _mm256_cmpgt_epi32(a, compare.half);
    wanted[v] = _mm256_andnot_si256(above[v], _mm256_cmpgt_epi32(a, compare.byte));
    const __m256i code = _mm256_cvttps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(a), scale));
    field[v] = _mm256_or_si256(code, _mm256_and_si256(_mm256_srli_epi32(bits, 24), sign));
  }
  alignas(32) uint64_t fields[4];
  _mm256_store_si256(reinterpret_cast<__m256i*>(fields),
                     narrow_unsigned(field[0], field[1], field[2], field[3]));
  const uint32_t bits = bits_of(narrow(wanted[0], wanted[1], wanted[2], wanted[3]));
  for (uint32_t v = 0; v < 4; ++v) {
    const uint32_t eight = bits >> 8 * v & 0xFFU;
    const __m128i together =
        _mm_shuffle_epi8(load_eight(&fields[v]), load_eight(&kByteMasks.together[eight]));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(staged), together);
    staged += __builtin_popcount(eight);
  }
  const __m256i any =
      _mm256_or_si256(_mm256_or_si256(above[0], above[1]), _mm256_or_si256(above[2], above[3]));
  if (_mm256_movemask_epi8(any) != 0) {
    uint32_t rest = bits_of(narrow(above[0], above[1], above[2], above[3]));
    for (; rest != 0; rest &= rest - 1) {
      inceptionn_pack_element(x[__builtin_ctz(rest)], form, &to);
    }
  }
  return staged;
}

void pack(const float* x, uint64_t n, const InceptionnForm& form, InceptionnOut to) {
  const Compare compare(form);
  uint8_t staged[kStaged + sizeof(uint64_t)];
  uint64_t i = 0;
  while (i + 32 <= n) {
    const uint64_t end = HWY_MIN(i + kStaged, n / 32 * 32);
    uint8_t* last = staged;
    for (; i < end; i += 32) {
      prefetch_span(x + i, 32 * sizeof(float));
      last = pack_group(x + i, form, compare, last, to);
    }
    const auto bytes = static_cast<uint64_t>(last - staged);
    std::memcpy(to.byte, staged, bytes);
    to.byte += bytes;
  }
  inceptionn_pack(x + i, n - i, form, to);
}

template <Output kOutput>
HWY_INLINE void unpack_as(const uint8_t* tags, uint64_t n, const InceptionnForm& form,
                          InceptionnIn* from, float w, float* out) {
  InceptionnIn in = *from;
  const __m256 weight = _mm256_set1_ps(w);
  const __m256 step = _mm256_set1_ps(form.byte_step), bias = _mm256_set1_ps(0.5F);
  const __m256i sign_bit = _mm256_set1_epi32(static_cast<int>(0x80000000U));
  // of a tag's byte, once for each of its four elements: their bits, and those of a byte's tag
  const __m128i four_each = _mm_setr_epi8(0, 0, 0, 0, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1);
  const __m128i tag_bits = _mm_set1_epi32(static_cast<int>(0xC0300C03U));
  const __m128i byte_tag = _mm_set1_epi32(0x40100401);
  uint64_t i = 0;
  for (; i + 8 <= n && static_cast<uint64_t>(in.end - in.byte) >= 8; i += 8) {
    const auto word = at<uint16_t>(tags + i / 4, 0);
    const __m128i each = _mm_shuffle_epi8(_mm_cvtsi32_si128(word), four_each);
    const __m128i mask = _mm_cmpeq_epi8(_mm_and_si128(each, tag_bits), byte_tag);
    const auto wanted = static_cast<uint32_t>(_mm_movemask_epi8(mask)) & 0xFFU;
    const __m128i fields =
        _mm_shuffle_epi8(load_eight(in.byte), load_eight(&kByteMasks.apart[wanted]));
    in.byte += __builtin_popcount(wanted);
    const __m256i field = _mm256_cvtepi8_epi32(fields);
    const __m256 c = _mm256_cvtepi32_ps(_mm256_and_si256(field, _mm256_set1_epi32(0x7F)));
    const __m256i magnitude = _mm256_castps_si256(_mm256_mul_ps(_mm256_add_ps(c, bias), step));
    const __m256i present = _mm256_cvtepi8_epi32(mask);
    const __m256i signed_value = _mm256_or_si256(magnitude, _mm256_and_si256(field, sign_bit));
    __m256 value = _mm256_castsi256_ps(_mm256_and_si256(signed_value, present));
    if ((word & 0xAAAAU) != 0) {
      alignas(32) float values[8];
      _mm256_store_ps(values, value);
      for (uint32_t odd = word & 0xAAAAU; odd != 0; odd &= odd - 1) {
        const auto at_bit = static_cast<uint32_t>(__builtin_ctz(odd)) - 1;
        values[at_bit / 2] = inceptionn_unpack_element(word >> at_bit & 3U, form, &in);
      }
      value = _mm256_load_ps(values);
    }
    if constexpr (kOutput == Output::add) prefetch_span(out + i, 8 * sizeof(float));
    __m256 sum = _mm256_mul_ps(weight, value);
    if constexpr (kOutput == Output::add) sum = _mm256_add_ps(_mm256_loadu_ps(out + i), sum);
    store_f32<kOutput>(VF{sum}, out + i);
  }
  inceptionn_unpack(tags + i / 4, n - i, form, &in, w, kOutput, out + i);
  *from = in;
}
#endif

void unpack(const uint8_t* tags, uint64_t n, const InceptionnForm& form, InceptionnIn* from,
            float w, Output output, float* out) {
  const bool aligned = reinterpret_cast<uintptr_t>(out) % (lanes32() * sizeof(float)) == 0;
  if (output == Output::add) {
    unpack_as<Output::add>(tags, n, form, from, w, out);
  } else if (output == Output::stream && aligned) {
    unpack_as<Output::stream>(tags, n, form, from, w, out);
    hwy::FlushStream();
  } else {
    unpack_as<Output::set>(tags, n, form, from, w, out);
  }
}

#else
bool classify(const float* x, uint64_t n, const InceptionnForm& form, uint8_t* tags,
              InceptionnCounts* counts) {
  return inceptionn_classify(x, n, form, tags, counts);
}
void pack(const float* x, uint64_t n, const InceptionnForm& form, InceptionnOut to) {
  inceptionn_pack(x, n, form, to);
}
void unpack(const uint8_t* tags, uint64_t n, const InceptionnForm& form, InceptionnIn* from,
            float w, Output output, float* out) {
  inceptionn_unpack(tags, n, form, from, w, output, out);
}
#endif

constexpr InceptionnKernels kTable{&classify, &pack, &count, &unpack, &all_finite};

#undef LACONIC_AVX512
#undef LACONIC_AVX2

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const InceptionnKernels& inceptionn_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kInceptionnScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

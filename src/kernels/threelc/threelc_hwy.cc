// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/threelc/threelc.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/threelc/threelc_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/cache_control.h"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#ifndef LACONIC_THREELC_ONCE
#define LACONIC_THREELC_ONCE
namespace laconic::kernels {

/// Columns that unpack() zeroes before it looks for digits: the number of stores that wait for a
/// cache at once.
inline constexpr uint64_t kZeroColumns = 256;
/// Columns that are zeros together or unpacked together.
inline constexpr uint64_t kZeroGroup = 16;

}  // namespace laconic::kernels
#endif  // LACONIC_THREELC_ONCE

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr bool kMaskRegisters = HWY_TARGET <= HWY_AVX3;  // targets count down as they grow

// One prefetch for the two lines of a turn disturbs the prefetching of processors that have AVX2
// but no AVX-512: without it Zen 3 reads two streams a third faster.
constexpr bool kPrefetch = !(HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2);

/// Columns that unpack_stream() unpacks before it sends five rows past the caches. With AVX-512 5
/// KiB: the next are then unpacked while stores wait for the memory.
inline constexpr uint64_t kStageColumns = kMaskRegisters ? 256 : 1024;

using F = hn::ScalableTag<float>;
using Narrow = hn::CappedTag<float, 4>;
using B = hn::ScalableTag<uint8_t>;
using B16 = hn::CappedTag<uint8_t, 16>;

// ---- quantization ----

/// kFetch: whether to prefetch with AVX-512; AVX2 always does.
template <bool kFetch>
uint32_t max_of(const float* x, const float* e, uint64_t n) {
  const F f;
  const hn::RebindToSigned<F> d;
  const size_t lanes = hn::Lanes(f);
  const auto low31 = hn::Set(d, 0x7FFFFFFF);
  const auto bits = [&](uint64_t i) HWY_ATTR {
    if constexpr (kFetch && kMaskRegisters) {
      prefetch_ahead<1024>(x + i);
      if (e != nullptr) prefetch_ahead<1024>(e + i);
    }
    auto a = hn::LoadU(f, x + i);
    if (e != nullptr) a = hn::Add(a, hn::LoadU(f, e + i));
    return hn::And(hn::BitCast(d, a), low31);
  };
  auto m0 = hn::Zero(d), m1 = m0, m2 = m0, m3 = m0;
  uint64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    if constexpr (kPrefetch && !kMaskRegisters) {
      prefetch_ahead(x + i);
      if (e != nullptr) prefetch_ahead(e + i);
    }
    m0 = hn::Max(m0, bits(i));
    m1 = hn::Max(m1, bits(i + lanes));
    m2 = hn::Max(m2, bits(i + 2 * lanes));
    m3 = hn::Max(m3, bits(i + 3 * lanes));
  }
  for (; i + lanes <= n; i += lanes) m0 = hn::Max(m0, bits(i));
  const auto m = hn::Max(hn::Max(m0, m1), hn::Max(m2, m3));
  const uint32_t most = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, m)));
  const uint32_t rest = kThreeLcScalar.max_abs_bits(x + i, e == nullptr ? e : e + i, n - i, false);
  return HWY_MAX(most, rest);
}

uint32_t max_abs_bits(const float* x, const float* e, uint64_t n, bool prefetch) {
  return prefetch ? max_of<true>(x, e, n) : max_of<false>(x, e, n);
}

// One vector of each of the five rows: bytes of the columns at j.
template <bool kFeedback, class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> pack_vector(D f, const float* HWY_RESTRICT x,
                                                        float* HWY_RESTRICT e, uint64_t stride,
                                                        hn::Vec<D> m, hn::Vec<D> up,
                                                        hn::Vec<D> down) {
  const hn::RebindToUnsigned<D> u;
  auto byte = hn::Set(u, kZeroByte);
  for (uint32_t i = 0; i < kDigits; ++i) {
    auto a = hn::LoadU(f, x + i * stride);
    if constexpr (kFeedback) a = hn::Add(a, hn::LoadU(f, e + i * stride));
    const auto plus = hn::Gt(a, up);
    const auto minus = hn::Lt(a, down);
    const auto weight = hn::Set(u, kDigitWeight[i]);
    const auto plus_u = hn::RebindMask(u, plus);
    const auto minus_u = hn::RebindMask(u, minus);
    if constexpr (kMaskRegisters) {
      byte = hn::IfThenElse(plus_u, hn::Add(byte, weight), byte);
      byte = hn::IfThenElse(minus_u, hn::Sub(byte, weight), byte);
      a = hn::IfThenElse(plus, hn::Sub(a, m), a);
      a = hn::IfThenElse(minus, hn::Add(a, m), a);
    } else {
      byte = hn::Add(byte, hn::IfThenElseZero(plus_u, weight));
      byte = hn::Sub(byte, hn::IfThenElseZero(minus_u, weight));
      a = hn::Sub(a, hn::Or(hn::IfThenElseZero(plus, m), hn::IfThenElseZero(minus, hn::Neg(m))));
    }
    if constexpr (kFeedback) hn::StoreU(a, f, e + i * stride);
  }
  return byte;
}

/// Into the second-level cache, five rows further: so memory does not rest while a chunk is packed.
HWY_INLINE void prefetch_next(const float* x, uint64_t stride) {
  const auto at = reinterpret_cast<uintptr_t>(x);
  for (uint64_t i = kDigits; i < 2 * kDigits; ++i) {
    __builtin_prefetch(reinterpret_cast<const void*>(at + i * stride * sizeof(float)), 0, 2);
  }
}

template <bool kFeedback, class D>
HWY_INLINE uint64_t pack_span(D f, const float* x, float* e, uint64_t stride, uint64_t j,
                              uint64_t columns, ThreeLcScale scale, bool fetch_next,
                              uint8_t* bytes) {
  const size_t lanes = hn::Lanes(f);
  const hn::Rebind<uint8_t, D> bytes_tag;
  const auto m = hn::Set(f, scale.m);
  const auto up = hn::Set(f, scale.threshold);
  const auto down = hn::Set(f, -scale.threshold);
  for (; j + lanes <= columns; j += lanes) {
    if (fetch_next) prefetch_next(x + j, stride);
    if (kFeedback && fetch_next) prefetch_next(e + j, stride);
    const auto byte =
        pack_vector<kFeedback>(f, x + j, kFeedback ? e + j : nullptr, stride, m, up, down);
    hn::StoreU(hn::U8FromU32(byte), bytes_tag, bytes + j);
  }
  return j;
}

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2

// m·q of eight values; e becomes the rest.
template <bool kFeedback>
HWY_INLINE __m256i sent_of_8(const float* x, float* e, __m256 m, __m256 up, __m256 down) {
  const __m256 negative = _mm256_sub_ps(_mm256_setzero_ps(), m);
  __m256 a = _mm256_loadu_ps(x);
  if constexpr (kFeedback) a = _mm256_add_ps(a, _mm256_loadu_ps(e));
  const __m256 plus = _mm256_and_ps(_mm256_cmp_ps(a, up, _CMP_GT_OQ), m);
  const __m256 sent = _mm256_blendv_ps(plus, negative, _mm256_cmp_ps(a, down, _CMP_LT_OQ));
  if constexpr (kFeedback) _mm256_storeu_ps(e, _mm256_sub_ps(a, sent));
  return _mm256_castps_si256(sent);
}

// Row `row` of whole groups of 32 columns. Digits are gathered row by row, bytes = 3 · bytes + q,
// so that x and e are each read as one stream; the bytes wait in the first-level cache.
template <bool kFeedback>
HWY_INLINE void pack_row(const float* x, float* e, uint64_t columns, ThreeLcScale scale,
                         uint32_t row, uint8_t* bytes) {
  const __m256 m = _mm256_set1_ps(scale.m);
  const __m256 up = _mm256_set1_ps(scale.threshold);
  const __m256 down = _mm256_set1_ps(-scale.threshold);
  const __m256i one = _mm256_set1_epi8(1);
  const __m256i in_order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const auto sent = [&](uint64_t j) HWY_ATTR {
    return sent_of_8<kFeedback>(x + j, kFeedback ? e + j : nullptr, m, up, down);
  };
  for (uint64_t j = 0; j < columns; j += 32) {
    auto* const to = reinterpret_cast<__m256i*>(bytes + j);
    const __m256i low = _mm256_packs_epi32(sent(j), sent(j + 8));
    const __m256i high = _mm256_packs_epi32(sent(j + 16), sent(j + 24));
    // Saturated, the bits of a float of normal size keep their sign, and those of 0 are 0.
    __m256i digits = _mm256_sign_epi8(one, _mm256_packs_epi16(low, high));
    if (row > 0) {
      const __m256i before = _mm256_loadu_si256(to);
      digits = _mm256_add_epi8(digits, _mm256_add_epi8(before, _mm256_add_epi8(before, before)));
    }
    if (row == kDigits - 1) {
      digits = _mm256_add_epi8(digits, _mm256_set1_epi8(kZeroByte));
      digits = _mm256_permutevar8x32_epi32(digits, in_order);
    }
    _mm256_storeu_si256(to, digits);
  }
}

template <bool kFeedback>
HWY_INLINE uint64_t pack_rows(const float* x, float* e, uint64_t stride, uint64_t columns,
                              ThreeLcScale scale, uint8_t* bytes) {
  const uint64_t whole = columns & ~uint64_t{31};
  for (uint32_t i = 0; i < kDigits; ++i) {
    pack_row<kFeedback>(x + i * stride, kFeedback ? e + i * stride : nullptr, whole, scale, i,
                        bytes);
  }
  return whole;
}

#else

// The other instruction sets go column by column.
template <bool kFeedback>
HWY_INLINE uint64_t pack_rows(const float*, float*, uint64_t, uint64_t, ThreeLcScale, uint8_t*) {
  return 0;
}

#endif

template <bool kFeedback>
void pack_all(const float* x, float* e, uint64_t stride, uint64_t columns, ThreeLcScale scale,
              bool fetch_next, uint8_t* bytes) {
  fetch_next = fetch_next && kMaskRegisters;
  uint64_t j = pack_rows<kFeedback>(x, e, stride, columns, scale, bytes);
  j = pack_span<kFeedback>(F(), x, e, stride, j, columns, scale, fetch_next, bytes);
  j = pack_span<kFeedback>(Narrow(), x, e, stride, j, columns, scale, false, bytes);
  kThreeLcScalar.pack(x + j, kFeedback ? e + j : nullptr, stride, columns - j, scale, false,
                      bytes + j);
}

void pack(const float* x, float* e, uint64_t stride, uint64_t columns, ThreeLcScale scale,
          bool fetch_next, uint8_t* bytes) {
  if (e == nullptr) {
    pack_all<false>(x, e, stride, columns, scale, fetch_next, bytes);
  } else {
    pack_all<true>(x, e, stride, columns, scale, fetch_next, bytes);
  }
}

// ---- back to floats ----

// The values that a term adds, by digit (`low`) and by the upper digit of a pair 3·upper + lower
// (`high`).
struct TermTable {
  alignas(64) float low[16];
  alignas(64) float high[16];
};

// q = v / 3^k for bytes in 32-bit lanes: the upper halves of 16-bit products with ceil(2^16 / 3^k),
// exact for v ≤ 242.
template <class U>
HWY_INLINE hn::Vec<U> divide(U u, hn::Vec<U> v, uint32_t reciprocal) {
  const hn::Repartition<uint16_t, U> h;
  return hn::BitCast(u, hn::MulHigh(hn::BitCast(h, v), hn::BitCast(h, hn::Set(u, reciprocal))));
}
template <class U>
HWY_INLINE hn::Vec<U> multiply(U u, hn::Vec<U> v, uint32_t factor) {
  const hn::Repartition<uint16_t, U> h;
  return hn::BitCast(u, hn::Mul(hn::BitCast(h, v), hn::BitCast(h, hn::Set(u, factor))));
}

// Adds a term's five contributions for the bytes at `bytes`.
template <class D, class V = hn::Vec<D>>
HWY_INLINE void add_digits(D f, const uint8_t* bytes, const TermTable& table, V& s0, V& s1, V& s2,
                           V& s3, V& s4) {
  const hn::RebindToUnsigned<D> u;
  const hn::RebindToSigned<D> d;
  const hn::Rebind<uint8_t, D> b;
  const auto v = hn::PromoteTo(u, hn::LoadU(b, bytes));
  const auto low = hn::Load(f, table.low);
  if constexpr (hn::MaxLanes(f) == 16) {
    // Sixteen lanes hold all nine values of a pair of digits: v = 27·pair + rest, rest = 9·t +
    // pair.
    const auto high = hn::Load(f, table.high);
    const auto first = divide(u, v, 2428);
    const auto rest = hn::Sub(v, multiply(u, first, 27));
    const auto third = divide(u, rest, 7282);
    const auto last = hn::Sub(rest, multiply(u, third, 9));
    const auto look = [&](V values, hn::Vec<decltype(u)> at) HWY_ATTR {
      return hn::TableLookupLanes(values, hn::IndicesFromVec(f, hn::BitCast(d, at)));
    };
    s0 = hn::Add(s0, look(high, first));
    s1 = hn::Add(s1, look(low, first));
    s2 = hn::Add(s2, look(low, third));
    s3 = hn::Add(s3, look(high, last));
    s4 = hn::Add(s4, look(low, last));
  } else {
    // The digit of weight 3^k is floor(3 · fraction(v / 3^(k+1))), in 16-bit fixed point.
    const auto digit = [&](uint32_t reciprocal)
                           HWY_ATTR { return divide(u, multiply(u, v, reciprocal), 3); };
    const auto value = [&](hn::Vec<decltype(u)> t) HWY_ATTR {
      if constexpr (hn::MaxLanes(f) == 8) {
        return hn::TableLookupLanes(low, hn::IndicesFromVec(f, hn::BitCast(d, t)));
      } else {
        const auto plus = hn::RebindMask(f, hn::Eq(t, hn::Set(u, 2)));
        const auto minus = hn::RebindMask(f, hn::Eq(t, hn::Zero(u)));
        const auto other =
            hn::IfThenElse(minus, hn::Set(f, table.low[0]), hn::Set(f, table.low[1]));
        return hn::IfThenElse(plus, hn::Set(f, table.low[2]), other);
      }
    };
    s0 = hn::Add(s0, value(digit(270)));
    s1 = hn::Add(s1, value(digit(810)));
    s2 = hn::Add(s2, value(digit(2428)));
    s3 = hn::Add(s3, value(digit(7282)));
    s4 = hn::Add(s4, value(digit(21846)));
  }
}

template <bool kAdd, class D>
HWY_INLINE uint64_t unpack_span(D f, const ThreeLcTerm* terms, const TermTable* tables,
                                uint32_t term_count, uint64_t j, uint64_t columns, float* out,
                                uint64_t stride) {
  const size_t lanes = hn::Lanes(f);
  for (; j + lanes <= columns; j += lanes) {
    float* const o = out + j;
    auto s0 = kAdd ? hn::LoadU(f, o) : hn::Zero(f);
    auto s1 = kAdd ? hn::LoadU(f, o + stride) : hn::Zero(f);
    auto s2 = kAdd ? hn::LoadU(f, o + 2 * stride) : hn::Zero(f);
    auto s3 = kAdd ? hn::LoadU(f, o + 3 * stride) : hn::Zero(f);
    auto s4 = kAdd ? hn::LoadU(f, o + 4 * stride) : hn::Zero(f);
    for (uint32_t t = 0; t < term_count; ++t) {
      add_digits(f, terms[t].bytes + j, tables[t], s0, s1, s2, s3, s4);
    }
    hn::StoreU(s0, f, o);
    hn::StoreU(s1, f, o + stride);
    hn::StoreU(s2, f, o + 2 * stride);
    hn::StoreU(s3, f, o + 3 * stride);
    hn::StoreU(s4, f, o + 4 * stride);
  }
  return j;
}

#if HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2

// Sums of sixteen columns: row i of the first eight at [i], of the others at [kDigits + i].
struct Sums {
  __m256 v[2 * kDigits];
};

// Adds a term's contributions; the first of all terms finds nothing to add to. A 32-bit lane holds
// the bytes of two columns eight apart, so that one multiplication serves both.
template <bool kFirst>
HWY_INLINE void add_digits_16(const uint8_t* bytes, __m256 values, Sums& sums) {
  constexpr int16_t kReciprocal[kDigits] = {0, 810, 2428, 7282, 21846};
  const __m256i lanes =
      _mm256_setr_epi8(0, -1, 8, -1, 1, -1, 9, -1, 2, -1, 10, -1, 3, -1, 11, -1, 4, -1, 12, -1, 5,
                       -1, 13, -1, 6, -1, 14, -1, 7, -1, 15, -1);
  const __m128i sixteen = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
  const __m256i v = _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(sixteen), lanes);
  const auto add = [&](__m256& sum, __m256i digit) HWY_ATTR {
    const __m256 value = _mm256_permutevar_ps(values, digit);  // sees two bits of a lane
    sum = kFirst ? value : _mm256_add_ps(sum, value);
  };
  const auto add_row = [&](uint32_t row, __m256i digit) HWY_ATTR {
    add(sums.v[row], digit);
    add(sums.v[kDigits + row], _mm256_srli_epi32(digit, 16));
  };
  // As in add_digits: floor(v / 81), and floor(3 · fraction(v / 3^(k+1))) for the others.
  add_row(0, _mm256_mulhi_epu16(v, _mm256_set1_epi16(810)));
  for (uint32_t i = 1; i < kDigits; ++i) {
    const __m256i fraction = _mm256_mullo_epi16(v, _mm256_set1_epi16(kReciprocal[i]));
    add_row(i, _mm256_mulhi_epu16(fraction, _mm256_set1_epi16(3)));
  }
}

// As unpack_span, sixteen columns per step.
template <bool kAdd>
HWY_INLINE uint64_t unpack_rows(const ThreeLcTerm* terms, const TermTable* tables,
                                uint32_t term_count, uint64_t columns, float* out,
                                uint64_t stride) {
  const auto values = [&](uint32_t t) HWY_ATTR {
    return _mm256_broadcast_ps(reinterpret_cast<const __m128*>(tables[t].low));
  };
  const __m256 first = _mm256_add_ps(_mm256_setzero_ps(), values(0));
  uint64_t j = 0;
  for (; j + 16 <= columns; j += 16) {
    float* const o = out + j;
    Sums sums;
    if constexpr (kAdd) {
      for (uint32_t i = 0; i < kDigits; ++i) {
        sums.v[i] = _mm256_loadu_ps(o + i * stride);
        sums.v[kDigits + i] = _mm256_loadu_ps(o + i * stride + 8);
      }
      add_digits_16<false>(terms[0].bytes + j, values(0), sums);
    } else {
      add_digits_16<true>(terms[0].bytes + j, first, sums);
    }
    for (uint32_t t = 1; t < term_count; ++t) {
      add_digits_16<false>(terms[t].bytes + j, values(t), sums);
    }
    for (uint32_t i = 0; i < kDigits; ++i) {
      _mm256_storeu_ps(o + i * stride, sums.v[i]);
      _mm256_storeu_ps(o + i * stride + 8, sums.v[kDigits + i]);
    }
  }
  return j;
}

#else

template <bool kAdd>
HWY_INLINE uint64_t unpack_rows(const ThreeLcTerm*, const TermTable*, uint32_t, uint64_t, float*,
                                uint64_t) {
  return 0;
}

#endif

void fill_tables(const ThreeLcTerm* terms, uint32_t term_count, TermTable* tables) {
  for (uint32_t t = 0; t < term_count; ++t) {
    for (uint32_t pair = 0; pair < 16; ++pair) {
      tables[t].low[pair] = terms[t].value[pair % 3];
      tables[t].high[pair] = terms[t].value[pair / 3 % 3];
    }
  }
}

template <bool kAdd>
HWY_INLINE void unpack_dense(const ThreeLcTerm* terms, const TermTable* tables, uint32_t term_count,
                             uint64_t columns, float* out, uint64_t stride) {
  uint64_t j = unpack_rows<kAdd>(terms, tables, term_count, columns, out, stride);
  j = unpack_span<kAdd>(F(), terms, tables, term_count, j, columns, out, stride);
  j = unpack_span<kAdd>(Narrow(), terms, tables, term_count, j, columns, out, stride);
  if (j == columns) return;
  ThreeLcTerm rest[kMaxUnpackTerms];
  for (uint32_t t = 0; t < term_count; ++t) {
    rest[t] = terms[t];
    rest[t].bytes += j;
  }
  kThreeLcScalar.unpack(rest, term_count, columns - j, out + j, stride, kAdd);
}

/// Lists the groups of bytes[0, columns) that hold another byte than five zeros.
HWY_INLINE uint64_t list_groups(const uint8_t* bytes, uint64_t columns, uint16_t* list) {
  const B16 d;
  const auto zeros = hn::Set(d, kZeroByte);
  uint64_t listed = 0;
  for (uint64_t j = 0; j + kZeroGroup <= columns; j += kZeroGroup) {
    list[listed] = static_cast<uint16_t>(j);
    listed += hn::AllTrue(d, hn::Eq(hn::LoadU(d, bytes + j), zeros)) ? 0U : 1U;
  }
  return listed;
}

// x[0, n) = value, n ≥ kZeroGroup. A store that crosses a line costs two, so all but the ends are
// aligned.
HWY_INLINE void fill_row(float* x, uint64_t n, float value) {
  const F f;
  const uint64_t lanes = hn::Lanes(f);
  const auto v = hn::Set(f, value);
  hn::StoreU(v, f, x);
  uint64_t i = lanes - reinterpret_cast<uintptr_t>(x) / sizeof(float) % lanes;
  for (; i + lanes <= n; i += lanes) hn::StoreU(v, f, x + i);
  hn::StoreU(v, f, x + n - lanes);
}

HWY_INLINE void unpack_group(const ThreeLcTerm& term, const TermTable& table, uint64_t j,
                             float* out, uint64_t stride) {
  const ThreeLcTerm at{term.bytes + j, {}};
  const uint64_t done = unpack_rows<false>(&at, &table, 1, kZeroGroup, out + j, stride);
  unpack_span<false>(F(), &at, &table, 1, done, kZeroGroup, out + j, stride);
}

// One term's columns from j on, at most kZeroColumns: zeros are written without a look at digits,
// if they are most. Returns how many columns are done.
HWY_INLINE uint64_t unpack_zeros(const ThreeLcTerm& term, const TermTable& table, uint64_t j,
                                 uint64_t columns, float* out, uint64_t stride) {
  const uint64_t done = HWY_MIN(kZeroColumns, columns - j) / kZeroGroup * kZeroGroup;
  uint16_t list[kZeroColumns / kZeroGroup + 1];
  const uint64_t listed = list_groups(term.bytes + j, done, list);
  if (done == 0 || 2 * listed * kZeroGroup > done) return 0;
  for (uint32_t i = 0; i < kDigits; ++i) {
    fill_row(out + i * stride + j, done, 0.0F + term.value[1]);
  }
  for (uint64_t k = 0; k < listed; ++k) unpack_group(term, table, j + list[k], out, stride);
  return done;
}

// One term, of which nearly all groups may be zeros.
HWY_INLINE void unpack_alone(const ThreeLcTerm& term, const TermTable& table, uint64_t columns,
                             float* out, uint64_t stride) {
  for (uint64_t j = 0; j < columns;) {
    uint64_t done = unpack_zeros(term, table, j, columns, out, stride);
    if (done == 0) {
      done = HWY_MIN(kZeroColumns, columns - j);
      const ThreeLcTerm at{term.bytes + j, {term.value[0], term.value[1], term.value[2]}};
      unpack_dense<false>(&at, &table, 1, done, out + j, stride);
    }
    j += done;
  }
}

template <bool kAdd>
HWY_INLINE void unpack_block(const ThreeLcTerm* terms, const TermTable* tables, uint32_t term_count,
                             uint64_t columns, float* out, uint64_t stride) {
  if (!kAdd && term_count == 1) return unpack_alone(*terms, *tables, columns, out, stride);
  unpack_dense<kAdd>(terms, tables, term_count, columns, out, stride);
}

void unpack(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns, float* out,
            uint64_t stride, bool add) {
  TermTable tables[kMaxUnpackTerms];
  fill_tables(terms, term_count, tables);
  if (add) {
    unpack_block<true>(terms, tables, term_count, columns, out, stride);
  } else {
    unpack_block<false>(terms, tables, term_count, columns, out, stride);
  }
}

// Floats from `to` to the first address that a vector can be streamed to.
HWY_INLINE uint64_t before_vector(const float* to) {
  const uint64_t lanes = hn::Lanes(F());
  return (lanes - reinterpret_cast<uintptr_t>(to) / sizeof(float) % lanes) % lanes;
}

// Copies past the caches: whole vectors to aligned addresses, the ends as usual.
HWY_INLINE void stream_row(const float* from, uint64_t n, float* to) {
  const F f;
  const size_t lanes = hn::Lanes(f);
  uint64_t i = HWY_MIN(n, before_vector(to));
  if (i > 0) std::memcpy(to, from, i * sizeof(float));
  for (; i + lanes <= n; i += lanes) hn::Stream(hn::LoadU(f, from + i), f, to + i);
  if (i < n) std::memcpy(to + i, from + i, (n - i) * sizeof(float));
}

inline constexpr uint64_t kStageStride = kStageColumns + kStreamFollow;

/// unpack_alone() into a stage, again and again: zeros stay where nothing else was written.
class ZeroStage {
 public:
  HWY_INLINE ZeroStage(const ThreeLcTerm& term, const TermTable& table, float* stage)
      : term_(term), table_(table), stage_(stage), zero_(0.0F + term.value[1]) {}

  HWY_INLINE void unpack(const uint8_t* bytes, uint64_t columns) {
    clear_written();
    const ThreeLcTerm at{bytes, {term_.value[0], term_.value[1], term_.value[2]}};
    const uint64_t whole = columns / kZeroGroup * kZeroGroup;
    listed_ = list_groups(bytes, whole, list_);
    columns_ = columns;
    dense_ = 2 * listed_ * kZeroGroup > whole || whole != columns;
    if (dense_) return unpack_dense<false>(&at, &table_, 1, columns, stage_, kStageStride);
    for (uint64_t k = 0; k < listed_; ++k) unpack_group(at, table_, list_[k], stage_, kStageStride);
  }

 private:
  HWY_INLINE void clear_written() {
    if (dense_) return clear(0, columns_);
    for (uint64_t k = 0; k < listed_; ++k) clear(list_[k], kZeroGroup);
  }
  /// Whole groups.
  HWY_INLINE void clear(uint64_t from, uint64_t columns) {
    const auto zero = hn::Set(F(), zero_);
    for (uint32_t i = 0; i < kDigits; ++i) {
      float* row = stage_ + i * kStageStride + from;
      for (uint64_t j = 0; j < columns; j += hn::Lanes(F())) hn::StoreU(zero, F(), row + j);
    }
  }
  static_assert(kStageStride % kZeroGroup == 0 && kZeroGroup % hn::MaxLanes(F()) == 0);

  const ThreeLcTerm& term_;
  const TermTable& table_;
  float* stage_;
  float zero_;
  uint64_t listed_ = 0, columns_ = kStageStride;
  bool dense_ = true;  ///< all columns were written, not groups of the list
  uint16_t list_[kStageStride / kZeroGroup + 1];
};

// A line of which a part is stored as usual costs a read from memory, so rows, which start at any
// address, are cut at vectors: a block leaves out what the one before wrote, and writes on to the
// next vector.
void unpack_stream(const ThreeLcTerm* terms, uint32_t term_count, uint64_t columns, uint64_t follow,
                   bool first, float* out, uint64_t stride) {
  alignas(64) float stage[kDigits * kStageStride];
  TermTable tables[kMaxUnpackTerms];
  fill_tables(terms, term_count, tables);
  ThreeLcTerm at[kMaxUnpackTerms];
  for (uint32_t t = 0; t < term_count; ++t) at[t] = terms[t];
  const bool alone = kMaskRegisters && term_count == 1;
  ZeroStage zeros(at[0], tables[0], stage);
  for (uint64_t j = 0; j < columns; j += kStageColumns) {
    const uint64_t n = HWY_MIN(kStageColumns, columns - j);
    const uint64_t beyond = HWY_MIN(kStreamFollow, columns - j - n + follow);
    if (alone) {
      zeros.unpack(at[0].bytes, n + beyond);
    } else {
      unpack_block<false>(at, tables, term_count, n + beyond, stage, kStageStride);
    }
    for (uint32_t i = 0; i < kDigits; ++i) {
      float* const row = out + i * stride + j;
      const uint64_t from = first && j == 0 ? 0 : HWY_MIN(n + beyond, before_vector(row));
      const uint64_t to = n + HWY_MIN(beyond, before_vector(row + n));
      if (from < to) stream_row(stage + i * kStageStride + from, to - from, row + from);
    }
    for (uint32_t t = 0; t < term_count; ++t) at[t].bytes += n;
  }
  hwy::FlushStream();
}

constexpr ThreeLcKernels kTable{&max_abs_bits, &pack, &unpack, &unpack_stream};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const ThreeLcKernels& threelc_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kThreeLcScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

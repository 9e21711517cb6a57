// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/sparse/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/select_hwy.cc"
#include "kernels/core/prefetch.h"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F = hn::ScalableTag<float>;
using I = hn::RebindToSigned<F>;
using VI = hn::Vec<I>;

#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

// Keys are below 2^31, so signed comparisons order them. key >= floor is key > floor - 1, right for
// floor = 0 too.
HWY_INLINE VI above(uint32_t floor) { return hn::Set(I(), static_cast<int32_t>(floor) - 1); }

HWY_INLINE VI keys_of(hn::Vec<F> x) {
  const I d;
  return hn::And(hn::BitCast(d, x), hn::Set(d, 0x7FFFFFFF));
}
HWY_INLINE VI load_keys(const float* x) { return keys_of(hn::LoadU(F(), x)); }

// The input of a selection: an array, or the sums of two.
struct Single {
  const float* HWY_RESTRICT x;
  size_t end;  ///< of the whole array

  HWY_INLINE hn::Vec<F> vector(size_t i) const { return hn::LoadU(F(), x + i); }
  HWY_INLINE float element(size_t i) const { return x[i]; }
  HWY_INLINE void prefetch(size_t i) const { prefetch_within(x + i, x + end); }
};
struct Sum {
  const float* HWY_RESTRICT x;
  const float* HWY_RESTRICT y;
  size_t end;

  HWY_INLINE hn::Vec<F> vector(size_t i) const {
    return hn::Add(hn::LoadU(F(), x + i), hn::LoadU(F(), y + i));
  }
  HWY_INLINE float element(size_t i) const { return x[i] + y[i]; }
  HWY_INLINE void prefetch(size_t i) const {
    prefetch_within(x + i, x + end);
    prefetch_within(y + i, y + end);
  }
};

// The sums of two, which the second takes up.
struct Added {
  const float* HWY_RESTRICT x;
  float* HWY_RESTRICT y;
  size_t end;

  HWY_INLINE hn::Vec<F> vector(size_t i) const {
    const auto sum = hn::Add(hn::LoadU(F(), x + i), hn::LoadU(F(), y + i));
    hn::StoreU(sum, F(), y + i);
    return sum;
  }
  HWY_INLINE float element(size_t i) const { return y[i] += x[i]; }
  HWY_INLINE void prefetch(size_t i) const {
    prefetch_within(x + i, x + end);
    prefetch_within(y + i, y + end);
  }
};

// Elements that share a word of hits.
#if LACONIC_AVX512
constexpr uint32_t kGroup = 64;
using Bits = uint64_t;
#elif HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
constexpr uint32_t kGroup = 32;
using Bits = uint32_t;
#else
constexpr uint32_t kGroup = 16;
using Bits = uint16_t;
#endif

// One bit per element of the group from `begin` on whose key is above the bound.
template <class From>
HWY_INLINE Bits group_bits(const From& from, size_t begin, VI bound) {
#if LACONIC_AVX512
  const auto bits = [&](size_t i)
                        HWY_ATTR { return hn::Gt(keys_of(from.vector(begin + i)), bound).raw; };
  const __mmask32 low = _mm512_kunpackw(bits(16), bits(0));
  const __mmask32 high = _mm512_kunpackw(bits(48), bits(32));
  return _cvtmask64_u64(_mm512_kunpackd(high, low));
#elif HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2
  const auto above = [&](size_t i) HWY_ATTR {
    return hn::VecFromMask(I(), hn::Gt(keys_of(from.vector(begin + i)), bound)).raw;
  };
  // Packing works within halves of a register: afterwards words of four elements are interleaved.
  const __m256i low = _mm256_packs_epi32(above(0), above(8));
  const __m256i high = _mm256_packs_epi32(above(16), above(24));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(low, high), order);
  return static_cast<Bits>(_mm256_movemask_epi8(bytes));
#else
  const size_t lanes = hn::Lanes(I());
  uint32_t bits = 0;
  for (size_t i = 0; i < kGroup; i += lanes) {
    const auto above = hn::Gt(keys_of(from.vector(begin + i)), bound);
#if HWY_ARCH_X86
    bits |= static_cast<uint32_t>(_mm_movemask_ps(_mm_castsi128_ps(above.raw))) << i;
#else
    uint8_t some[8] = {};
    hn::StoreMaskBits(I(), above, some);
    bits |= uint32_t{some[0]} << i;
#endif
  }
  return static_cast<Bits>(bits);
#endif
}

#if LACONIC_AVX512
constexpr uint32_t kVector = 16;

// The hits of listed groups, vector by vector: a group's only where there is one.
HWY_INLINE uint32_t list_vectors(const Bits* hits, const uint16_t* group, uint32_t listed,
                                 uint16_t* vector_hits, uint16_t* vector) {
  uint32_t vectors = 0;
  for (uint32_t j = 0; j < listed; ++j) {
    for (uint32_t v = 0; v < kGroup / kVector; ++v) {
      const auto bits = static_cast<uint16_t>(hits[j] >> v * kVector);
      vector_hits[vectors] = bits;
      vector[vectors] = static_cast<uint16_t>(group[j] * (kGroup / kVector) + v);
      vectors += bits != 0 ? 1U : 0U;
    }
  }
  return vectors;
}

// Appends the elements of a vector that `bits` names. Writes up to 16 entries past the last.
// Without VPCOMPRESSD, which is slow on Zen 5: places, four bits each, are drawn together by
// PEXT, and eight are enough nearly always.
template <class From>
HWY_INLINE uint32_t append_vector(const From& from, uint32_t begin, uint32_t base, uint32_t bits,
                                  uint32_t* index, float* value) {
  const uint64_t wanted = _pdep_u64(bits, 0x1111111111111111U) * 15;
  const uint64_t places = _pext_u64(0xFEDCBA9876543210U, wanted);
  const __m512 x = from.vector(begin).raw;
  const __m256i first = _mm256_set1_epi32(static_cast<int>(base + begin));
  const auto eight = [&](uint64_t some, uint32_t to) HWY_ATTR {
    const auto bytes = static_cast<int64_t>(_pdep_u64(some, 0x0F0F0F0F0F0F0F0FU));
    const __m256i at = _mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(index + to), _mm256_add_epi32(at, first));
    const __m512 found = _mm512_permutexvar_ps(_mm512_castsi256_si512(at), x);
    _mm256_storeu_ps(value + to, _mm512_castps512_ps256(found));
  };
  eight(places, 0);
  const auto found = static_cast<uint32_t>(__builtin_popcount(bits));
  if (HWY_UNLIKELY(found > 8)) eight(places >> 32, 8);
  return found;
}
#else
// Appends the elements from `begin` on that `bits` names.
template <class From>
HWY_INLINE uint32_t append_group(const From& from, uint32_t begin, uint32_t base, uint32_t bits,
                                 uint32_t* index, float* value) {
  uint32_t found = 0;
  for (; bits != 0; bits &= bits - 1) {
    const auto i = static_cast<uint32_t>(__builtin_ctz(bits));
    index[found] = base + begin + i;
    value[found] = from.element(begin + i);
    ++found;
  }
  return found;
}
#endif

// Two loops, neither with a branch on single elements. The first finds the groups that have a hit
// at all and lists them by advancing a cursor; the second goes over those (of groups of 64 6 % at
// density 0.1 %, 47 % at 1 %), in the first-level cache, where they are `again`.
template <class From, class Again>
HWY_INLINE uint32_t select_from(const From from, const Again again, uint32_t n, uint32_t base,
                                uint32_t floor, uint32_t* HWY_RESTRICT index,
                                float* HWY_RESTRICT value) {
  Bits hits[kSelectBlock / kGroup + 1];
  uint16_t group[kSelectBlock / kGroup + 1];
  const VI bound = above(floor);
  const uint32_t groups = n / kGroup;
  uint32_t listed = 0;
  for (uint32_t g = 0; g < groups; ++g) {
    const size_t begin = size_t{g} * kGroup;
    for (size_t i = 0; i < kGroup; i += 16) from.prefetch(begin + i + 1024);  // 8 KiB: +4 %
    const Bits bits = group_bits(from, begin, bound);
    hits[listed] = bits;
    group[listed] = static_cast<uint16_t>(g);
    listed += bits != 0 ? 1U : 0U;
  }
  uint32_t found = 0;
#if LACONIC_AVX512
  uint16_t vector_hits[kSelectBlock / kVector + 1], vector[kSelectBlock / kVector + 1];
  const uint32_t vectors = list_vectors(hits, group, listed, vector_hits, vector);
  for (uint32_t j = 0; j < vectors; ++j) {
    found += append_vector(again, vector[j] * kVector, base, vector_hits[j], index + found,
                           value + found);
  }
#else
  for (uint32_t j = 0; j < listed; ++j) {
    found += append_group(again, group[j] * kGroup, base, hits[j], index + found, value + found);
  }
#endif
  for (uint32_t i = groups * kGroup; i < n; ++i) {
    const float x = from.element(i);
    index[found] = base + i;
    value[found] = x;
    found += magnitude_key(x) >= floor ? 1U : 0U;
  }
  return found;
}

uint32_t select(const float* x, uint32_t n, uint64_t behind, uint32_t base, uint32_t floor,
                uint32_t* index, float* value) {
  const Single from{x, n + behind};
  return select_from(from, from, n, base, floor, index, value);
}

uint32_t select_sum(const float* x, const float* y, uint32_t n, uint64_t behind, uint32_t base,
                    uint32_t floor, uint32_t* index, float* value) {
  const Sum from{x, y, n + behind};
  return select_from(from, from, n, base, floor, index, value);
}

uint32_t select_added(const float* x, float* y, uint32_t n, uint64_t behind, uint32_t base,
                      uint32_t floor, uint32_t* index, float* value) {
  const uint64_t end = n + behind;
  return select_from(Added{x, y, end}, Single{y, end}, n, base, floor, index, value);
}

uint64_t count(const float* HWY_RESTRICT x, uint64_t n, uint32_t floor) {
  constexpr uint64_t kPart = uint64_t{1} << 24;  // a lane's counter cannot overflow
  const I d;
  const size_t lanes = hn::Lanes(d);
  const VI bound = above(floor);
  uint64_t found = 0;
  uint64_t i = 0;
  while (i + lanes <= n) {
    const uint64_t part = HWY_MIN(n - i, kPart) / lanes * lanes;
    VI c0 = hn::Zero(d), c1 = c0;
    const uint64_t end = i + part;
    for (; i + 2 * lanes <= end; i += 2 * lanes) {
      prefetch_within(x + i, x + n);
      c0 = hn::Sub(c0, hn::VecFromMask(d, hn::Gt(load_keys(x + i), bound)));
      c1 = hn::Sub(c1, hn::VecFromMask(d, hn::Gt(load_keys(x + i + lanes), bound)));
    }
    for (; i < end; i += lanes) {
      c0 = hn::Sub(c0, hn::VecFromMask(d, hn::Gt(load_keys(x + i), bound)));
    }
    found += static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, hn::Add(c0, c1))));
  }
  for (; i < n; ++i) found += magnitude_key(x[i]) >= floor ? 1U : 0U;
  return found;
}

/// Largest keys of the columns of `rows` whole rows.
HWY_INLINE void column_max(const float* HWY_RESTRICT x, uint64_t rows, int32_t* HWY_RESTRICT out) {
  const I d;
  const size_t lanes = hn::Lanes(d);
  for (size_t c = 0; c < kGroupColumns; c += 4 * lanes) {
    VI m0 = hn::Zero(d), m1 = m0, m2 = m0, m3 = m0;
    const float* row = x + c;
    for (uint64_t r = 0; r < rows; ++r, row += kGroupColumns) {
      m0 = hn::Max(m0, load_keys(row));
      m1 = hn::Max(m1, load_keys(row + lanes));
      m2 = hn::Max(m2, load_keys(row + 2 * lanes));
      m3 = hn::Max(m3, load_keys(row + 3 * lanes));
    }
    hn::StoreU(m0, d, out + c);
    hn::StoreU(m1, d, out + c + lanes);
    hn::StoreU(m2, d, out + c + 2 * lanes);
    hn::StoreU(m3, d, out + c + 3 * lanes);
  }
}

void group_max(const float* HWY_RESTRICT x, uint64_t n, uint32_t groups,
               uint32_t* HWY_RESTRICT maximum) {
  const uint64_t rows = group_rows(n, groups);
  const uint64_t whole = n / kGroupColumns;
  auto* const out = reinterpret_cast<int32_t*>(maximum);
  uint64_t row = 0;
  for (uint32_t g = 0; g < groups; g += kGroupColumns, row += rows) {
    const uint64_t begin = HWY_MIN(row, whole);
    column_max(x + begin * kGroupColumns, HWY_MIN(rows, whole - begin), out + g);
  }
  uint32_t* const last = maximum + whole / rows * kGroupColumns;
  for (uint64_t i = whole * kGroupColumns; i < n; ++i) {
    uint32_t& most = last[i % kGroupColumns];
    most = HWY_MAX(most, magnitude_key(x[i]));
  }
}

// As signed integers positives are above 0; of the others -0 alone is the smallest of all.
SignCounts count_signs(const float* HWY_RESTRICT x, uint64_t n) {
  constexpr uint64_t kPart = uint64_t{1} << 24;  // a lane's counter cannot overflow
  const I d;
  const size_t lanes = hn::Lanes(d);
  const VI zero = hn::Zero(d);
  SignCounts c;
  uint64_t i = 0;
  while (i + lanes <= n) {
    const uint64_t end = i + HWY_MIN(n - i, kPart) / lanes * lanes;
    VI positive = zero, nonzero = zero;
    for (; i < end; i += lanes) {
      const VI bits = hn::BitCast(d, hn::LoadU(F(), x + i));
#if LACONIC_AVX512
      const __m512i one = _mm512_set1_epi32(1);
      const __m512i magnitude = _mm512_set1_epi32(0x7FFFFFFF);
      positive.raw = _mm512_mask_add_epi32(
          positive.raw, _mm512_cmpgt_epi32_mask(bits.raw, zero.raw), positive.raw, one);
      nonzero.raw = _mm512_mask_add_epi32(nonzero.raw, _mm512_test_epi32_mask(bits.raw, magnitude),
                                          nonzero.raw, one);
#else
      const VI key = hn::And(bits, hn::Set(d, 0x7FFFFFFF));
      positive = hn::Sub(positive, hn::VecFromMask(d, hn::Gt(bits, zero)));
      nonzero = hn::Sub(nonzero, hn::VecFromMask(d, hn::Gt(key, zero)));
#endif
    }
    const auto above = static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, positive)));
    c.positive += above;
    c.negative += static_cast<uint64_t>(hn::GetLane(hn::SumOfLanes(d, nonzero))) - above;
  }
  for (; i < n; ++i) {
    const auto bits = std::bit_cast<uint32_t>(x[i]);
    c.positive += bits - 1 < 0x7FFFFFFFU ? 1U : 0U;
    c.negative += bits > 0x80000000U ? 1U : 0U;
  }
  return c;
}

constexpr SelectKernels kTable{&select, &select_sum, &select_added,
                               &count,  &group_max,  &count_signs};

#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const SelectKernels& select_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kSelectScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <iterator>
#include <limits>

#include "kernels/natural/natural.h"
#include "kernels/natural/natural_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/natural/natural_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/philox-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)
#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)

constexpr uint64_t kGroup = 64;  // elements that share 8 Philox blocks
constexpr uint64_t kVectors = kGroup / hn::MaxLanes(F32());
constexpr uint64_t kParts = kVectors / 4;  // Philox vectors of a group

/// The random bits of a group, vector by vector in the order of its elements.
HWY_INLINE void random_bits(const PhiloxWords* words, VU* HWY_RESTRICT r) {
  const VU mask = hn::Set(U32(), 0x7FFFFF);
  for (uint64_t p = 0; p < kParts; ++p) {
    r[p] = hn::And(hn::RotateRight<25>(words[p].w01), mask);
    r[kParts + p] = hn::ShiftRight<9>(words[p].w01);
    r[2 * kParts + p] = hn::And(hn::RotateRight<25>(words[p].w23), mask);
    r[3 * kParts + p] = hn::ShiftRight<9>(words[p].w23);
  }
}

/// Words of the group that begins at `offset`, two vectors at a time where there are two: with more
/// their state does not fit the registers.
HWY_INLINE void words_of(const Philox& random, uint64_t offset, PhiloxWords* words) {
  constexpr uint64_t kWays = HWY_MIN(kParts, uint64_t{2});
  for (uint64_t p = 0; p < kParts; p += kWays) {
    random.words<kWays>(offset / kGroup * 8 + p * philox_blocks(), words + p);
  }
}

// ---- sums to codes ----

#if LACONIC_AVX512
using VWords = __m512i;
HWY_INLINE VWords pack_words(VU a, VU b) {
  return _mm512_packus_epi32(hn::ShiftRight<23>(a).raw, hn::ShiftRight<23>(b).raw);
}
HWY_INLINE VWords exponents_of(VWords w) { return _mm512_and_si512(w, _mm512_set1_epi16(0xFF)); }
HWY_INLINE VWords max_words(VWords a, VWords b) { return _mm512_max_epu16(a, b); }
HWY_INLINE VWords codes_of(VWords w, VWords exponents) {
  const VWords code =
      _mm512_min_epu16(_mm512_subs_epu16(exponents, _mm512_set1_epi16(kNaturalLowest)),
                       _mm512_set1_epi16(kNaturalHighest - kNaturalLowest));
  const VWords sign = _mm512_srli_epi16(w, 1);
  // code | (sign & 0x80)
  return _mm512_ternarylogic_epi32(code, sign, _mm512_set1_epi16(0x80), 0xF8);
}
HWY_INLINE void store_codes(VWords w01, VWords w23, uint8_t* codes) {
  const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  _mm512_storeu_si512(codes, _mm512_permutexvar_epi32(order, _mm512_packus_epi16(w01, w23)));
}
#elif LACONIC_AVX2
using VWords = __m256i;
HWY_INLINE VWords pack_words(VU a, VU b) {
  return _mm256_packus_epi32(hn::ShiftRight<23>(a).raw, hn::ShiftRight<23>(b).raw);
}
HWY_INLINE VWords exponents_of(VWords w) { return _mm256_and_si256(w, _mm256_set1_epi16(0xFF)); }
HWY_INLINE VWords max_words(VWords a, VWords b) { return _mm256_max_epu16(a, b); }
HWY_INLINE VWords codes_of(VWords w, VWords exponents) {
  const VWords code =
      _mm256_min_epu16(_mm256_subs_epu16(exponents, _mm256_set1_epi16(kNaturalLowest)),
                       _mm256_set1_epi16(kNaturalHighest - kNaturalLowest));
  const VWords sign = _mm256_and_si256(_mm256_srli_epi16(w, 1), _mm256_set1_epi16(0x80));
  return _mm256_or_si256(code, sign);
}
HWY_INLINE void store_codes(VWords w01, VWords w23, uint8_t* codes) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                      _mm256_permutevar8x32_epi32(_mm256_packus_epi16(w01, w23), order));
}
#endif

/// The largest biased exponents seen, lane by lane.
#if LACONIC_AVX512 || LACONIC_AVX2
using Largest = VWords;
HWY_INLINE void see(VWords exponents, Largest& most) { most = max_words(most, exponents); }
HWY_INLINE Largest nothing_seen() { return pack_words(hn::Zero(U32()), hn::Zero(U32())); }
#else
using Largest = VU;
HWY_INLINE void see(VU exponents, Largest& most) { most = hn::Max(most, exponents); }
HWY_INLINE Largest nothing_seen() { return hn::Zero(U32()); }
#endif

/// Whether some x may not be finite: rounding takes the largest floats to 255, too.
HWY_INLINE bool suspicious(const Largest& most) {
  uint16_t words[sizeof(Largest) / sizeof(uint16_t)];
  std::memcpy(words, &most, sizeof words);
  return *std::max_element(std::begin(words), std::end(words)) >= 254;
}

HWY_INLINE void write_codes(const VU* HWY_RESTRICT sums, uint8_t* codes, Largest& largest) {
#if LACONIC_AVX512 || LACONIC_AVX2
  for (uint64_t v = 0; v < kVectors; v += 4) {
    const VWords w01 = pack_words(sums[v], sums[v + 1]);
    const VWords w23 = pack_words(sums[v + 2], sums[v + 3]);
    const VWords e01 = exponents_of(w01), e23 = exponents_of(w23);
    see(e01, largest);
    see(e23, largest);
    store_codes(codes_of(w01, e01), codes_of(w23, e23), codes + v * lanes32());
  }
#else
  const hn::Rebind<uint8_t, U32> d8;
  const VU lowest = hn::Set(U32(), kNaturalLowest), highest = hn::Set(U32(), kNaturalHighest);
  for (uint64_t v = 0; v < kVectors; ++v) {
    const VU exponent = hn::And(hn::ShiftRight<23>(sums[v]), hn::Set(U32(), 0xFF));
    see(exponent, largest);
    const VU code = hn::Sub(hn::Min(hn::Max(exponent, lowest), highest), lowest);
    const VU sign = hn::And(hn::ShiftRight<24>(sums[v]), hn::Set(U32(), 0x80));
    hn::StoreU(hn::TruncateTo(d8, hn::Or(code, sign)), d8, codes + v * lanes32());
  }
#endif
}

HWY_INLINE VU bits_of(const float* x) { return hn::BitCast(U32(), hn::LoadU(F32(), x)); }

/// Codes of the whole groups x[0, 64·kGroups), the first of them element `offset`.
template <uint64_t kGroups>
HWY_INLINE void encode_groups(const float* x, uint8_t* codes, const Philox& random, uint64_t offset,
                              Largest& largest) {
  // All words first: more of the multiplications' chains overlap than with codes in between.
  PhiloxWords words[kParts * kGroups];
  if constexpr (kParts == 1) {
    random.words<kGroups>(offset / kGroup * 8, words);
  } else {
    for (uint64_t g = 0; g < kGroups; ++g) {
      words_of(random, offset + g * kGroup, words + g * kParts);
    }
  }
  for (uint64_t g = 0; g < kGroups; ++g) {
    const float* const from = x + g * kGroup;
    prefetch_span<kRandomAhead>(from, kGroup * sizeof(float));
    VU sums[kVectors];
    random_bits(words + g * kParts, sums);
    for (uint64_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], bits_of(from + v * lanes32()));
    }
    write_codes(sums, codes + g * kGroup, largest);
  }
}

/// Codes of x[0, n), which lies inside one group.
HWY_NOINLINE void encode_part(const float* x, uint64_t n, uint8_t* codes, const Philox& random,
                              uint64_t offset) {
  PhiloxWords words[kParts];
  VU bits[kVectors];
  words_of(random, offset, words);
  random_bits(words, bits);
  HWY_ALIGN uint32_t r[kGroup];
  for (uint64_t v = 0; v < kVectors; ++v) hn::Store(bits[v], U32(), r + v * lanes32());
  for (uint64_t i = 0; i < n; ++i) {
    codes[i] = natural_code(float_bits(x[i]) + r[offset % kGroup + i]);
  }
}

bool all_finite(const float* x, uint64_t n) {
  return std::all_of(x, x + n, [](float v) { return (float_bits(v) & 0x7FFFFFFFU) < 0x7F800000U; });
}

bool encode(const float* x, uint64_t n, void* codes, RandomKey key, uint64_t first) {
  auto* const to = static_cast<uint8_t*>(codes);
  const Philox random(key);
  Largest largest = nothing_seen();
  const uint64_t head = HWY_MIN(n, (kGroup - first % kGroup) % kGroup);
  if (head > 0) encode_part(x, head, to, random, first);
  uint64_t i = head;
  constexpr uint64_t kTurn = kParts == 1 ? 4 : 2;  // groups
  for (; i + kTurn * kGroup <= n; i += kTurn * kGroup) {
    encode_groups<kTurn>(x + i, to + i, random, first + i, largest);
  }
  for (; i + kGroup <= n; i += kGroup) {
    encode_groups<1>(x + i, to + i, random, first + i, largest);
  }
  const uint64_t tail = n - i;
  if (tail > 0) encode_part(x + i, tail, to + i, random, first + i);
  if (HWY_UNLIKELY(suspicious(largest))) return all_finite(x, n);
  return all_finite(x, head) && all_finite(x + i, tail);
}

/// The values of a vector of codes from i on.
HWY_INLINE VF load_values(const void* codes, uint64_t i) {
  const hn::Rebind<int8_t, F32> d8;
  const VI code = hn::PromoteTo(I32(), hn::LoadU(d8, static_cast<const int8_t*>(codes) + i));
  // a code's sign bit was extended to bit 31
  const VI magnitude = hn::And(hn::ShiftLeft<23>(code), hn::Set(I32(), 0x3F800000));
  const VI sign = hn::And(code, hn::Set(I32(), std::numeric_limits<int32_t>::min()));
  return hn::Mul(hn::BitCast(F32(), hn::Or(magnitude, sign)), hn::Set(F32(), kNaturalScale));
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count, uint64_t begin,
            uint64_t end) {
  weighted_sum_of(
      out, output, payloads, count, begin, end,
      [](const void* data, uint64_t i) LACONIC_LAMBDA { return load_values(data, i); },
      [](const void* data, uint64_t i, uint64_t n)
          LACONIC_LAMBDA { prefetch_span(static_cast<const char*>(data) + i, n); },
      &natural_value);
}

constexpr NaturalKernels kTable{&encode, &decode};

#undef LACONIC_AVX512
#undef LACONIC_AVX2

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const NaturalKernels& natural_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kNaturalScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

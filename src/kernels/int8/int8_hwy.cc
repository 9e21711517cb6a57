// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0

#include "kernels/int8/int8.h"
#include "kernels/int8/int8_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/int8/int8_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/byte_table-inl.h"
#include "kernels/core/philox-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

using D8 = hn::Rebind<uint8_t, F32>;

/// Low bytes of a vector's lanes.
HWY_INLINE void store_bytes(VU v, void* data, uint64_t i) {
  hn::StoreU(hn::TruncateTo(D8(), v), D8(), static_cast<uint8_t*>(data) + i);
}

#if LACONIC_AVX2
/// Codes in four vectors of words, 16 each, as bytes in order. Highway's TruncateTo takes three
/// shuffles for a quarter of that.
HWY_INLINE void store_four(__m256i words01, __m256i words23, void* data, uint64_t i) {
  const __m256i bytes = _mm256_packs_epi16(words01, words23);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(static_cast<char*>(data) + i),
                      _mm256_permutevar8x32_epi32(bytes, order));
}
#endif

#if LACONIC_AVX512
/// Codes of 64 elements, packed to words within parts of 128 bits.
HWY_INLINE void store_group(__m512i low, __m512i high, void* codes, uint64_t i) {
  _mm512_storeu_si512(static_cast<char*>(codes) + i, turn_words(_mm512_packs_epi16(low, high)));
}
#endif

/// Scales and codes block by block. `quantize(begin, end, inverse)` writes the codes of a block.
template <class Quantize>
HWY_INLINE bool encode_blocks(const float* x, uint64_t n, uint32_t block, void* scales, void* codes,
                              Quantize quantize) {
  bool finite = true;
#if LACONIC_AVX2
  // Computes a block's maximum before the values of the previous one, so that its divisions overlap
  // with them.
  struct Scan {
    uint32_t bits;
    Int8Scale scale;
  };
  const auto scan = [&](uint64_t begin) LACONIC_LAMBDA {
    const uint32_t bits = max_bits(x + begin, HWY_MIN(n - begin, uint64_t{block}));
    return Scan{bits, int8_scale(bits)};
  };
  Scan next = scan(0);
#endif
  for (uint64_t begin = 0, b = 0; begin < n; begin += block, ++b) {
    const uint64_t end = HWY_MIN(n, begin + block);
#if LACONIC_AVX2
    const auto [bits, s] = next;
    if (end < n) next = scan(end);
#else
    const uint32_t bits = max_bits(x + begin, end - begin);
    const Int8Scale s = int8_scale(bits);
#endif
    put<float>(scales, b, s.scale);
    if (HWY_UNLIKELY(bits >= 0x7F800000U)) {
      finite = false;
      std::memset(static_cast<char*>(codes) + begin, 0, end - begin);
    } else {
      quantize(begin, end, s.inverse);
    }
  }
  return finite;
}

bool encode_nearest(const float* x, uint64_t n, uint32_t block, void* scales, void* codes) {
  const VF magic = hn::Set(F32(), kRoundingMagic);
  return encode_blocks(
      x, n, block, scales, codes, [&](uint64_t begin, uint64_t end, float inverse) LACONIC_LAMBDA {
        const VF factor = hn::Set(F32(), inverse);
        const size_t lanes = lanes32();
        const auto one = [&](uint64_t i) LACONIC_LAMBDA {
          const VF rounded = hn::Add(hn::Mul(load_f32(x, i), factor), magic);
          store_bytes(hn::BitCast(U32(), rounded), codes, i);
        };
        in_turns(
            begin, end,
            [&](uint64_t i) LACONIC_LAMBDA {
#if LACONIC_AVX2
              const auto rounded = [&](uint64_t k) LACONIC_LAMBDA {
                return _mm256_cvtps_epi32(hn::Mul(load_f32(x, k), factor).raw);
              };
              store_four(_mm256_packs_epi32(rounded(i), rounded(i + lanes)),
                         _mm256_packs_epi32(rounded(i + 2 * lanes), rounded(i + 3 * lanes)), codes,
                         i);
#elif LACONIC_AVX512
              const auto rounded = [&](uint64_t k) LACONIC_LAMBDA {
                return _mm512_cvtps_epi32(hn::Mul(load_f32(x, i + 16 * k), factor).raw);
              };
              store_group(_mm512_packs_epi32(rounded(0), rounded(1)),
                          _mm512_packs_epi32(rounded(2), rounded(3)), codes, i);
#else
              one(i);
              one(i + lanes);
              one(i + 2 * lanes);
              one(i + 3 * lanes);
#endif
            },
            one,
            [&](uint64_t i) LACONIC_LAMBDA { put<int8_t>(codes, i, int8_nearest(x[i], inverse)); });
      });
}

constexpr uint64_t kGroup = 64;  // elements that share 8 Philox blocks

/// The random bits of the group of 64 elements that starts at offset e: lane by lane what vectors
/// k·16 + s·lanes of the group need, for k = 0 .. 3.
struct GroupBits {
  VU r[4];
};

HWY_INLINE GroupBits group_bits(const PhiloxWords& w) {
  const VU low15 = hn::Set(U32(), 0x7FFF);
  return {{hn::And(w.w01, low15), hn::ShiftRight<17>(w.w01), hn::And(w.w23, low15),
           hn::ShiftRight<17>(w.w23)}};
}

/// int8_stochastic. x·inverse·2^15 is exact where it was rounded once, so MulAdd rounds as separate
/// operations do.
HWY_INLINE VU stochastic_codes(VF x, VF inverse, VU r) {
  const VF fixed =
      hn::MulAdd(hn::Mul(x, inverse), hn::Set(F32(), 32768.0F), hn::Set(F32(), kRoundingMagic));
  const VU sum = hn::Add(hn::BitCast(U32(), fixed), r);
  return hn::Xor(hn::ShiftRight<15>(sum), hn::Set(U32(), 0x80));
}

/// The last group whose bits were needed element by element.
struct GroupCache {
  uint64_t start = ~uint64_t{0};
  uint16_t bits[kGroup];
};

HWY_INLINE void fill_cache(const Philox& random, uint64_t start, GroupCache& cache) {
  if (cache.start == start) return;
  cache.start = start;
  const size_t lanes = lanes32();
  const hn::Rebind<uint16_t, U32> d16;
  for (uint64_t s = 0; s < 16; s += lanes) {
    PhiloxWords words;
    random.words<1>(start / kGroup * 8 + s / 2, &words);
    const GroupBits bits = group_bits(words);
    for (uint64_t k = 0; k < 4; ++k)
      hn::StoreU(hn::TruncateTo(d16, bits.r[k]), d16, cache.bits + k * 16 + s);
  }
}

/// Codes of x[begin, end), which lies inside one group; `first` is the offset of x[0].
HWY_INLINE void quantize_part(const float* x, uint64_t begin, uint64_t end, float inverse,
                              void* codes, const Philox& random, uint64_t first,
                              GroupCache& cache) {
  const uint64_t start = (first + begin) / kGroup * kGroup;
  fill_cache(random, start, cache);
  const uint16_t* bits = cache.bits + (first + begin - start);  // of x[begin] and what follows
  const VF factor = hn::Set(F32(), inverse);
  const hn::Rebind<uint16_t, U32> d16;
  const size_t lanes = lanes32();
  uint64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    const VU r = hn::PromoteTo(U32(), hn::LoadU(d16, bits + (i - begin)));
    store_bytes(stochastic_codes(load_f32(x, i), factor, r), codes, i);
  }
  for (; i < end; ++i) put<int8_t>(codes, i, int8_stochastic(x[i], inverse, bits[i - begin]));
}

#if LACONIC_AVX2 || LACONIC_AVX512
constexpr float kFraction = 32768.0F;
constexpr float kLargestInverse = 0x1p112F;  // inverse·kFraction is finite

/// int8_stochastic before it becomes a byte: conversion rounds as adding the magic does. `factor`
/// is inverse·2^15, finite: x·factor is then x·inverse·2^15, but where both round to 0.
HWY_INLINE VI stochastic_words(const float* x, uint64_t i, VF factor, VU r) {
  const VF product = hn::Mul(load_f32(x, i), factor);
#if LACONIC_AVX512
  const VI fixed{_mm512_cvtps_epi32(product.raw)};
#else
  const VI fixed{_mm256_cvtps_epi32(product.raw)};
#endif
  return hn::ShiftRight<15>(hn::Add(fixed, hn::BitCast(I32(), r)));
}
#endif

#if LACONIC_AVX2
/// Words of stochastic_codes of two vectors.
HWY_INLINE __m256i stochastic_pair(const float* x, uint64_t i, VF factor, VU r0, VU r1) {
  return _mm256_packs_epi32(stochastic_words(x, i, factor, r0).raw,
                            stochastic_words(x, i + lanes32(), factor, r1).raw);
}

/// Codes of the whole groups x[i, i + 64·kGroups).
template <uint64_t kGroups>
HWY_INLINE void quantize_groups(const float* x, uint64_t i, VF inverse, void* codes,
                                const Philox& random, uint64_t offset) {
  // All words first: more of the multiplications' chains overlap than with codes in between.
  PhiloxWords words[2 * kGroups];
  const VF factor = hn::Mul(inverse, hn::Set(F32(), kFraction));
  for (uint64_t g = 0; g < kGroups; ++g) {
    random.words<2>((offset / kGroup + g) * 8, words + 2 * g);
  }
  for (uint64_t g = 0; g < kGroups; ++g) {
    const uint64_t j = i + g * kGroup;
    const GroupBits low = group_bits(words[2 * g]), high = group_bits(words[2 * g + 1]);
    for (uint64_t k = 0; k < 4; k += 2) {
      store_four(stochastic_pair(x, j + k * 16, factor, low.r[k], high.r[k]),
                 stochastic_pair(x, j + k * 16 + 16, factor, low.r[k + 1], high.r[k + 1]), codes,
                 j + k * 16);
    }
  }
}
#elif LACONIC_AVX512
/// Codes of a group.
HWY_INLINE void quantize_group(const float* x, uint64_t i, VF factor, void* codes,
                               const GroupBits& bits) {
  const auto words = [&](uint64_t k) LACONIC_LAMBDA {
    return stochastic_words(x, i + 16 * k, factor, bits.r[k]).raw;
  };
  const __m512i low = _mm512_packs_epi32(words(0), words(1));
  const __m512i high = _mm512_packs_epi32(words(2), words(3));
  store_group(low, high, codes, i);
}

/// Codes of the whole groups x[i, i + 64·kGroups); `inverse`·2^15 is finite.
template <uint64_t kGroups>
HWY_INLINE void quantize_groups(const float* x, uint64_t i, VF inverse, void* codes,
                                const Philox& random, uint64_t offset) {
  const VF factor = hn::Mul(inverse, hn::Set(F32(), kFraction));
  PhiloxWords words[kGroups];
  random.words<kGroups>(offset / kGroup * 8, words);
  for (uint64_t g = 0; g < kGroups; ++g) {
    quantize_group(x, i + g * kGroup, factor, codes, group_bits(words[g]));
  }
}
#else
/// Codes of the whole groups x[i, i + 64·kGroups).
template <uint64_t kGroups>
HWY_INLINE void quantize_groups(const float* x, uint64_t i, VF inverse, void* codes,
                                const Philox& random, uint64_t offset) {
  constexpr uint64_t lanes = hn::MaxLanes(F32());
  // Two vectors of Philox per turn if there is work for two.
  constexpr uint64_t kWays = kGroups * 16 / lanes >= 2 ? 2 : 1;
  for (uint64_t v = 0; v < kGroups * 16 / lanes; v += kWays) {
    PhiloxWords words[kWays];
    random.words<kWays>(offset / kGroup * 8 + v * philox_blocks(), words);
    for (uint64_t w = 0; w < kWays; ++w) {
      const GroupBits bits = group_bits(words[w]);
      const uint64_t at = (v + w) * lanes;  // counts 16 per group
      const uint64_t j = i + at / 16 * kGroup + at % 16;
      for (uint64_t k = 0; k < 4; ++k) {
        store_bytes(stochastic_codes(load_f32(x, j + k * 16), inverse, bits.r[k]), codes,
                    j + k * 16);
      }
    }
  }
}
#endif

/// Codes of the block x[begin, end); `first` is the offset of x[0].
HWY_INLINE void quantize_block(const float* x, uint64_t begin, uint64_t end, float inverse,
                               void* codes, const Philox& random, uint64_t first,
                               GroupCache& cache) {
  const VF factor = hn::Set(F32(), inverse);
  uint64_t i = begin;
  const uint64_t whole = HWY_MIN(end, begin + (kGroup - (first + begin) % kGroup) % kGroup);
  if (i < whole) quantize_part(x, i, whole, inverse, codes, random, first, cache);
  i = whole;
#if LACONIC_AVX2 || LACONIC_AVX512
  for (; inverse > kLargestInverse && i + kGroup <= end; i += kGroup) {
    quantize_part(x, i, i + kGroup, inverse, codes, random, first, cache);
  }
#endif
#if LACONIC_AVX2 || LACONIC_AVX512
  for (; i + 4 * kGroup <= end; i += 4 * kGroup) {
    quantize_groups<4>(x, i, factor, codes, random, first + i);
  }
#endif
  for (; i + 2 * kGroup <= end; i += 2 * kGroup) {
    quantize_groups<2>(x, i, factor, codes, random, first + i);
  }
  for (; i + kGroup <= end; i += kGroup) {
    quantize_groups<1>(x, i, factor, codes, random, first + i);
  }
  if (i < end) quantize_part(x, i, end, inverse, codes, random, first, cache);
}

bool encode_stochastic(const float* x, uint64_t n, uint32_t block, void* scales, void* codes,
                       RandomKey key, uint64_t first) {
  const Philox random(key);
  GroupCache cache;
  return encode_blocks(x, n, block, scales, codes,
                       [&](uint64_t begin, uint64_t end, float inverse) LACONIC_LAMBDA {
                         quantize_block(x, begin, end, inverse, codes, random, first, cache);
                       });
}

template <Output kOutput>
HWY_INLINE void decode_as(float* out, const Weighted* payloads, uint32_t count, Int8Layout layout,
                          uint64_t begin, uint64_t end) {
  BlockCodes codes[kInt8Terms];
  Weighted terms[kInt8Terms];
  for (uint32_t t = 0; t < count; ++t) {
    codes[t].codes = static_cast<const int8_t*>(payloads[t].data) + layout.codes_at;
    terms[t] = {&codes[t], payloads[t].weight};
  }
  for (uint64_t b = begin; b < end; b += layout.block) {
    for (uint32_t t = 0; t < count; ++t)
      codes[t].scale = at<float>(payloads[t].data, b / layout.block);
    weighted_sum_loop<kOutput>(
        out, terms, count, b, HWY_MIN(end, b + layout.block),
        [](const void* data, uint64_t i) LACONIC_LAMBDA {
          const auto& block = *static_cast<const BlockCodes*>(data);
          const hn::Rebind<int8_t, F32> d8;
          const VI code = hn::PromoteTo(I32(), hn::LoadU(d8, block.codes + i));
          return hn::Mul(hn::ConvertTo(F32(), code), hn::Set(F32(), block.scale));
        },
        [](const void* data, uint64_t i, uint64_t n)
            LACONIC_LAMBDA { prefetch_span(static_cast<const BlockCodes*>(data)->codes + i, n); },
        &block_element);
  }
}

void decode(float* out, Output output, const Weighted* payloads, uint32_t count, Int8Layout layout,
            uint64_t begin, uint64_t end) {
  const size_t lanes = lanes32();
  const bool aligned =
      reinterpret_cast<uintptr_t>(out) % (lanes * sizeof(float)) == 0 && layout.block % lanes == 0;
  if (output == Output::add) {
    decode_as<Output::add>(out, payloads, count, layout, begin, end);
  } else if (output == Output::stream && aligned) {
    decode_as<Output::stream>(out, payloads, count, layout, begin, end);
    hwy::FlushStream();
  } else {
    decode_as<Output::set>(out, payloads, count, layout, begin, end);
  }
}

bool any_minus_128(const void* codes, uint64_t n) {
  const auto* bytes = static_cast<const int8_t*>(codes);
  const hn::ScalableTag<int8_t> d;
  const size_t lanes = hn::Lanes(d);
  auto lowest = hn::Zero(d);
  int8_t tail = 0;
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    prefetch_span(bytes + i, lanes);
    lowest = hn::Min(lowest, hn::LoadU(d, bytes + i));
  }
  for (; i < n; ++i) tail = HWY_MIN(tail, bytes[i]);
  return tail == -128 || !hn::AllFalse(d, hn::Eq(lowest, hn::Set(d, int8_t{-128})));
}

constexpr Int8Kernels kTable{&encode_nearest, &encode_stochastic, &decode, &any_minus_128};

#undef LACONIC_AVX2
#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const Int8Kernels& int8_kernels(Isa isa) noexcept { LACONIC_SIMD_SELECT(isa, kTable, kInt8Scalar) }

}  // namespace laconic::kernels
#endif  // HWY_ONCE

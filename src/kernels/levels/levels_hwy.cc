// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <limits>

#include "kernels/levels/levels.h"
#include "kernels/levels/levels_elements.h"
#include "kernels/levels/tree.h"

#define HWY_WANT_AVX3_DL  // tables of bytes
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/levels/levels_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/byte_table-inl.h"
#include "kernels/core/philox-inl.h"
#include "kernels/core/stream-inl.h"
#include "kernels/levels/tree_table-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

using D8 = hn::Rebind<uint8_t, F32>;
using D16 = hn::Rebind<uint16_t, F32>;
using F64 = hn::RepartitionToWide<F32>;
using HalfF32 = hn::Half<F32>;
using VD = hn::Vec<F64>;

// ---- norms ----

HWY_INLINE VI absolute_bits(VF x) {
  return hn::And(hn::BitCast(I32(), x), hn::Set(I32(), 0x7FFFFFFF));
}

HWY_INLINE uint32_t max_of_lanes(VI v) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), v)));
}

HWY_INLINE uint32_t max_bits(const float* x, uint64_t n) {
  const size_t lanes = lanes32();
  VI m0 = hn::Zero(I32()), m1 = m0, m2 = m0, m3 = m0;
  uint32_t bits = 0;
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_span(x + i, 4 * lanes * sizeof(float));
        m0 = hn::Max(m0, absolute_bits(load_f32(x, i)));
        m1 = hn::Max(m1, absolute_bits(load_f32(x, i + lanes)));
        m2 = hn::Max(m2, absolute_bits(load_f32(x, i + 2 * lanes)));
        m3 = hn::Max(m3, absolute_bits(load_f32(x, i + 3 * lanes)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { m0 = hn::Max(m0, absolute_bits(load_f32(x, i))); },
      [&](uint64_t i) LACONIC_LAMBDA { bits = HWY_MAX(bits, float_bits(x[i]) & 0x7FFFFFFFU); });
  const uint32_t most = max_of_lanes(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  return HWY_MAX(bits, most);
}

/// 32 virtual lanes of double in vectors, element l of a turn of 32 to lane l.
struct Lanes {
  static constexpr size_t kVectors = kMomentLanes / hn::MaxLanes(F64());
  VD v[kVectors];

  HWY_INLINE Lanes() {
    for (VD& lane : v) lane = hn::Zero(F64());
  }
  /// The fold, with the elements from `tail` on, fewer than 32, added to the lanes first.
  template <class Term>
  HWY_INLINE double fold(const float* tail, uint64_t n, Term term) const {
    constexpr size_t kWidth = hn::MaxLanes(F64());
    alignas(64) double lane[kMomentLanes];
    for (size_t i = 0; i < kVectors; ++i) hn::Store(v[i], F64(), lane + i * kWidth);
    for (uint64_t i = 0; i < n; ++i) lane[i] += term(static_cast<double>(tail[i]));
    for (uint32_t half = kMomentLanes / 2; half >= 8; half /= 2) {
      for (uint32_t l = 0; l < half; l += kWidth) {
        hn::Store(hn::Add(hn::Load(F64(), lane + l), hn::Load(F64(), lane + l + half)), F64(),
                  lane + l);
      }
    }
    return fold_eight(lane);
  }
};

HWY_INLINE VD load_f64(const float* x) { return hn::PromoteTo(F64(), hn::LoadU(HalfF32(), x)); }

/// A float's square is exact in double, so MulAdd rounds as separate operations do.
HWY_INLINE double sum_of_squares(const float* x, uint64_t n) {
  constexpr size_t kWidth = hn::MaxLanes(F64());
  Lanes squares;
  uint64_t i = 0;
  for (; i + kMomentLanes <= n; i += kMomentLanes) {
    prefetch_span(x + i, kMomentLanes * sizeof(float));
    for (size_t v = 0; v < Lanes::kVectors; ++v) {
      const VD a = load_f64(x + i + v * kWidth);
      squares.v[v] = hn::MulAdd(a, a, squares.v[v]);
    }
  }
  return squares.fold(x + i, n - i, [](double a) { return a * a; });
}

/// The largest magnitudes of vectors.
struct Largest {
#if LACONIC_AVX512
  // One operation; NaN is left out.
  __m512 most;
  HWY_INLINE Largest() : most(_mm512_setzero_ps()) {}
  HWY_INLINE void add(VF x) { most = _mm512_range_ps(most, x.raw, 0b1011); }
  HWY_INLINE uint32_t bits() const { return float_bits(_mm512_reduce_max_ps(most)); }
#else
  VI most;
  HWY_INLINE Largest() : most(hn::Zero(I32())) {}
  HWY_INLINE void add(VF x) { most = hn::Max(most, absolute_bits(x)); }
  HWY_INLINE uint32_t bits() const { return max_of_lanes(most); }
#endif
};

LevelMoments moments(const float* x, uint64_t n) {
  constexpr size_t kWidth = hn::MaxLanes(F64());
  const size_t lanes = lanes32();
  Lanes sums, squares;
  Largest largest;
  uint64_t i = 0;
  for (; i + kMomentLanes <= n; i += kMomentLanes) {
    prefetch_span<kRandomAhead>(x + i, kMomentLanes * sizeof(float));
    for (size_t v = 0; v < Lanes::kVectors; ++v) {
      const VD a = load_f64(x + i + v * kWidth);
      sums.v[v] = hn::Add(sums.v[v], a);
      squares.v[v] = hn::MulAdd(a, a, squares.v[v]);
    }
    for (size_t v = 0; v < kMomentLanes; v += lanes) largest.add(load_f32(x, i + v));
  }
  uint32_t bits = largest.bits();
  for (uint64_t j = i; j < n; ++j) bits = HWY_MAX(bits, float_bits(x[j]) & 0x7FFFFFFFU);
  const double square = squares.fold(x + i, n - i, [](double a) { return a * a; });
  if (!(square <= std::numeric_limits<double>::max())) bits = 0x7F800000U;  // or NaN is forgotten
  return {sums.fold(x + i, n - i, [](double a) { return a; }), square, bits};
}

// ---- random levels ----

/// A rule of rounding: level_code or ternary_code. `near` is ternary for |x| up to kNearSteps,
/// whose codes are clamped when they are bytes.
enum class Rule { level, ternary, near };
constexpr float kNearSteps = 60;

/// The random bits of a group of 64 elements, lane by lane what vectors k·16 + s·lanes of the group
/// need, for k = 0 .. 3.
struct GroupBits {
  VU r[4];
};

HWY_INLINE VU exchanged_halves(VU word) {
#if LACONIC_AVX512
  return VU{_mm512_rol_epi32(word.raw, 16)};
#elif LACONIC_AVX2
  const __m256i order = _mm256_setr_epi8(2, 3, 0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13, 2, 3,
                                         0, 1, 6, 7, 4, 5, 10, 11, 8, 9, 14, 15, 12, 13);
  return VU{_mm256_shuffle_epi8(word.raw, order)};
#else
  return hn::Or(hn::ShiftLeft<16>(word), hn::ShiftRight<16>(word));
#endif
}

template <Rule kRule>
HWY_INLINE GroupBits group_bits(const PhiloxWords& w) {
  if constexpr (kRule == Rule::level) {
    const VU low15 = hn::Set(U32(), 0x7FFF);
    return {{hn::And(w.w01, low15), hn::ShiftRight<17>(w.w01), hn::And(w.w23, low15),
             hn::ShiftRight<17>(w.w23)}};
  } else {
    constexpr int kDown = 32 - kTernaryBits;
    return {{hn::ShiftRight<kDown>(exchanged_halves(w.w01)), hn::ShiftRight<kDown>(w.w01),
             hn::ShiftRight<kDown>(exchanged_halves(w.w23)), hn::ShiftRight<kDown>(w.w23)}};
  }
}

/// To nearest, ties to even; |x| <= 2^30.
HWY_INLINE VI to_nearest(VF x) {
#if LACONIC_AVX512
  return VI{_mm512_cvtps_epi32(x.raw)};
#elif LACONIC_AVX2
  return VI{_mm256_cvtps_epi32(x.raw)};
#else
  return hn::NearestInt(x);
#endif
}

/// The rule that gives the same codes and clamps them itself.
template <Rule kRule>
inline constexpr Rule kClamped = kRule == Rule::near ? Rule::ternary : kRule;

template <Rule kRule>
HWY_INLINE VI codes_of(VF x, VF factor, VU r) {
  VF f = hn::Mul(x, factor);
  if constexpr (kRule == Rule::ternary) {
    f = hn::Min(hn::Max(f, hn::Set(F32(), -kTernaryOne)), hn::Set(F32(), kTernaryOne));
  }
  constexpr int kBits = kRule == Rule::level ? 15 : int{kTernaryBits};
  return hn::ShiftRight<kBits>(hn::Add(to_nearest(f), hn::BitCast(I32(), r)));
}

#if LACONIC_AVX512  // Highway 1.0.3 takes words for bytes in TruncateTo, on AVX3_DL
HWY_INLINE void store_codes(VI v, int8_t* to) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(v.raw));
}
HWY_INLINE void store_codes(VI v, int16_t* to) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(v.raw));
}
#else
HWY_INLINE void store_codes(VI v, int8_t* to) {
  hn::StoreU(hn::TruncateTo(D8(), hn::BitCast(U32(), v)), D8(), reinterpret_cast<uint8_t*>(to));
}
HWY_INLINE void store_codes(VI v, int16_t* to) {
  hn::StoreU(hn::TruncateTo(D16(), hn::BitCast(U32(), v)), D16(), reinterpret_cast<uint16_t*>(to));
}
#endif

/// Random bits, element by element, of the last group that was needed so.
struct GroupCache {
  uint64_t start = ~uint64_t{0};
  uint32_t bits[kLevelGroup];
};

template <Rule kRule>
HWY_INLINE void fill_cache(const Philox& random, uint64_t start, GroupCache& cache) {
  if (cache.start == start) return;
  cache.start = start;
  const size_t lanes = lanes32();
  for (uint64_t s = 0; s < 16; s += lanes) {
    PhiloxWords words;
    random.words<1>(start / kLevelGroup * 8 + s / 2, &words);
    const GroupBits bits = group_bits<kRule>(words);
    for (uint64_t k = 0; k < 4; ++k) {
      hn::StoreU(bits.r[k], U32(), cache.bits + k * 16 + s);
    }
  }
}

/// Codes of x[0, n), which lies inside one group; `first` is the offset of x[0].
template <Rule kRule, class Code>
HWY_INLINE void quantize_part(const float* x, uint64_t n, float factor, Code* codes,
                              const Philox& random, uint64_t first, GroupCache& cache) {
  const uint64_t start = first / kLevelGroup * kLevelGroup;
  fill_cache<kRule>(random, start, cache);
  const uint32_t* bits = cache.bits + (first - start);
  const VF factors = hn::Set(F32(), factor);
  const size_t lanes = lanes32();
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VU r = hn::LoadU(U32(), bits + i);
    store_codes(codes_of<kClamped<kRule>>(load_f32(x, i), factors, r), codes + i);
  }
  for (; i < n; ++i) {
    const int32_t code = kRule == Rule::level ? level_code(x[i], factor, bits[i])
                                              : ternary_code(x[i], factor, bits[i]);
    put<Code>(codes, i, static_cast<Code>(code));  // in the payload: at any alignment
  }
}

#if LACONIC_AVX512
/// Codes of 64 elements as bytes in order.
template <Rule kRule>
HWY_INLINE __m512i group_bytes(const float* x, VF factor, const GroupBits& bits) {
  const auto codes = [&](uint64_t k) LACONIC_LAMBDA {
    return codes_of<kRule>(load_f32(x, k * 16), factor, bits.r[k]).raw;
  };
  const __m512i words = _mm512_packs_epi16(_mm512_packs_epi32(codes(0), codes(1)),
                                           _mm512_packs_epi32(codes(2), codes(3)));
  __m512i bytes = turn_words(words);
  if constexpr (kRule == Rule::near) {
    bytes = _mm512_max_epi8(_mm512_min_epi8(bytes, _mm512_set1_epi8(1)), _mm512_set1_epi8(-1));
  }
  return bytes;
}
#elif LACONIC_AVX2
/// Codes of 32 elements as bytes in order. `low` are the bits of the first halves of 16.
template <Rule kRule>
HWY_INLINE __m256i half_bytes(const float* x, VF factor, const GroupBits& low,
                              const GroupBits& high, uint64_t k) {
  const auto words = [&](uint64_t i, VU r0, VU r1) LACONIC_LAMBDA {
    return _mm256_packs_epi32(codes_of<kRule>(load_f32(x, i), factor, r0).raw,
                              codes_of<kRule>(load_f32(x, i + 8), factor, r1).raw);
  };
  __m256i bytes =
      _mm256_packs_epi16(words(0, low.r[k], high.r[k]), words(16, low.r[k + 1], high.r[k + 1]));
  if constexpr (kRule == Rule::near) {
    bytes = _mm256_max_epi8(_mm256_min_epi8(bytes, _mm256_set1_epi8(1)), _mm256_set1_epi8(-1));
  }
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  return _mm256_permutevar8x32_epi32(bytes, order);
}
#endif

/// Codes of the whole groups x[0, 64·kGroups).
template <Rule kRule, uint64_t kGroups, class Code>
HWY_INLINE void quantize_groups(const float* x, VF factor, Code* codes, const Philox& random,
                                uint64_t offset) {
  constexpr uint64_t kVectors = kGroups * 16 / hn::MaxLanes(F32());
  const uint64_t counter = offset / kLevelGroup * 8;
#if LACONIC_AVX512
  if constexpr (sizeof(Code) == 1) {
    PhiloxWords words[kVectors];
    random.words<kVectors>(counter, words);
    for (uint64_t g = 0; g < kGroups; ++g) {
      // Buckets were read for their norm.
      constexpr uintptr_t kAhead = kRule == Rule::level ? 4096 : kRandomAhead;
      prefetch_span<kAhead>(x + g * kLevelGroup, kLevelGroup * sizeof(float));
      _mm512_storeu_si512(codes + g * kLevelGroup, group_bytes<kRule>(x + g * kLevelGroup, factor,
                                                                      group_bits<kRule>(words[g])));
    }
    return;
  }
#elif LACONIC_AVX2
  if constexpr (sizeof(Code) == 1) {
    // All words first: more of the multiplications' chains overlap than with codes in between.
    PhiloxWords words[kVectors];
    for (uint64_t g = 0; g < kGroups; ++g) random.words<2>(counter + g * 8, words + 2 * g);
    for (uint64_t g = 0; g < kGroups; ++g) {
      const GroupBits low = group_bits<kRule>(words[2 * g]),
                      high = group_bits<kRule>(words[2 * g + 1]);
      for (uint64_t k = 0; k < 4; k += 2) {
        const uint64_t j = g * kLevelGroup + k * 16;
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + j),
                            half_bytes<kRule>(x + j, factor, low, high, k));
      }
    }
    return;
  }
#endif
  constexpr uint64_t kWays = kVectors >= 2 ? 2 : 1;
  for (uint64_t v = 0; v < kVectors; v += kWays) {
    PhiloxWords words[kWays];
    random.words<kWays>(counter + v * philox_blocks(), words);
    for (uint64_t w = 0; w < kWays; ++w) {
      const GroupBits bits = group_bits<kRule>(words[w]);
      const uint64_t lane = (v + w) * hn::MaxLanes(F32());  // counts 16 per group
      const uint64_t j = lane / 16 * kLevelGroup + lane % 16;
      for (uint64_t k = 0; k < 4; ++k) {
        store_codes(codes_of<kClamped<kRule>>(load_f32(x, j + k * 16), factor, bits.r[k]),
                    codes + j + k * 16);
      }
    }
  }
}

/// Codes of x[0, n); `first` is the offset of x[0].
template <Rule kRule, class Code>
HWY_INLINE void quantize(const float* x, uint64_t n, float factor, Code* codes,
                         const Philox& random, uint64_t first, GroupCache& cache) {
  const VF factors = hn::Set(F32(), factor);
  const uint64_t head = HWY_MIN(n, (kLevelGroup - first % kLevelGroup) % kLevelGroup);
  if (head > 0) quantize_part<kRule>(x, head, factor, codes, random, first, cache);
  uint64_t i = head;
  // So many chains of multiplications at once hide their latency.
  for (; i + 4 * kLevelGroup <= n; i += 4 * kLevelGroup) {
    quantize_groups<kRule, 4>(x + i, factors, codes + i, random, first + i);
  }
  for (; i + kLevelGroup <= n; i += kLevelGroup) {
    quantize_groups<kRule, 1>(x + i, factors, codes + i, random, first + i);
  }
  if (i < n) quantize_part<kRule>(x + i, n - i, factor, codes + i, random, first + i, cache);
}

// ---- qsgd ----

/// The buckets of a span in order. A bucket's norm is taken before the codes of the one before it
/// are: its root and divisions take place beside them.
class Buckets {
 public:
  HWY_INLINE Buckets(const float* x, uint64_t n, const BucketLayout& layout)
      : x_(x), n_(n), layout_(layout) {
    if (n > 0) next_ = scan(0);
  }
  HWY_INLINE LevelStep take(uint64_t begin) {
    const LevelStep now = next_;
    if (begin + layout_.bucket < n_) next_ = scan(begin + layout_.bucket);
    return now;
  }

 private:
  HWY_INLINE LevelStep scan(uint64_t begin) const {
    const uint64_t count = HWY_MIN(n_ - begin, uint64_t{layout_.bucket});
    return level_step(layout_.norm == LevelNorm::l2 ? level_norm(sum_of_squares(x_ + begin, count))
                                                    : bits_float(max_bits(x_ + begin, count)),
                      layout_.levels);
  }

  const float* x_;
  uint64_t n_;
  BucketLayout layout_;
  LevelStep next_;
};

/// Codes that wait to be packed.
constexpr uint64_t kPiece = 1024;

template <class Code>
HWY_INLINE bool encode_as(const float* x, uint64_t n, const BucketLayout& layout, void* steps,
                          uint8_t* packed, RandomKey key, uint64_t first) {
  const Philox random(key);
  GroupCache cache;
  Buckets buckets(x, n, layout);
  const bool in_place = layout.bits == 8 * sizeof(Code);
  alignas(64) Code buffer[kPiece];
  LevelStep step;
  bool finite = true;
  for (uint64_t i = 0, bucket_end = 0, bucket = 0; i < n;) {
    if (i == bucket_end) {
      step = buckets.take(i);
      put<float>(steps, bucket++, step.step);
      finite = finite && step.finite;
      bucket_end = HWY_MIN(n, i + layout.bucket);
    }
    uint64_t end = bucket_end;
    Code* codes = reinterpret_cast<Code*>(packed) + i;
    if (!in_place) {
      end = HWY_MIN(end, i / kPiece * kPiece + kPiece);
      codes = buffer + i % kPiece;
    }
    if (HWY_LIKELY(step.finite)) {
      quantize<Rule::level>(x + i, end - i, step.factor, codes, random, first + i, cache);
    } else {
      std::memset(static_cast<void*>(codes), 0, (end - i) * sizeof(Code));
    }
    i = end;
    if (!in_place && (i % kPiece == 0 || i == n)) {
      const uint64_t from = (i - 1) / kPiece * kPiece;
      pack_codes(buffer, i - from, layout.bits, packed + from / kPackedTogether * layout.bits);
    }
  }
  return finite;
}

bool encode_buckets(const float* x, uint64_t n, BucketLayout layout, void* steps, void* codes,
                    RandomKey key, uint64_t first) {
  auto* packed = static_cast<uint8_t*>(codes);
  return layout.bits <= 8 ? encode_as<int8_t>(x, n, layout, steps, packed, key, first)
                          : encode_as<int16_t>(x, n, layout, steps, packed, key, first);
}

/// Codes that are unpacked at a time: of 16 terms, 8 KiB.
constexpr uint64_t kUnpacked = 256;

template <Output kOutput, class Code>
HWY_INLINE void decode_as(float* out, const Weighted* payloads, uint32_t count,
                          const BucketLayout& layout, uint64_t begin, uint64_t end) {
  alignas(64) Code codes[kLevelTerms][kUnpacked];
  BucketCodes<Code> parts[kLevelTerms];
  Weighted terms[kLevelTerms];
  for (uint32_t t = 0; t < count; ++t) terms[t] = {&parts[t], payloads[t].weight};
  for (uint64_t from = begin; from < end; from += kUnpacked) {
    const uint64_t to = HWY_MIN(end, from + kUnpacked);
    for (uint32_t t = 0; t < count; ++t) {
      const auto* packed = static_cast<const uint8_t*>(payloads[t].data) + layout.codes_at;
      unpack_codes(packed + from / kPackedTogether * layout.bits, to - from, layout.bits, codes[t]);
      parts[t].codes = codes[t];
    }
    for (uint64_t i = from; i < to;) {
      const uint64_t bucket = i / layout.bucket;
      const uint64_t stop = HWY_MIN(to, (bucket + 1) * layout.bucket);
      for (uint32_t t = 0; t < count; ++t) parts[t].step = at<float>(payloads[t].data, bucket);
      weighted_sum_loop<kOutput>(
          out + from, terms, count, i - from, stop - from,
          [](const void* data, uint64_t k) LACONIC_LAMBDA {
            const auto& part = *static_cast<const BucketCodes<Code>*>(data);
            const hn::Rebind<Code, F32> d;
            const VI code = hn::PromoteTo(I32(), hn::LoadU(d, part.codes + k));
            return hn::Mul(hn::ConvertTo(F32(), code), hn::Set(F32(), part.step));
          },
          [](const void*, uint64_t, uint64_t) LACONIC_LAMBDA {}, &bucket_element<Code>);
      i = stop;
    }
  }
}

template <Output kOutput>
HWY_INLINE void decode_bits(float* out, const Weighted* payloads, uint32_t count,
                            const BucketLayout& layout, uint64_t begin, uint64_t end) {
  if (layout.bits <= 8) {
    decode_as<kOutput, int8_t>(out, payloads, count, layout, begin, end);
  } else {
    decode_as<kOutput, int16_t>(out, payloads, count, layout, begin, end);
  }
}

void decode_buckets(float* out, Output output, const Weighted* payloads, uint32_t count,
                    BucketLayout layout, uint64_t begin, uint64_t end) {
  const size_t lanes = lanes32();
  const bool aligned =
      reinterpret_cast<uintptr_t>(out) % (lanes * sizeof(float)) == 0 && layout.bucket % lanes == 0;
  if (output == Output::add) {
    decode_bits<Output::add>(out, payloads, count, layout, begin, end);
  } else if (output == Output::stream && aligned) {
    decode_bits<Output::stream>(out, payloads, count, layout, begin, end);
    hwy::FlushStream();
  } else {
    decode_bits<Output::set>(out, payloads, count, layout, begin, end);
  }
}

/// Whether all n codes lie in [−levels, levels].
template <class Code>
HWY_INLINE bool within(const Code* codes, uint64_t n, uint32_t levels) {
  const hn::ScalableTag<Code> d;
  const size_t lanes = hn::Lanes(d);
  auto low = hn::Zero(d), high = hn::Zero(d);
  int32_t least = 0, most = 0;
  uint64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    prefetch_span(codes + i, lanes * sizeof(Code));
    const auto v = hn::LoadU(d, codes + i);
    low = hn::Min(low, v);
    high = hn::Max(high, v);
  }
  for (; i < n; ++i) {
    const Code code = at<Code>(codes, i);
    least = HWY_MIN(least, int32_t{code});
    most = HWY_MAX(most, int32_t{code});
  }
  const auto limit = static_cast<Code>(levels);
  const auto beyond =
      hn::Or(hn::Gt(high, hn::Set(d, limit)), hn::Lt(low, hn::Set(d, static_cast<Code>(-limit))));
  return hn::AllFalse(d, beyond) && most <= int32_t{limit} && least >= -int32_t{limit};
}

template <class Code>
HWY_INLINE bool valid_as(const uint8_t* packed, uint64_t n, uint32_t bits, uint32_t levels) {
  if (bits == 8 * sizeof(Code)) {
    return within(reinterpret_cast<const Code*>(packed), n, levels);
  }
  alignas(64) Code codes[kPiece];
  for (uint64_t i = 0; i < n; i += kPiece) {
    const uint64_t count = HWY_MIN(kPiece, n - i);
    unpack_codes(packed + i / kPackedTogether * bits, count, bits, codes);
    if (!within(codes, count, levels)) return false;
  }
  return true;
}

/// Whether none of n codes of two bits is −2.
HWY_INLINE bool valid_pairs(const uint8_t* packed, uint64_t n) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  const uint64_t bytes = packed_bytes(n, 2);
  auto bad = hn::Zero(d);
  uint64_t i = 0;
  for (; i + lanes <= bytes; i += lanes) {
    prefetch_span(packed + i, lanes);
    const auto v = hn::LoadU(d, packed + i);
    bad = hn::Or(bad, hn::AndNot(hn::Add(v, v), v));  // the high bit of a code without the low one
  }
  uint32_t tail = 0;
  for (; i < bytes; ++i) tail |= ~(uint32_t{packed[i]} << 1) & packed[i];
  const auto high = hn::Set(d, uint8_t{0xAA});
  return hn::AllTrue(d, hn::Eq(hn::And(bad, high), hn::Zero(d))) && (tail & 0xAAU) == 0;
}

bool codes_valid(const void* codes, uint64_t n, uint32_t bits, uint32_t levels) {
  const auto* packed = static_cast<const uint8_t*>(codes);
  if (bits == 2) return valid_pairs(packed, n);
  return bits <= 8 ? valid_as<int8_t>(packed, n, bits, levels)
                   : valid_as<int16_t>(packed, n, bits, levels);
}

// ---- terngrad ----

template <Rule kRule>
HWY_INLINE void ternary_as(const float* x, uint64_t n, const TernaryRounding& rounding,
                           int8_t* codes) {
  const Philox random(rounding.key);
  GroupCache cache;
  quantize<kRule>(x, n, ternary_factor(rounding.step), codes, random, rounding.first, cache);
}

void ternary(const float* x, uint64_t n, TernaryRounding rounding, void* data) {
  auto* const codes = static_cast<int8_t*>(data);
  if (rounding.largest <= kNearSteps * rounding.step) {
    ternary_as<Rule::near>(x, n, rounding, codes);
  } else {
    ternary_as<Rule::ternary>(x, n, rounding, codes);
  }
}

/// Four codes, 0 or ±1, to a byte. `codes` has room for the rest of the last four.
HWY_INLINE void pack_pairs(int8_t* codes, uint64_t n, uint8_t* out) {
  uint64_t i = 0;
#if LACONIC_AVX512
  const __m512i weights = _mm512_set1_epi16(0x0401), pairs = _mm512_set1_epi32(0x00100001);
  for (; i + 64 <= n; i += 64) {
    const __m512i low = _mm512_and_si512(_mm512_loadu_si512(codes + i), _mm512_set1_epi8(3));
    const __m512i quads = _mm512_madd_epi16(_mm512_maddubs_epi16(low, weights), pairs);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i / 4), _mm512_cvtepi32_epi8(quads));
  }
#elif LACONIC_AVX2
  const __m256i weights = _mm256_set1_epi16(0x0401), pairs = _mm256_set1_epi32(0x00100001);
  const auto quads = [&](uint64_t at) LACONIC_LAMBDA {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes + at));
    const __m256i low = _mm256_and_si256(v, _mm256_set1_epi8(3));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(low, weights), pairs);
  };
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (; i + 128 <= n; i += 128) {
    const __m256i bytes = _mm256_packus_epi16(_mm256_packus_epi32(quads(i), quads(i + 32)),
                                              _mm256_packus_epi32(quads(i + 64), quads(i + 96)));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i / 4),
                        _mm256_permutevar8x32_epi32(bytes, order));
  }
#endif
  if (i < n) pack_codes(codes + i, n - i, 2, out + i / 4);
}

template <Rule kRule>
HWY_INLINE void ternary_pairs_as(const float* x, uint64_t n, const TernaryRounding& rounding,
                                 uint8_t* out) {
  const float factor = ternary_factor(rounding.step);
  const Philox random(rounding.key);
  GroupCache cache;
  alignas(64) int8_t buffer[kPiece];
  for (uint64_t i = 0; i < n; i += kPiece) {
    const uint64_t count = HWY_MIN(kPiece, n - i);
    quantize<kRule>(x + i, count, factor, buffer, random, rounding.first + i, cache);
    pack_pairs(buffer, count, out + i / 4);
  }
}

void ternary_pairs(const float* x, uint64_t n, TernaryRounding rounding, void* data) {
  auto* const out = static_cast<uint8_t*>(data);
  if (rounding.largest <= kNearSteps * rounding.step) {
    ternary_pairs_as<Rule::near>(x, n, rounding, out);
  } else {
    ternary_pairs_as<Rule::ternary>(x, n, rounding, out);
  }
}

void pack_digits(const int8_t* rows, uint64_t stride, uint64_t columns, uint8_t* bytes) {
  const hn::ScalableTag<int8_t> d;
  const hn::RebindToUnsigned<decltype(d)> du;
  const size_t lanes = hn::Lanes(d);
  uint64_t j = 0;
  for (; j + lanes <= columns; j += lanes) {
    auto sum = hn::LoadU(d, rows + j);
    for (uint64_t i = 1; i < 5; ++i) {
      sum = hn::Add(hn::Add(hn::Add(sum, sum), sum), hn::LoadU(d, rows + i * stride + j));
    }
    hn::StoreU(hn::BitCast(du, hn::Add(sum, hn::Set(d, int8_t{121}))), du, bytes + j);
  }
  kLevelsScalar.pack_digits(rows + j, stride, columns - j, bytes + j);
}

/// Values of the codes of `lanes` elements from i on, a multiple of 4: two bits a lane pick one of
/// four.
HWY_INLINE VF pair_values(const PairTerm& term, uint64_t i) {
  const auto* codes = static_cast<const uint8_t*>(term.codes) + i / 4;
#if LACONIC_AVX512
  const __m512i all = _mm512_set1_epi32(static_cast<int32_t>(at<uint32_t>(codes, 0)));
  const __m512i shifts =
      _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
  const __m512 values = _mm512_broadcast_f32x4(_mm_loadu_ps(term.value));
  return VF{_mm512_permutevar_ps(values, _mm512_srlv_epi32(all, shifts))};
#elif LACONIC_AVX2
  const __m256i all = _mm256_set1_epi32(at<uint16_t>(codes, 0));
  const __m256i shifts = _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14);
  const __m256 values = _mm256_broadcast_ps(reinterpret_cast<const __m128*>(term.value));
  return VF{_mm256_permutevar_ps(values, _mm256_srlv_epi32(all, shifts))};
#else
  alignas(16) uint32_t index[4];
  for (uint32_t l = 0; l < 4; ++l) index[l] = uint32_t{*codes} >> (2 * l) & 3U;
  alignas(16) float value[4];
  for (uint32_t l = 0; l < 4; ++l) value[l] = term.value[index[l]];
  return hn::Load(F32(), value);
#endif
}

/// out_i = base + Σ of what the terms add; `values(term, i)` is a vector of it.
template <Output kOutput, uint32_t kVectors, class Term, class Values>
HWY_INLINE void add_terms(float* out, const Term* terms, uint32_t count, uint64_t i,
                          Values values) {
  const size_t lanes = lanes32();
  VF sum[kVectors];
  if constexpr (kOutput == Output::add) prefetch_span(out + i, kVectors * lanes * sizeof(float));
  for (uint32_t v = 0; v < kVectors; ++v) {
    sum[v] = values(terms[0], i + v * lanes);
    if constexpr (kOutput == Output::add) {
      sum[v] = hn::Add(hn::LoadU(F32(), out + i + v * lanes), sum[v]);
    }
  }
  for (uint32_t t = 1; t < count; ++t) {
    for (uint32_t v = 0; v < kVectors; ++v) {
      sum[v] = hn::Add(sum[v], values(terms[t], i + v * lanes));
    }
  }
  for (uint32_t v = 0; v < kVectors; ++v) store_f32<kOutput>(sum[v], out + i + v * lanes);
}

template <Output kOutput, class Term, class Values>
HWY_INLINE uint64_t add_all_terms(float* out, const Term* terms, uint32_t count, uint64_t begin,
                                  uint64_t end, Values values) {
  const size_t lanes = lanes32();
  uint64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    add_terms<kOutput, 4>(out, terms, count, i, values);
  }
  for (; i + lanes <= end; i += lanes) add_terms<kOutput, 1>(out, terms, count, i, values);
  return i;
}

template <Output kOutput>
struct OutputIs {
  static constexpr Output value = kOutput;
};

/// body(OutputIs<…>), past the caches only where `from`, where it begins to write, is aligned.
template <class Body>
HWY_INLINE uint64_t by_output(const float* from, Output output, const Body& body) {
  if (output == Output::add) return body(OutputIs<Output::add>());
  const bool aligned = reinterpret_cast<uintptr_t>(from) % (lanes32() * sizeof(float)) == 0;
  if (output != Output::stream || !aligned) return body(OutputIs<Output::set>());
  const uint64_t i = body(OutputIs<Output::stream>());
  hwy::FlushStream();
  return i;
}

/// As add_all_terms.
template <class Term, class Values>
HWY_INLINE uint64_t sum_terms(float* out, Output output, const Term* terms, uint32_t count,
                              uint64_t begin, uint64_t end, Values values) {
  return by_output(out + begin, output, [&](auto as) LACONIC_LAMBDA {
    return add_all_terms<decltype(as)::value>(out, terms, count, begin, end, values);
  });
}

void decode_pairs(float* out, Output output, const PairTerm* terms, uint32_t count, uint64_t begin,
                  uint64_t end) {
  uint64_t i = begin;
  if (count > 0) {
    i = sum_terms(out, output, terms, count, begin, end,
                  [](const PairTerm& term, uint64_t k)
                      LACONIC_LAMBDA { return pair_values(term, k); });
  }
  kLevelsScalar.decode_pairs(out, output, terms, count, i, end);
}

// ---- u8 ----

#if LACONIC_AVX512 || LACONIC_AVX2
/// Signed codes of a vector of x.
HWY_INLINE VI tree_codes(VF x, VF inverse) {
  const VF y = hn::Mul(x, inverse);
  const VI bits = hn::Max(hn::BitCast(I32(), hn::Abs(y)), hn::Set(I32(), int32_t{kTreeLow}));
  const VI bin = hn::ShiftRight<kTreeBinShift>(hn::Sub(bits, hn::Set(I32(), int32_t{kTreeLow})));
  const auto* bins = reinterpret_cast<const int32_t*>(kTreeBins.data());
  const VI base = hn::GatherIndex(I32(), bins, bin);
  const VI index = hn::BitCast(I32(), hn::ShiftRight<18>(hn::BitCast(U32(), hn::Add(base, bits))));
#if LACONIC_AVX512
  const __mmask16 negative = _mm512_movepi32_mask(_mm512_castps_si512(y.raw));
  return VI{_mm512_mask_sub_epi32(index.raw, negative, _mm512_setzero_si512(), index.raw)};
#else
  return VI{_mm256_sign_epi32(index.raw, _mm256_castps_si256(y.raw))};
#endif
}

void tree_encode(const float* x, uint64_t n, float inverse, void* data) {
  const VF factor = hn::Set(F32(), inverse);
  auto* const codes = static_cast<int8_t*>(data);
  const size_t lanes = lanes32();
#if LACONIC_BYTE_TABLE
  const TreeSearch bins;
#endif
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_span(x + i, 4 * lanes * sizeof(float));
        [[maybe_unused]] const auto part = [&](uint64_t k) LACONIC_LAMBDA {
          return tree_codes(load_f32(x, i + k * lanes), factor).raw;
        };
#if LACONIC_BYTE_TABLE
        _mm512_storeu_si512(codes + i, bins.codes(x + i, factor));
#elif LACONIC_AVX512
        const __m512i words = _mm512_packs_epi16(_mm512_packs_epi32(part(0), part(1)),
                                                 _mm512_packs_epi32(part(2), part(3)));
        _mm512_storeu_si512(codes + i, turn_words(words));
#else
        const __m256i words = _mm256_packs_epi16(_mm256_packs_epi32(part(0), part(1)),
                                                 _mm256_packs_epi32(part(2), part(3)));
        const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes + i),
                            _mm256_permutevar8x32_epi32(words, order));
#endif
      },
      [&](uint64_t i)
          LACONIC_LAMBDA { store_codes(tree_codes(load_f32(x, i), factor), codes + i); },
      [&](uint64_t i) LACONIC_LAMBDA { codes[i] = tree_code(x[i], inverse); });
}
#else
void tree_encode(const float* x, uint64_t n, float inverse, void* codes) {
  kLevelsScalar.tree_encode(x, n, inverse, codes);
}
#endif

/// What a vector of codes from i on adds.
HWY_INLINE VF tree_values(const TreeTerm& term, uint64_t i) {
  const hn::Rebind<int8_t, F32> d8;
  const VI code = hn::PromoteTo(I32(), hn::LoadU(d8, static_cast<const int8_t*>(term.codes) + i));
  const VI sign = hn::And(code, hn::Set(I32(), static_cast<int32_t>(0x80000000U)));
#if LACONIC_AVX512
  const __m512i index = hn::Abs(code).raw;
  const auto quarter = [&](uint32_t q) LACONIC_LAMBDA {
    const float* const from = term.value + q * 32;
    return _mm512_permutex2var_ps(_mm512_load_ps(from), index, _mm512_load_ps(from + 16));
  };
  const __mmask16 bit5 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(32));
  const __mmask16 bit6 = _mm512_test_epi32_mask(index, _mm512_set1_epi32(64));
  const __m512 low = _mm512_mask_blend_ps(bit5, quarter(0), quarter(1));
  const __m512 high = _mm512_mask_blend_ps(bit5, quarter(2), quarter(3));
  const VF value{_mm512_mask_blend_ps(bit6, low, high)};
#elif LACONIC_AVX2
  const VF value = hn::GatherIndex(F32(), term.value, hn::Abs(code));
#else
  alignas(16) float each[4];
  for (uint64_t l = 0; l < 4; ++l) {
    const int32_t c = static_cast<const int8_t*>(term.codes)[i + l];
    each[l] = term.value[static_cast<uint32_t>(c < 0 ? -c : c)];
  }
  const VF value = hn::Load(F32(), each);
#endif
  return hn::Xor(value, hn::BitCast(F32(), sign));
}

void tree_decode(float* out, Output output, const TreeTerm* terms, uint32_t count, uint64_t begin,
                 uint64_t end) {
  uint64_t i = begin;
#if LACONIC_BYTE_TABLE
  if (count > 0 && end - begin >= kByteTablePays) {
    begin = by_output(out + begin, output, [&](auto as) LACONIC_LAMBDA {
      return add_trees<decltype(as)::value>(out, terms, count, begin, end);
    });
  }
#endif
  if (count > 0) {
    i = sum_terms(out, output, terms, count, begin, end,
                  [](const TreeTerm& term, uint64_t k)
                      LACONIC_LAMBDA { return tree_values(term, k); });
  }
  kLevelsScalar.tree_decode(out, output, terms, count, i, end);
}

constexpr LevelsKernels kTable{&encode_buckets, &decode_buckets, &codes_valid, &moments,
                               &ternary,        &ternary_pairs,  &pack_digits, &decode_pairs,
                               &tree_encode,    &tree_decode};

#undef LACONIC_AVX2
#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const LevelsKernels& levels_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kLevelsScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

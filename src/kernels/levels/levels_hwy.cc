// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cstring>

#include "kernels/levels/levels.h"
#include "kernels/levels/levels_elements.h"
#include "kernels/levels/tree.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/levels/levels_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/codes-inl.h"
#include "kernels/core/random_codes-inl.h"
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

using F64 = hn::RepartitionToWide<F32>;
using HalfF32 = hn::Half<F32>;
using VD = hn::Vec<F64>;

// ---- norms ----

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

LevelMoments moments(const float* x, uint64_t n) {
  constexpr size_t kWidth = hn::MaxLanes(F64());
  const size_t lanes = lanes32();
  Lanes sums, squares;
  VI largest = hn::Zero(I32());
  uint64_t i = 0;
  for (; i + kMomentLanes <= n; i += kMomentLanes) {
    prefetch_span<kRandomAhead>(x + i, kMomentLanes * sizeof(float));
    for (size_t v = 0; v < Lanes::kVectors; ++v) {
      const VD a = load_f64(x + i + v * kWidth);
      sums.v[v] = hn::Add(sums.v[v], a);
      squares.v[v] = hn::MulAdd(a, a, squares.v[v]);
    }
    for (size_t v = 0; v < kMomentLanes; v += lanes) {
      largest = hn::Max(largest, absolute_bits(load_f32(x, i + v)));
    }
  }
  uint32_t bits = max_of_lanes(largest);
  for (uint64_t j = i; j < n; ++j) bits = HWY_MAX(bits, float_bits(x[j]) & 0x7FFFFFFFU);
  return {sums.fold(x + i, n - i, [](double a) { return a; }),
          squares.fold(x + i, n - i, [](double a) { return a * a; }), bits};
}

// ---- random levels ----

struct LevelRule {
  float factor;
  VF factors;

  HWY_INLINE explicit LevelRule(float f) : factor(f), factors(hn::Set(F32(), f)) {}
  static HWY_INLINE GroupBits bits(const PhiloxWords& w) {
    const VU low15 = hn::Set(U32(), 0x7FFF);
    return {{hn::And(w.w01, low15), hn::ShiftRight<17>(w.w01), hn::And(w.w23, low15),
             hn::ShiftRight<17>(w.w23)}};
  }
  HWY_INLINE VI code(VF x, VU r) const {
    const VI f = hn::NearestInt(hn::Mul(x, factors));
    return hn::ShiftRight<15>(hn::Add(f, hn::BitCast(I32(), r)));
  }
  HWY_INLINE int32_t code(float x, uint32_t r) const { return level_code(x, factor, r); }
};

struct TernaryRule {
  float factor;
  VF factors;

  HWY_INLINE explicit TernaryRule(float f) : factor(f), factors(hn::Set(F32(), f)) {}
  static HWY_INLINE GroupBits bits(const PhiloxWords& w) {
    constexpr int kDown = 32 - kTernaryBits;
    return {{hn::ShiftRight<kDown>(hn::RotateRight<16>(w.w01)), hn::ShiftRight<kDown>(w.w01),
             hn::ShiftRight<kDown>(hn::RotateRight<16>(w.w23)), hn::ShiftRight<kDown>(w.w23)}};
  }
  HWY_INLINE VI code(VF x, VU r) const {
    const VF one = hn::Set(F32(), kTernaryOne);
    const VF f = hn::Min(hn::Max(hn::Mul(x, factors), hn::Neg(one)), one);
    return hn::ShiftRight<kTernaryBits>(hn::Add(hn::NearestInt(f), hn::BitCast(I32(), r)));
  }
  HWY_INLINE int32_t code(float x, uint32_t r) const { return ternary_code(x, factor, r); }
};

// ---- qsgd ----

/// The buckets of a span in order. A bucket's norm is computed before the values of the previous
/// one, so that its root and divisions overlap with them.
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
  RandomCodes<LevelRule> random(key);
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
      LevelRule rule(step.factor);
      random.encode(rule, x + i, end - i, codes, first + i);
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

/// Values unpacked per step: of 16 terms, 8 KiB.
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

void decode_buckets(float* out, Output output, const Weighted* payloads, uint32_t count,
                    BucketLayout layout, uint64_t begin, uint64_t end) {
  if (output == Output::stream && layout.bucket % lanes32() != 0) output = Output::set;
  by_output(out, output, [&](auto as) LACONIC_LAMBDA {
    constexpr Output kOutput = decltype(as)::value;
    if (layout.bits <= 8) {
      decode_as<kOutput, int8_t>(out, payloads, count, layout, begin, end);
    } else {
      decode_as<kOutput, int16_t>(out, payloads, count, layout, begin, end);
    }
  });
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

void ternary(const float* x, uint64_t n, TernaryRounding rounding, void* data) {
  TernaryRule rule(ternary_factor(rounding.step));
  RandomCodes<TernaryRule>(rounding.key)
      .encode(rule, x, n, static_cast<int8_t*>(data), rounding.first);
}

void ternary_pairs(const float* x, uint64_t n, TernaryRounding rounding, void* data) {
  TernaryRule rule(ternary_factor(rounding.step));
  RandomCodes<TernaryRule> random(rounding.key);
  alignas(64) int8_t codes[kPiece];
  for (uint64_t i = 0; i < n; i += kPiece) {
    const uint64_t count = HWY_MIN(kPiece, n - i);
    random.encode(rule, x + i, count, codes, rounding.first + i);
    pack_pairs(codes, count, static_cast<uint8_t*>(data) + i / 4);
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
HWY_INLINE void add_all_terms(float* out, const Term* terms, uint32_t count, uint64_t begin,
                              uint64_t end, Values values) {
  const size_t lanes = lanes32();
  uint64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) {
    add_terms<kOutput, 4>(out, terms, count, i, values);
  }
  for (; i + lanes <= end; i += lanes) add_terms<kOutput, 1>(out, terms, count, i, values);
}

/// Returns how far it came; the rest is less than a vector.
template <class Term, class Values>
HWY_INLINE uint64_t sum_terms(float* out, Output output, const Term* terms, uint32_t count,
                              uint64_t begin, uint64_t end, Values values) {
  if (count == 0) return begin;
  by_output(out + begin, output, [&](auto as) LACONIC_LAMBDA {
    add_all_terms<decltype(as)::value>(out, terms, count, begin, end, values);
  });
  return end - (end - begin) % lanes32();
}

void decode_pairs(float* out, Output output, const PairTerm* terms, uint32_t count, uint64_t begin,
                  uint64_t end) {
  const uint64_t i = sum_terms(
      out, output, terms, count, begin, end, [](const PairTerm& term, uint64_t k) LACONIC_LAMBDA {
        const auto codes = hn::IndicesFromVec(F32(), load_pairs(term.codes, k));
        return hn::TableLookupLanes(hn::LoadDup128(F32(), term.value), codes);
      });
  kLevelsScalar.decode_pairs(out, output, terms, count, i, end);
}

// ---- u8 ----

/// Signed codes of a vector of x.
HWY_INLINE VI tree_codes(VF x, VF inverse) {
  const VI y = hn::BitCast(I32(), hn::Mul(x, inverse));
  const VI low = hn::Set(I32(), int32_t{kTreeLow});
  const VI bits = hn::Max(hn::And(y, hn::Set(I32(), 0x7FFFFFFF)), low);
  const auto* bins = reinterpret_cast<const int32_t*>(kTreeBins.data());
  const VI base = hn::GatherIndex(I32(), bins, hn::ShiftRight<kTreeBinShift>(hn::Sub(bits, low)));
  const VI index = hn::BitCast(I32(), hn::ShiftRight<18>(hn::BitCast(U32(), hn::Add(base, bits))));
  const VI sign = hn::ShiftRight<31>(y);
  return hn::Sub(hn::Xor(index, sign), sign);
}

void tree_encode(const float* x, uint64_t n, float inverse, void* data) {
  const VF factor = hn::Set(F32(), inverse);
  auto* const codes = static_cast<int8_t*>(data);
  const size_t lanes = lanes32();
  const auto part = [&](uint64_t i) LACONIC_LAMBDA { return tree_codes(load_f32(x, i), factor); };
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_span(x + i, 4 * lanes * sizeof(float));
        const VI v0 = part(i), v1 = part(i + lanes), v2 = part(i + 2 * lanes),
                 v3 = part(i + 3 * lanes);
        store_codes(v0, codes + i);
        store_codes(v1, codes + i + lanes);
        store_codes(v2, codes + i + 2 * lanes);
        store_codes(v3, codes + i + 3 * lanes);
      },
      [&](uint64_t i) LACONIC_LAMBDA { store_codes(part(i), codes + i); },
      [&](uint64_t i) LACONIC_LAMBDA { codes[i] = tree_code(x[i], inverse); });
}

void tree_decode(float* out, Output output, const TreeTerm* terms, uint32_t count, uint64_t begin,
                 uint64_t end) {
  const uint64_t i = sum_terms(
      out, output, terms, count, begin, end, [](const TreeTerm& term, uint64_t k) LACONIC_LAMBDA {
        const hn::Rebind<int8_t, F32> d8;
        const VI code =
            hn::PromoteTo(I32(), hn::LoadU(d8, static_cast<const int8_t*>(term.codes) + k));
        const VF sign = hn::And(hn::BitCast(F32(), code), hn::SignBit(F32()));
        return hn::Xor(look_up<kTreeValues>(term.value, hn::Abs(code)), sign);
      });
  kLevelsScalar.tree_decode(out, output, terms, count, i, end);
}

constexpr LevelsKernels kTable{&encode_buckets, &decode_buckets, &codes_valid, &moments,
                               &ternary,        &ternary_pairs,  &pack_digits, &decode_pairs,
                               &tree_encode,    &tree_decode};

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

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast/cast.h"
#include "kernels/cast/cast_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast/cast_hwy.cc"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

using D16 = hn::Rebind<uint16_t, F32>;
using DI16 = hn::Rebind<int16_t, F32>;
using DF16 = hn::Rebind<hwy::float16_t, F32>;
using V16 = hn::Vec<D16>;

#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#if LACONIC_AVX2
using D16x2 = hn::Twice<D16>;
using V16x2 = hn::Vec<D16x2>;
#endif

// The instructions of F16C round to nearest even and treat denormals as dtype.h does. Elsewhere
// integers do it: Highway's emulation on SSE4 truncates, and what Arm's instruction does depends on
// a mode register.
#define LACONIC_F16C (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2 && !defined(HWY_DISABLE_F16C))

HWY_INLINE V16 load_16(const void* data, uint64_t i) {
  return hn::LoadU(D16(), reinterpret_cast<const uint16_t*>(static_cast<const char*>(data) +
                                                            i * sizeof(uint16_t)));
}

HWY_INLINE void store_16(V16 value, void* data, uint64_t i) {
  hn::StoreU(value, D16(),
             reinterpret_cast<uint16_t*>(static_cast<char*>(data) + i * sizeof(uint16_t)));
}

HWY_INLINE VI set32(uint32_t value) { return hn::Set(I32(), static_cast<int32_t>(value)); }

HWY_INLINE VI magnitude(VF x) { return hn::And(hn::BitCast(I32(), x), set32(0x7FFFFFFF)); }

/// saturate_to_f16
HWY_INLINE VF saturate_f16(VF x) {
  const VI a = magnitude(x);
  const VI limited = hn::IfThenElse(hn::Lt(a, set32(0x7F800000)), hn::Min(a, set32(0x477FE000)), a);
  return hn::Or(hn::BitCast(F32(), limited), hn::And(x, hn::BitCast(F32(), set32(0x80000000))));
}

#if LACONIC_F16C
/// float_to_f16
HWY_INLINE V16 to_f16(VF x) {
  const V16 h = hn::BitCast(D16(), hn::DemoteTo(DF16(), x));
  // The instruction keeps a NaN's payload; ours is one NaN per sign.
  const V16 a = hn::And(h, hn::Set(D16(), 0x7FFF));
  const auto is_nan = hn::Gt(hn::BitCast(DI16(), a), hn::Set(DI16(), 0x7C00));
  const V16 nan = hn::Or(hn::And(h, hn::Set(D16(), 0x8000)), hn::Set(D16(), 0x7E00));
  return hn::IfThenElse(hn::RebindMask(D16(), is_nan), nan, h);
}

/// to_f16 of finite numbers
HWY_INLINE V16 finite_to_f16(VF x) { return hn::BitCast(D16(), hn::DemoteTo(DF16(), x)); }

/// f16_to_float
HWY_INLINE VF from_f16(V16 h) { return hn::PromoteTo(F32(), hn::BitCast(DF16(), h)); }
#else
HWY_INLINE V16 to_f16(VF x) {
  const I32 d;
  const VI u = hn::BitCast(d, x);
  const VI a = magnitude(x);
  const VI odd = hn::And(hn::ShiftRight<13>(a), hn::Set(d, 1));
  const VI rounded = hn::Add(hn::Add(a, hn::Set(d, 0xFFF)), odd);
  const VI normal = hn::ShiftRight<13>(hn::Sub(rounded, set32(0x38000000)));
  // Denormal or zero: the float adder rounds, 0.5 = 2^-24 · 2^23.
  const VF half = hn::Set(F32(), 0.5F);
  const VI tiny = hn::Sub(hn::BitCast(d, hn::Add(hn::BitCast(F32(), a), half)), set32(0x3F000000));
  VI h = hn::IfThenElse(hn::Lt(a, set32(0x38800000)), tiny, normal);
  h = hn::IfThenElse(hn::Lt(a, set32(0x477FF000)), h, set32(0x7C00));
  h = hn::IfThenElse(hn::Gt(a, set32(0x7F800000)), set32(0x7E00), h);
  const VU signed_h =
      hn::Or(hn::BitCast(U32(), h),
             hn::And(hn::ShiftRight<16>(hn::BitCast(U32(), u)), hn::Set(U32(), 0x8000)));
  return hn::TruncateTo(D16(), signed_h);
}

HWY_INLINE V16 finite_to_f16(VF x) { return to_f16(x); }

HWY_INLINE VF from_f16(V16 h) {
  const I32 d;
  const VI v = hn::BitCast(d, hn::PromoteTo(U32(), h));
  const VI sign = hn::ShiftLeft<16>(hn::And(v, hn::Set(d, 0x8000)));
  const VI em = hn::And(v, hn::Set(d, 0x7FFF));
  const VI shifted = hn::ShiftLeft<13>(em);
  const VI normal = hn::Add(shifted, set32(0x38000000));
  const VI tiny = hn::BitCast(d, hn::Mul(hn::ConvertTo(F32(), em), hn::Set(F32(), 0x1p-24F)));
  const VI quiet = hn::IfThenElseZero(hn::Gt(em, hn::Set(d, 0x7C00)), set32(0x400000));
  const VI special = hn::Or(hn::Add(shifted, set32(0x70000000)), quiet);  // exponent 31 becomes 255
  VI r = hn::IfThenElse(hn::Lt(em, hn::Set(d, 0x400)), tiny, normal);
  r = hn::IfThenElse(hn::Lt(em, hn::Set(d, 0x7C00)), r, special);
  return hn::BitCast(F32(), hn::Or(r, sign));
}
#endif

/// float_to_bf16 of finite numbers
HWY_INLINE VU round_to_bf16(VF x) {
  const VU u = hn::BitCast(U32(), x);
  const VU odd = hn::And(hn::ShiftRight<16>(u), hn::Set(U32(), 1));
  return hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(U32(), 0x7FFF)), odd));
}

HWY_INLINE V16 to_bf16(VF x) {
  const VU high = hn::ShiftRight<16>(hn::BitCast(U32(), x));
  const VU nan = hn::Or(high, hn::Set(U32(), 0x40));
  const auto is_nan = hn::RebindMask(U32(), hn::Gt(magnitude(x), set32(0x7F800000)));
  return hn::TruncateTo(D16(), hn::IfThenElse(is_nan, nan, round_to_bf16(x)));
}

/// bf16_to_float
HWY_INLINE VF from_bf16(V16 h) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), h)));
}

// A format's operations on a vector of any values, on a vector of finite numbers, and on one
// element.

struct ToF16 {
  static HWY_INLINE V16 any(VF x) { return to_f16(x); }
  static HWY_INLINE V16 finite(VF x) { return finite_to_f16(x); }
  static HWY_INLINE uint16_t element(float w, float x) { return encode_f16(w, x, false); }
};

struct ToF16Saturated {
  static HWY_INLINE V16 any(VF x) { return to_f16(saturate_f16(x)); }
  static HWY_INLINE V16 finite(VF x) {
    const VF limit = hn::Set(F32(), 65504.0F);
    return finite_to_f16(hn::Max(hn::Min(x, limit), hn::Neg(limit)));
  }
  static HWY_INLINE uint16_t element(float w, float x) { return encode_f16(w, x, true); }
};

struct ToBf16 {
  static HWY_INLINE V16 any(VF x) { return to_bf16(x); }
  static HWY_INLINE V16 finite(VF x) { return hn::TruncateTo(D16(), round_to_bf16(x)); }
  static HWY_INLINE uint16_t element(float w, float x) { return encode_bf16(w, x); }
};

template <Output kOutput>
HWY_INLINE void store_pair(V16 low, V16 high, void* out, uint64_t i) {
  const hn::Twice<D16> d;
  auto* to = reinterpret_cast<uint16_t*>(static_cast<char*>(out) + i * sizeof(uint16_t));
  if constexpr (kOutput == Output::stream) {
    hn::Stream(hn::Combine(d, high, low), d, to);
  } else {
    hn::StoreU(hn::Combine(d, high, low), d, to);
  }
}

#if LACONIC_AVX2
/// The usual result of a turn: both pairs of vectors, and whether these are the right words.
struct Narrowed {
  V16x2 low, high;
  bool valid;
};

/// The instruction is right by itself unless a word is infinity or NaN.
HWY_INLINE Narrowed narrow_four(ToF16, VF v0, VF v1, VF v2, VF v3) {
  const D16x2 d;
  const V16x2 low = hn::Combine(d, finite_to_f16(v1), finite_to_f16(v0));
  const V16x2 high = hn::Combine(d, finite_to_f16(v3), finite_to_f16(v2));
  const V16x2 magnitudes = hn::Set(d, 0x7FFF);
  const V16x2 largest = hn::Max(hn::And(low, magnitudes), hn::And(high, magnitudes));
  const hn::RebindToSigned<D16x2> di;
  const auto special = hn::Gt(hn::BitCast(di, largest), hn::Set(di, 0x7BFF));
  return {low, high, hn::AllFalse(di, special)};
}

HWY_INLINE Narrowed narrow_four(ToF16Saturated, VF v0, VF v1, VF v2, VF v3) {
  return narrow_four(ToF16(), v0, v1, v2, v3);
}

/// float_to_bf16 of two vectors that hold no NaN, on words: rounds up where the low word and the
/// high one's last bit ask for it.
HWY_INLINE V16x2 round_pair_to_bf16(VF low, VF high) {
  const __m256i a = _mm256_castps_si256(low.raw), b = _mm256_castps_si256(high.raw);
  const __m256i kept = _mm256_blend_epi16(_mm256_srli_epi32(a, 16), b, 0xAA);
  const __m256i lost = _mm256_blend_epi16(a, _mm256_slli_epi32(b, 16), 0xAA);
  const __m256i even = _mm256_andnot_si256(kept, _mm256_set1_epi16(1));
  const __m256i up = _mm256_srli_epi16(_mm256_subs_epu16(lost, even), 15);
  const __m256i order = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15));
  const __m256i words = _mm256_shuffle_epi8(_mm256_add_epi16(kept, up), order);
  return V16x2{_mm256_permute4x64_epi64(words, 0xD8)};
}

HWY_INLINE Narrowed narrow_four(ToBf16, VF v0, VF v1, VF v2, VF v3) {
  const __m256 nan = _mm256_or_ps(_mm256_cmp_ps(v0.raw, v1.raw, _CMP_UNORD_Q),
                                  _mm256_cmp_ps(v2.raw, v3.raw, _CMP_UNORD_Q));
  return {round_pair_to_bf16(v0, v1), round_pair_to_bf16(v2, v3), _mm256_movemask_ps(nan) == 0};
}

/// Apart, so that what only it needs takes no registers of the loop.
template <class To>
HWY_NOINLINE void narrow_any(void* out, VF weight, const float* x, uint64_t i) {
  for (uint64_t k = i; k < i + 4 * lanes32(); k += lanes32()) {
    store_16(To::any(hn::Mul(weight, load_f32(x, k))), out, k);
  }
}

/// narrow_turn with fewer operations. Without kScale the weight is 1.
template <Output kOutput, class To, bool kScale>
HWY_INLINE void narrow_four_turn(void* out, VF weight, const float* x, uint64_t i) {
  const size_t lanes = lanes32();
  if constexpr (kOutput == Output::set) prefetch_span(x + i, 4 * lanes * sizeof(float));
  const auto product = [&](uint64_t k) LACONIC_LAMBDA {
    VF v = load_f32(x, k);
    // Past the caches, loads out of the order of their addresses cost a third of the speed.
    if constexpr (kOutput == Output::stream) asm volatile("" : "+x"(v.raw));
    return kScale ? hn::Mul(weight, v) : v;
  };
  const VF v0 = product(i);
  const VF v1 = product(i + lanes);
  const VF v2 = product(i + 2 * lanes);
  const VF v3 = product(i + 3 * lanes);
  const Narrowed n = narrow_four(To(), v0, v1, v2, v3);
  if (HWY_UNLIKELY(!n.valid)) return narrow_any<To>(out, weight, x, i);
  auto* to = reinterpret_cast<uint16_t*>(static_cast<char*>(out) + i * sizeof(uint16_t));
  if constexpr (kOutput == Output::stream) {
    hn::Stream(n.low, D16x2(), to);
    hn::Stream(n.high, D16x2(), to + 2 * lanes);
  } else {
    hn::StoreU(n.low, D16x2(), to);
    hn::StoreU(n.high, D16x2(), to + 2 * lanes);
  }
}
#endif

/// Four vectors from i on. Nearly always all are finite, which is cheaper.
template <Output kOutput, class To>
HWY_INLINE void narrow_turn(void* out, VF weight, const float* x, uint64_t i) {
  const size_t lanes = lanes32();
  prefetch_span(x + i, 4 * lanes * sizeof(float));
  const VF v0 = hn::Mul(weight, load_f32(x, i));
  const VF v1 = hn::Mul(weight, load_f32(x, i + lanes));
  const VF v2 = hn::Mul(weight, load_f32(x, i + 2 * lanes));
  const VF v3 = hn::Mul(weight, load_f32(x, i + 3 * lanes));
  const VI largest =
      hn::Max(hn::Max(magnitude(v0), magnitude(v1)), hn::Max(magnitude(v2), magnitude(v3)));
  if (HWY_LIKELY(hn::AllFalse(I32(), hn::Gt(largest, set32(0x7F7FFFFF))))) {
    const V16 h0 = To::finite(v0), h1 = To::finite(v1), h2 = To::finite(v2), h3 = To::finite(v3);
    store_pair<kOutput>(h0, h1, out, i);
    store_pair<kOutput>(h2, h3, out, i + 2 * lanes);
  } else {
    const V16 h0 = To::any(v0), h1 = To::any(v1), h2 = To::any(v2), h3 = To::any(v3);
    store_pair<kOutput>(h0, h1, out, i);
    store_pair<kOutput>(h2, h3, out, i + 2 * lanes);
  }
}

/// Two vectors past the caches. Loads in the order of their addresses, one store after each two and
/// no software prefetch: at 256 MiB 1.1 of memcpy, against 0.75 with the two loads swapped and 0.95
/// in turns of four with prefetches.
template <class To>
HWY_INLINE void stream_pair(void* out, VF weight, const float* x, uint64_t i) {
  const V16 low = To::any(hn::Mul(weight, load_f32(x, i)));
  const V16 high = To::any(hn::Mul(weight, load_f32(x, i + lanes32())));
  store_pair<Output::stream>(low, high, out, i);
}

template <Output kOutput, class To, bool kScale = true>
HWY_INLINE void narrow_loop(void* out, float w, const float* x, uint64_t begin, uint64_t end) {
  const VF weight = hn::Set(F32(), w);
  in_turns(
      begin, end,
      [&](uint64_t i) LACONIC_LAMBDA {
        // With 8 lanes a pair is half a line, and two halves belong together.
        if constexpr (kOutput == Output::stream && hn::MaxLanes(F32()) == 16) {
          stream_pair<To>(out, weight, x, i);
          stream_pair<To>(out, weight, x, i + 2 * lanes32());
#if LACONIC_AVX2
        } else if constexpr (hn::MaxLanes(F32()) == 8) {
          narrow_four_turn<kOutput, To, kScale>(out, weight, x, i);
#endif
        } else {
          narrow_turn<kOutput, To>(out, weight, x, i);
        }
      },
      [&](uint64_t i)
          LACONIC_LAMBDA { store_16(To::any(hn::Mul(weight, load_f32(x, i))), out, i); },
      [&](uint64_t i) LACONIC_LAMBDA { put<uint16_t>(out, i, To::element(w, x[i])); });
}

/// out_i = To(w·x_i)
template <class To>
HWY_INLINE void narrow(void* out, float w, const float* x, uint64_t n) {
#if LACONIC_AVX2
  // The usual weight, which spares a seventh of the operations.
  if (w == 1.0F) return narrow_loop<Output::set, To, false>(out, w, x, 0, n);
#endif
  narrow_loop<Output::set, To>(out, w, x, 0, n);
}

/// The same with stores past the caches, a whole line at a time: half lines cost more than they
/// save.
template <class To>
HWY_INLINE void stream(void* out, float w, const float* x, uint64_t n) {
  constexpr uint64_t kLine = 64;
  const uint64_t head = (kLine - reinterpret_cast<uintptr_t>(out) % kLine) % kLine;
  if (head % sizeof(uint16_t) != 0 || 4 * lanes32() * sizeof(uint16_t) < kLine) {
    return narrow<To>(out, w, x, n);
  }
  const uint64_t aligned = HWY_MIN(head / sizeof(uint16_t), n);
  for (uint64_t i = 0; i < aligned; ++i) put<uint16_t>(out, i, To::element(w, x[i]));
  narrow_loop<Output::stream, To>(out, w, x, aligned, n);
  hwy::FlushStream();
}

void narrow_f16(void* out, float w, const float* x, uint64_t n, bool saturate) {
  saturate ? narrow<ToF16Saturated>(out, w, x, n) : narrow<ToF16>(out, w, x, n);
}
void narrow_bf16(void* out, float w, const float* x, uint64_t n) { narrow<ToBf16>(out, w, x, n); }

void stream_f16(void* out, float w, const float* x, uint64_t n, bool saturate) {
  saturate ? stream<ToF16Saturated>(out, w, x, n) : stream<ToF16>(out, w, x, n);
}
void stream_bf16(void* out, float w, const float* x, uint64_t n) { stream<ToBf16>(out, w, x, n); }

HWY_INLINE void prefetch_16(const void* data, uint64_t i, uint64_t n) {
  prefetch_span(static_cast<const char*>(data) + i * sizeof(uint16_t), n * sizeof(uint16_t));
}

void weighted_sum_f16(float* out, Output output, const Weighted* terms, uint32_t count,
                      uint64_t begin, uint64_t end) {
  weighted_sum_of(
      out, output, terms, count, begin, end,
      [](const void* data, uint64_t i) LACONIC_LAMBDA { return from_f16(load_16(data, i)); },
      [](const void* data, uint64_t i, uint64_t n) LACONIC_LAMBDA { prefetch_16(data, i, n); },
      &decode_f16);
}

void weighted_sum_bf16(float* out, Output output, const Weighted* terms, uint32_t count,
                       uint64_t begin, uint64_t end) {
  weighted_sum_of(
      out, output, terms, count, begin, end,
      [](const void* data, uint64_t i) LACONIC_LAMBDA { return from_bf16(load_16(data, i)); },
      [](const void* data, uint64_t i, uint64_t n) LACONIC_LAMBDA { prefetch_16(data, i, n); },
      &decode_bf16);
}

constexpr CastKernels kTable{&narrow_f16,        &narrow_bf16, &weighted_sum_f16,
                             &weighted_sum_bf16, &stream_f16,  &stream_bf16};

#undef LACONIC_AVX2
#undef LACONIC_F16C

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const CastKernels& cast_kernels(Isa isa) noexcept { LACONIC_SIMD_SELECT(isa, kTable, kCastScalar) }

}  // namespace laconic::kernels
#endif  // HWY_ONCE

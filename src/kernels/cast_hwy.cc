// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"
#include "kernels/cast_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cast_hwy.cc"
#include "kernels/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

using D16 = hn::Rebind<uint16_t, F32>;
using DI16 = hn::Rebind<int16_t, F32>;
using DF16 = hn::Rebind<hwy::float16_t, F32>;
using V16 = hn::Vec<D16>;

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

/// float_to_bf16
HWY_INLINE V16 to_bf16(VF x) {
  const VU u = hn::BitCast(U32(), x);
  const VU high = hn::ShiftRight<16>(u);
  const VU odd = hn::And(high, hn::Set(U32(), 1));
  const VU rounded = hn::ShiftRight<16>(hn::Add(hn::Add(u, hn::Set(U32(), 0x7FFF)), odd));
  const VU nan = hn::Or(high, hn::Set(U32(), 0x40));
  const auto is_nan = hn::RebindMask(U32(), hn::Gt(magnitude(x), set32(0x7F800000)));
  return hn::TruncateTo(D16(), hn::IfThenElse(is_nan, nan, rounded));
}

/// bf16_to_float
HWY_INLINE VF from_bf16(V16 h) {
  return hn::BitCast(F32(), hn::ShiftLeft<16>(hn::PromoteTo(U32(), h)));
}

/// out_i = convert(w·x_i) for i in [begin, end). Output::stream needs out + begin aligned to two
/// 16-bit halves of a vector, and a FlushStream afterwards.
template <Output kOutput, class Convert, class Element>
HWY_INLINE void narrow_loop(void* out, float w, const float* x, uint64_t begin, uint64_t end,
                            Convert convert, Element element) {
  const hn::Twice<D16> pair;
  const VF weight = hn::Set(F32(), w);
  const size_t lanes = lanes32();
  const auto one = [&](uint64_t i)
                       LACONIC_LAMBDA { return convert(hn::Mul(weight, load_f32(x, i))); };
  const auto two = [&](uint64_t i) LACONIC_LAMBDA {
    prefetch_span(x + i, 2 * lanes * sizeof(float));
    const auto both = hn::Combine(pair, one(i + lanes), one(i));
    auto* to = reinterpret_cast<uint16_t*>(static_cast<char*>(out) + i * sizeof(uint16_t));
    if constexpr (kOutput == Output::stream) {
      hn::Stream(both, pair, to);
    } else {
      hn::StoreU(both, pair, to);
    }
  };
  in_turns(
      begin, end,
      [&](uint64_t i) LACONIC_LAMBDA {
        two(i);
        two(i + 2 * lanes);
      },
      [&](uint64_t i) LACONIC_LAMBDA { store_16(one(i), out, i); },
      [&](uint64_t i) LACONIC_LAMBDA { put<uint16_t>(out, i, element(w, x[i])); });
}

template <class Convert, class Element>
HWY_INLINE void narrow(void* out, Output output, float w, const float* x, uint64_t n,
                       Convert convert, Element element) {
  const uint64_t bytes = 2 * lanes32() * sizeof(uint16_t);
  const uint64_t head = (bytes - reinterpret_cast<uintptr_t>(out) % bytes) % bytes;
  if (output == Output::stream && head % sizeof(uint16_t) == 0) {
    const uint64_t aligned = HWY_MIN(head / sizeof(uint16_t), n);
    for (uint64_t i = 0; i < aligned; ++i) put<uint16_t>(out, i, element(w, x[i]));
    narrow_loop<Output::stream>(out, w, x, aligned, n, convert, element);
    hwy::FlushStream();
  } else {
    narrow_loop<Output::set>(out, w, x, 0, n, convert, element);
  }
}

HWY_INLINE void f16_as(void* out, Output output, float w, const float* x, uint64_t n,
                       bool saturate) {
  if (saturate) {
    narrow(
        out, output, w, x, n, [](VF v) LACONIC_LAMBDA { return to_f16(saturate_f16(v)); },
        [](float weight, float v) LACONIC_LAMBDA { return encode_f16(weight, v, true); });
  } else {
    narrow(
        out, output, w, x, n, [](VF v) LACONIC_LAMBDA { return to_f16(v); },
        [](float weight, float v) LACONIC_LAMBDA { return encode_f16(weight, v, false); });
  }
}

HWY_INLINE void bf16_as(void* out, Output output, float w, const float* x, uint64_t n) {
  narrow(
      out, output, w, x, n, [](VF v) LACONIC_LAMBDA { return to_bf16(v); }, &encode_bf16);
}

void narrow_f16(void* out, float w, const float* x, uint64_t n, bool saturate) {
  f16_as(out, Output::set, w, x, n, saturate);
}
void narrow_bf16(void* out, float w, const float* x, uint64_t n) {
  bf16_as(out, Output::set, w, x, n);
}
void stream_f16(void* out, float w, const float* x, uint64_t n, bool saturate) {
  f16_as(out, Output::stream, w, x, n, saturate);
}
void stream_bf16(void* out, float w, const float* x, uint64_t n) {
  bf16_as(out, Output::stream, w, x, n);
}

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

#undef LACONIC_F16C

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const CastKernels& cast_kernels(Isa isa) noexcept { LACONIC_SIMD_SELECT(isa, kTable, kCastScalar) }

}  // namespace laconic::kernels
#endif  // HWY_ONCE

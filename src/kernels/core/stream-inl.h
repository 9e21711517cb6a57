// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Loop shapes of the dense kernels: four vectors a turn, 4 KiB of prefetch on what is read, stores
// past the caches on request. Included by *_hwy.cc files after highway.h, once per target.
#if defined(LACONIC_KERNELS_STREAM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LACONIC_KERNELS_STREAM_INL_H_
#undef LACONIC_KERNELS_STREAM_INL_H_
#else
#define LACONIC_KERNELS_STREAM_INL_H_
#endif

#include "hwy/cache_control.h"
#include "kernels/core/output.h"
#include "kernels/core/simd.h"
#include "kernels/core/weighted_sum_scalar.h"

#ifndef LACONIC_LAMBDA
/// Attributes of a lambda inside a kernel: this target's instructions, and no call.
#define LACONIC_LAMBDA HWY_ATTR __attribute__((always_inline))
#endif

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using I32 = hn::RebindToSigned<F32>;
using U32 = hn::RebindToUnsigned<F32>;
using VF = hn::Vec<F32>;
using VI = hn::Vec<I32>;
using VU = hn::Vec<U32>;

HWY_INLINE size_t lanes32() { return hn::Lanes(F32()); }

/// Fetches what the next-but-some turns of a loop will read: `bytes` from p, 4 KiB ahead.
template <uintptr_t kBytes = 4096>
HWY_INLINE void prefetch_span(const void* p, size_t bytes) {
  for (size_t b = 0; b < bytes; b += 64) prefetch_ahead<kBytes>(static_cast<const char*>(p) + b);
}

/// How far ahead a loop fetches that draws random numbers in between. 4 KiB are 16 turns then: of
/// what was fetched into the first-level cache some is gone, and memory rests meanwhile.
inline constexpr uintptr_t kRandomAhead = HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3 ? 1024 : 4096;

HWY_INLINE VF load_f32(const void* data, uint64_t i) {
  return hn::LoadU(
      F32(), reinterpret_cast<const float*>(static_cast<const char*>(data) + i * sizeof(float)));
}

HWY_INLINE VI absolute_bits(VF x) {
  return hn::And(hn::BitCast(I32(), x), hn::Set(I32(), 0x7FFFFFFF));
}
HWY_INLINE uint32_t max_of_lanes(VI v) {
  return static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(I32(), v)));
}

/// Splits [0, n) into turns of four vectors, single vectors and single elements.
template <class Four, class One, class Element>
HWY_INLINE void in_turns(uint64_t begin, uint64_t end, Four four, One one, Element element) {
  const size_t lanes = lanes32();
  uint64_t i = begin;
  for (; i + 4 * lanes <= end; i += 4 * lanes) four(i);
  for (; i + lanes <= end; i += lanes) one(i);
  for (; i < end; ++i) element(i);
}

/// The largest absolute bits of n floats at any alignment.
HWY_INLINE uint32_t max_bits(const void* x, uint64_t n) {
  const size_t lanes = lanes32();
  VI m0 = hn::Zero(I32()), m1 = m0, m2 = m0, m3 = m0;
  uint32_t bits = 0;
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_span(static_cast<const char*>(x) + i * sizeof(float), 4 * lanes * sizeof(float));
        m0 = hn::Max(m0, absolute_bits(load_f32(x, i)));
        m1 = hn::Max(m1, absolute_bits(load_f32(x, i + lanes)));
        m2 = hn::Max(m2, absolute_bits(load_f32(x, i + 2 * lanes)));
        m3 = hn::Max(m3, absolute_bits(load_f32(x, i + 3 * lanes)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { m0 = hn::Max(m0, absolute_bits(load_f32(x, i))); },
      [&](uint64_t i) LACONIC_LAMBDA {
        const uint32_t b = at<uint32_t>(x, i) & 0x7FFFFFFFU;
        bits = HWY_MAX(bits, b);
      });
  const uint32_t most = max_of_lanes(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  return HWY_MAX(bits, most);
}

/// The first element from `begin` on at which a full vector store past the caches may start.
HWY_INLINE uint64_t stream_head(const float* out, uint64_t begin, uint64_t end) {
  const uint64_t bytes = lanes32() * sizeof(float);
  const uint64_t misaligned = reinterpret_cast<uintptr_t>(out + begin) % bytes;
  if (misaligned == 0) return begin;
  return HWY_MIN(begin + (bytes - misaligned) / sizeof(float), end);
}

template <Output kOutput>
HWY_INLINE void store_f32(VF value, float* out) {
  if constexpr (kOutput == Output::stream) {
    hn::Stream(value, F32(), out);
  } else {
    hn::StoreU(value, F32(), out);
  }
}

template <Output kOutput>
struct OutputIs {
  static constexpr Output value = kOutput;
};

/// body(OutputIs<...>), past the caches only where `from`, where it begins to write, is aligned.
template <class Body>
HWY_INLINE void by_output(const float* from, Output output, const Body& body) {
  if (output == Output::add) return body(OutputIs<Output::add>());
  const bool aligned = reinterpret_cast<uintptr_t>(from) % (lanes32() * sizeof(float)) == 0;
  if (output != Output::stream || !aligned) return body(OutputIs<Output::set>());
  body(OutputIs<Output::stream>());
  hwy::FlushStream();
}

/// kVectors vectors of the weighted sum of `count` >= 1 operands, accumulators in registers.
/// `load(data, i)` decodes a vector of elements from i on; `prefetch(data, i, m)` fetches m ahead.
template <Output kOutput, uint32_t kVectors, class Load, class Prefetch>
HWY_INLINE void weighted_sum_turn(float* HWY_RESTRICT out, const Weighted* terms, uint32_t count,
                                  uint64_t i, Load load, Prefetch prefetch) {
  const F32 f;
  const size_t lanes = lanes32();
  if constexpr (kOutput == Output::add) prefetch_span(out + i, kVectors * lanes * sizeof(float));
  VF sum[kVectors];
  // With stores past the caches, prefetches of the narrow input cost more than they save.
  constexpr bool kPrefetch = kOutput != Output::stream;
  if constexpr (kPrefetch) prefetch(terms[0].data, i, kVectors * lanes);
  const VF first_weight = hn::Set(f, terms[0].weight);
  for (uint32_t v = 0; v < kVectors; ++v) {
    sum[v] = hn::Mul(first_weight, load(terms[0].data, i + v * lanes));
    if constexpr (kOutput == Output::add) {
      sum[v] = hn::Add(hn::LoadU(f, out + i + v * lanes), sum[v]);
    }
  }
  for (uint32_t t = 1; t < count; ++t) {
    const void* data = terms[t].data;
    if constexpr (kPrefetch) prefetch(data, i, kVectors * lanes);
    const VF weight = hn::Set(f, terms[t].weight);
    for (uint32_t v = 0; v < kVectors; ++v) {
      sum[v] = hn::Add(sum[v], hn::Mul(weight, load(data, i + v * lanes)));
    }
  }
  for (uint32_t v = 0; v < kVectors; ++v) store_f32<kOutput>(sum[v], out + i + v * lanes);
}

/// The sum over [begin, end); Output::stream needs out + begin aligned to a vector, and a
/// FlushStream afterwards.
template <Output kOutput, class Load, class Prefetch, class Decode>
HWY_INLINE void weighted_sum_loop(float* out, const Weighted* terms, uint32_t count, uint64_t begin,
                                  uint64_t end, Load load, Prefetch prefetch, Decode decode) {
  const size_t lanes = lanes32();
  uint64_t i = begin;
  if (count > 0) {
    for (; i + 4 * lanes <= end; i += 4 * lanes) {
      weighted_sum_turn<kOutput, 4>(out, terms, count, i, load, prefetch);
    }
    for (; i + lanes <= end; i += lanes) {
      weighted_sum_turn<kOutput, 1>(out, terms, count, i, load, prefetch);
    }
  }
  weighted_sum_scalar(out, kOutput, terms, count, i, end, decode);
}

/// BasicKernels::weighted_sum; `load` decodes a vector of an operand, `decode` one element.
template <class Load, class Prefetch, class Decode>
HWY_INLINE void weighted_sum_of(float* out, Output output, const Weighted* terms, uint32_t count,
                                uint64_t begin, uint64_t end, Load load, Prefetch prefetch,
                                Decode decode) {
  if (output == Output::add) {
    weighted_sum_loop<Output::add>(out, terms, count, begin, end, load, prefetch, decode);
  } else if (output == Output::stream) {
    const uint64_t aligned = stream_head(out, begin, end);
    weighted_sum_scalar(out, output, terms, count, begin, aligned, decode);
    weighted_sum_loop<Output::stream>(out, terms, count, aligned, end, load, prefetch, decode);
    hwy::FlushStream();
  } else {
    weighted_sum_loop<Output::set>(out, terms, count, begin, end, load, prefetch, decode);
  }
}

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#endif  // include guard

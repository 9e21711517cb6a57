// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/core/basic.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/core/basic_hwy.cc"
#include "kernels/core/prefetch.h"
#include "kernels/core/simd.h"
// then, in this order
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
// helpers, once per target
#include "kernels/core/stream-inl.h"

#if LACONIC_SIMD_BODY
HWY_BEFORE_NAMESPACE();
namespace laconic::kernels::HWY_NAMESPACE {

HWY_INLINE uint32_t absolute_bits(float x) { return std::bit_cast<uint32_t>(x) & 0x7FFFFFFFU; }

/// Largest absolute bits of value(i) .. for i in [0, n).
template <class Vector, class Element>
HWY_INLINE uint32_t max_bits(uint64_t n, Vector vector, Element element) {
  const size_t lanes = lanes32();
  VI m0 = hn::Zero(I32()), m1 = m0, m2 = m0, m3 = m0;
  uint32_t bits = 0;
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        m0 = hn::Max(m0, absolute_bits(vector(i)));
        m1 = hn::Max(m1, absolute_bits(vector(i + lanes)));
        m2 = hn::Max(m2, absolute_bits(vector(i + 2 * lanes)));
        m3 = hn::Max(m3, absolute_bits(vector(i + 3 * lanes)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { m0 = hn::Max(m0, absolute_bits(vector(i))); },
      [&](uint64_t i) LACONIC_LAMBDA {
        const uint32_t b = absolute_bits(element(i));
        bits = HWY_MAX(bits, b);
      });
  const uint32_t vector_bits = max_of_lanes(hn::Max(hn::Max(m0, m1), hn::Max(m2, m3)));
  return HWY_MAX(bits, vector_bits);
}

Scan scan(const float* x, uint64_t n) {
  const uint32_t bits = max_bits(
      n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        return load_f32(x, i);
      },
      [&](uint64_t i) LACONIC_LAMBDA { return x[i]; });
  return {bits != 0, bits < 0x7F800000U, std::bit_cast<float>(bits)};
}

bool any_nonzero(const float* x, uint64_t n) {
  constexpr uint64_t kBlock = 512;
  for (uint64_t begin = 0; begin < n; begin += kBlock) {
    const uint64_t count = HWY_MIN(kBlock, n - begin);
    const float* block = x + begin;
    if (max_bits(
            count, [&](uint64_t i) LACONIC_LAMBDA { return load_f32(block, i); },
            [&](uint64_t i) LACONIC_LAMBDA { return block[i]; }) != 0) {
      return true;
    }
  }
  return false;
}

float max_abs_sum(const float* x, const float* y, uint64_t n) {
  return std::bit_cast<float>(max_bits(
      n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(y + i, y + n);
        return hn::Add(load_f32(x, i), load_f32(y, i));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return x[i] + y[i]; }));
}

float max_abs_blend(float a, const float* y, float b, const float* x, uint64_t n) {
  const VF va = hn::Set(F32(), a), vb = hn::Set(F32(), b);
  return std::bit_cast<float>(max_bits(
      n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(y + i, y + n);
        return hn::Add(hn::Mul(va, load_f32(y, i)), hn::Mul(vb, load_f32(x, i)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return a * y[i] + b * x[i]; }));
}

float max_abs_momentum(const float* v, float w, const float* u, const float* x, uint64_t n) {
  const VF weight = hn::Set(F32(), w);
  return std::bit_cast<float>(max_bits(
      n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(u + i, u + n);
        prefetch_within(v + i, v + n);
        return hn::Add(load_f32(v, i), hn::Add(hn::Mul(weight, load_f32(u, i)), load_f32(x, i)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return v[i] + (w * u[i] + x[i]); }));
}

/// data_i = vector(i) for i in [0, n); `data` at any alignment.
template <class Vector, class Element>
HWY_INLINE void fill(void* data, uint64_t n, Vector vector, Element element) {
  const size_t lanes = lanes32();
  const auto one = [&](uint64_t i) LACONIC_LAMBDA {
    hn::StoreU(vector(i), F32(),
               reinterpret_cast<float*>(static_cast<char*>(data) + i * sizeof(float)));
  };
  in_turns(
      0, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        one(i);
        one(i + lanes);
        one(i + 2 * lanes);
        one(i + 3 * lanes);
      },
      one, [&](uint64_t i) LACONIC_LAMBDA { put<float>(data, i, element(i)); });
}

void add(float* out, const float* x, uint64_t n) {
  fill(
      out, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(out + i, out + n);
        return hn::Add(load_f32(out, i), load_f32(x, i));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return out[i] + x[i]; });
}

void axpy(float* out, float w, const float* x, uint64_t n) {
  const VF weight = hn::Set(F32(), w);
  fill(
      out, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(out + i, out + n);
        return hn::Add(load_f32(out, i), hn::Mul(weight, load_f32(x, i)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return out[i] + w * x[i]; });
}

void blend(float a, float* out, float b, const float* x, uint64_t n) {
  const VF va = hn::Set(F32(), a), vb = hn::Set(F32(), b);
  fill(
      out, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        prefetch_within(x + i, x + n);
        prefetch_within(out + i, out + n);
        return hn::Add(hn::Mul(va, load_f32(out, i)), hn::Mul(vb, load_f32(x, i)));
      },
      [&](uint64_t i) LACONIC_LAMBDA { return a * out[i] + b * x[i]; });
}

void scale(float* out, float w, uint64_t n) {
  const VF weight = hn::Set(F32(), w);
  fill(
      out, n, [&](uint64_t i) LACONIC_LAMBDA { return hn::Mul(load_f32(out, i), weight); },
      [&](uint64_t i) LACONIC_LAMBDA { return out[i] * w; });
}

void mul(void* out, float w, const void* x, uint64_t n) {
  const VF weight = hn::Set(F32(), w);
  fill(
      out, n, [&](uint64_t i) LACONIC_LAMBDA { return hn::Mul(weight, load_f32(x, i)); },
      [&](uint64_t i) LACONIC_LAMBDA { return w * at<float>(x, i); });
}

void sum_rows(float* out, const void* const* rows, uint32_t count, float w, uint64_t n) {
  const VF weight = hn::Set(F32(), w);
  fill(
      out, n,
      [&](uint64_t i) LACONIC_LAMBDA {
        VF sum = load_f32(rows[0], i);
        for (uint32_t r = 1; r < count; ++r) sum = hn::Add(sum, load_f32(rows[r], i));
        return hn::Mul(sum, weight);
      },
      [&](uint64_t i) LACONIC_LAMBDA {
        float sum = at<float>(rows[0], i);
        for (uint32_t r = 1; r < count; ++r) sum += at<float>(rows[r], i);
        return sum * w;
      });
}

void weighted_sum(float* out, Output output, const Weighted* terms, uint32_t count, uint64_t begin,
                  uint64_t end) {
  weighted_sum_of(
      out, output, terms, count, begin, end,
      [](const void* data, uint64_t i) LACONIC_LAMBDA { return load_f32(data, i); },
      [](const void* data, uint64_t i, uint64_t m) LACONIC_LAMBDA {
        prefetch_span(static_cast<const char*>(data) + i * sizeof(float), m * sizeof(float));
      },
      &at<float>);
}

constexpr BasicKernels kTable{
    &scan, &any_nonzero, &max_abs_sum, &max_abs_blend, &max_abs_momentum, &add,
    &axpy, &blend,       &scale,       &mul,           &sum_rows,         &weighted_sum};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const BasicKernels& basic_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kBasicScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <utility>

#include "kernels/rotate/rotate.h"
#include "kernels/rotate/rotate_elements.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rotate/rotate_hwy.cc"
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

#define LACONIC_AVX2 (HWY_ARCH_X86 && HWY_TARGET == HWY_AVX2)
#define LACONIC_AVX512 (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3)

using F64 = hn::RepartitionToWide<F32>;
using HalfF32 = hn::Half<F32>;
using VD = hn::Vec<F64>;

// ---- signs ----

inline constexpr uint32_t kSignWords = kLargestRotation / 32;

/// The words of a block's signs, element 0 in bit 0.
struct SignWords {
  alignas(64) uint32_t word[kSignWords];

  HWY_INLINE SignWords(SignStream signs, uint32_t d) {
    const Philox random(signs.key);
    const uint64_t counter = signs.first / kSignBlock;
    for (uint32_t b = 0; b < d / kSignBlock; b += static_cast<uint32_t>(philox_blocks())) {
      PhiloxWords words;
      random.words<1>(counter + b, &words);
      hn::StoreInterleaved2(hn::BitCast(U64(), words.w01), hn::BitCast(U64(), words.w23), U64(),
                            reinterpret_cast<uint64_t*>(word + 4 * b));
    }
  }

  /// v with the signs of the elements from i on, a multiple of the vector's lanes.
  HWY_INLINE VF flip(VF v, uint32_t i) const {
    const VU sign = hn::Set(U32(), 0x80000000U);
#if LACONIC_AVX512
    const __mmask16 minus = at<uint16_t>(word, i / 16);
    return VF{_mm512_mask_xor_ps(v.raw, minus, v.raw, hn::BitCast(F32(), sign).raw)};
#else
    const VU here = hn::Set(U32(), word[i / 32]);
#if LACONIC_AVX2
    alignas(32) static constexpr uint32_t kShift[32] = {31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21,
                                                        20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10,
                                                        9,  8,  7,  6,  5,  4,  3,  2,  1,  0};
    const VU minus = hn::And(hn::Shl(here, hn::Load(U32(), kShift + i % 32)), sign);
#else
    alignas(16) static constexpr uint32_t kBit[32] = {
        1U << 0,  1U << 1,  1U << 2,  1U << 3,  1U << 4,  1U << 5,  1U << 6,  1U << 7,
        1U << 8,  1U << 9,  1U << 10, 1U << 11, 1U << 12, 1U << 13, 1U << 14, 1U << 15,
        1U << 16, 1U << 17, 1U << 18, 1U << 19, 1U << 20, 1U << 21, 1U << 22, 1U << 23,
        1U << 24, 1U << 25, 1U << 26, 1U << 27, 1U << 28, 1U << 29, 1U << 30, 1U << 31};
    const VU minus = hn::IfThenElseZero(hn::TestBit(here, hn::Load(U32(), kBit + i % 32)), sign);
#endif
    return hn::Xor(v, hn::BitCast(F32(), minus));
#endif
  }
};

// ---- levels ----

inline constexpr uint32_t kWidth = hn::MaxLanes(F32());
/// Levels between vectors in one pass, whose values then take 2^levels registers.
inline constexpr uint32_t kPassLevels = LACONIC_AVX512 || HWY_ARCH_ARM_A64 ? 4 : 3;
inline constexpr uint32_t kPassVectors = 1U << kPassLevels;
/// Elements that the first pass finishes among themselves.
inline constexpr uint32_t kFirstSpan = kWidth * kPassVectors;
static_assert(kFirstSpan <= kSmallestRotation);

/// body(0) … body(kCount - 1), unrolled.
template <uint32_t... kIndex, class Body>
HWY_INLINE void unrolled(std::integer_sequence<uint32_t, kIndex...>, Body body) {
  (body(kIndex), ...);
}
template <uint32_t kCount, class Body>
HWY_INLINE void unrolled(Body body) {
  unrolled(std::make_integer_sequence<uint32_t, kCount>(), body);
}

/// Levels of distance kDistance, … 2^kLevels / 2 between vectors.
template <uint32_t kLevels, uint32_t kDistance = 1>
HWY_INLINE void levels_between(VF* HWY_RESTRICT v) {
  if constexpr (kDistance < 1U << kLevels) {
    unrolled<1U << (kLevels - 1)>([&](uint32_t k) LACONIC_LAMBDA {
      const uint32_t i = k / kDistance * 2 * kDistance + k % kDistance;
      const VF a = v[i], b = v[i + kDistance];
      v[i] = hn::Add(a, b);
      v[i + kDistance] = hn::Sub(a, b);
    });
    levels_between<kLevels, 2 * kDistance>(v);
  }
}

/// The lane at distance kDistance.
template <uint32_t kDistance>
HWY_INLINE VF partner(VF v) {
  if constexpr (kDistance == 1) {
    return hn::Shuffle2301(v);
  } else if constexpr (kDistance == 2) {
    return hn::Shuffle1032(v);
  } else {
#if LACONIC_AVX512
    if constexpr (kDistance == 8) {
      return VF{_mm512_shuffle_f32x4(v.raw, v.raw, _MM_SHUFFLE(1, 0, 3, 2))};
    }
#endif
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2
    if constexpr (kDistance == 4) return hn::SwapAdjacentBlocks(v);
#endif
    return v;
  }
}

/// Levels inside a vector: partner + v, or partner - v in the lanes of differences.
struct LevelsInside {
  static constexpr uint32_t kLevels = static_cast<uint32_t>(std::countr_zero(kWidth));
  VF sign[kLevels];

  HWY_INLINE LevelsInside() {
    alignas(64) float one[kWidth];
    for (uint32_t level = 0; level < kLevels; ++level) {
      for (uint32_t i = 0; i < kWidth; ++i) one[i] = (i >> level & 1U) != 0 ? -1.0F : 1.0F;
      sign[level] = hn::Load(F32(), one);
    }
  }
  template <uint32_t kVectors>
  HWY_INLINE void run(VF* HWY_RESTRICT v) const {
    run_level<kVectors, 0>(v);
  }

 private:
  template <uint32_t kVectors, uint32_t kLevel>
  HWY_INLINE void run_level(VF* HWY_RESTRICT v) const {
    if constexpr (kLevel < kLevels) {
      // A product with ±1 is exact, so MulAdd rounds as the sum alone.
      unrolled<kVectors>([&](uint32_t k) LACONIC_LAMBDA {
        v[k] = hn::MulAdd(v[k], sign[kLevel], partner<1U << kLevel>(v[k]));
      });
      run_level<kVectors, kLevel + 1>(v);
    }
  }
};

/// in(i) gives the vector from element i on, out(i, v) takes it.
template <class In, class Out>
HWY_INLINE void first_pass(uint32_t d, In in, Out out) {
  const LevelsInside inside;
  for (uint32_t i = 0; i < d; i += kFirstSpan) {
    VF v[kPassVectors];
    unrolled<kPassVectors>([&](uint32_t k) LACONIC_LAMBDA { v[k] = in(i + k * kWidth); });
    inside.run<kPassVectors>(v);
    levels_between<kPassLevels>(v);
    unrolled<kPassVectors>([&](uint32_t k) LACONIC_LAMBDA { out(i + k * kWidth, v[k]); });
  }
}

/// kLevels levels from `distance` elements on.
template <uint32_t kLevels, class Out>
HWY_INLINE void next_pass(const float* y, uint32_t d, uint32_t distance, Out out) {
  constexpr uint32_t kVectors = 1U << kLevels;
  for (uint32_t i = 0; i < d; i += distance * kVectors) {
    for (uint32_t j = i; j < i + distance; j += kWidth) {
      VF v[kVectors];
      unrolled<kVectors>([&](uint32_t k)
                             LACONIC_LAMBDA { v[k] = hn::LoadU(F32(), y + j + k * distance); });
      levels_between<kLevels>(v);
      unrolled<kVectors>([&](uint32_t k) LACONIC_LAMBDA { out(j + k * distance, v[k]); });
    }
  }
}

/// out(i, H·in / √d); y keeps what is between the passes. `out` may write to it.
template <class In, class Out>
HWY_INLINE void transform(float* y, uint32_t d, In in, Out out) {
  const VF scale = hn::Set(F32(), rotation_scale(d));
  const auto finish = [&](uint32_t i, VF v) LACONIC_LAMBDA { out(i, hn::Mul(v, scale)); };
  const auto keep = [&](uint32_t i, VF v) LACONIC_LAMBDA { hn::StoreU(v, F32(), y + i); };
  auto left = static_cast<uint32_t>(std::countr_zero(d / kFirstSpan));
  if (left == 0) {
    first_pass(d, in, finish);
    return;
  }
  first_pass(d, in, keep);
  uint32_t distance = kFirstSpan;
  for (; left > kPassLevels; left -= kPassLevels, distance *= kPassVectors) {
    next_pass<kPassLevels>(y, d, distance, keep);
  }
  switch (left) {
    case 1:
      return next_pass<1>(y, d, distance, finish);
    case 2:
      return next_pass<2>(y, d, distance, finish);
    case 3:
      return next_pass<3>(y, d, distance, finish);
    default:
      return next_pass<kPassLevels>(y, d, distance, finish);
  }
}

// ---- kernels ----

template <bool kAdd>
HWY_INLINE VF load_sum(const float* x, const float* add, uint64_t i) {
  prefetch_ahead(x + i);
  if constexpr (!kAdd) return hn::LoadU(F32(), x + i);
  prefetch_ahead(add + i);
  return hn::Add(hn::LoadU(F32(), x + i), hn::LoadU(F32(), add + i));
}

/// A float's square is exact in double, so MulAdd rounds as separate operations do.
template <bool kAdd>
HWY_INLINE double square_norm_of(const float* x, const float* add, uint64_t count) {
  constexpr uint32_t kWide = hn::MaxLanes(F64());
  constexpr uint32_t kVectors = kNormLanes / kWide;
  VD sum[kVectors];
  for (VD& s : sum) s = hn::Zero(F64());
  const auto turn = [&](const float* a, const float* b) LACONIC_LAMBDA {
    for (uint32_t v = 0; v < kVectors; ++v) {
      hn::Vec<HalfF32> half = hn::LoadU(HalfF32(), a + v * kWide);
      if constexpr (kAdd) half = hn::Add(half, hn::LoadU(HalfF32(), b + v * kWide));
      const VD wide = hn::PromoteTo(F64(), half);
      sum[v] = hn::MulAdd(wide, wide, sum[v]);
    }
  };
  uint64_t i = 0;
  for (; i + kNormLanes <= count; i += kNormLanes) turn(x + i, add + i);
  if (i < count) {  // zeros add nothing
    float a[kNormLanes] = {}, b[kNormLanes] = {};
    for (uint64_t k = i; k < count; ++k) {
      a[k - i] = x[k];
      if constexpr (kAdd) b[k - i] = add[k];
    }
    turn(a, b);
  }
  for (uint32_t half = kVectors / 2; half > 0; half /= 2) {
    for (uint32_t v = 0; v < half; ++v) sum[v] = hn::Add(sum[v], sum[v + half]);
  }
  alignas(64) double lane[kWide];
  hn::Store(sum[0], F64(), lane);
  for (uint32_t half = kWide / 2; half > 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

double square_norm(const float* x, const float* add, uint64_t count) {
  return add == nullptr ? square_norm_of<false>(x, x, count) : square_norm_of<true>(x, add, count);
}

template <bool kAdd>
HWY_INLINE void rotate_block(const float* x, const float* add, uint32_t d, const SignWords& words,
                             float* y) {
  transform(
      y, d, [&](uint32_t i) LACONIC_LAMBDA { return words.flip(load_sum<kAdd>(x, add, i), i); },
      [&](uint32_t i, VF v) LACONIC_LAMBDA { hn::StoreU(v, F32(), y + i); });
}

void rotate(const float* x, const float* add, uint64_t count, uint32_t d, SignStream signs,
            float* y) {
  const SignWords words(signs, d);
  if (HWY_UNLIKELY(count < d)) {
    for (uint64_t i = 0; i < count; ++i) y[i] = add == nullptr ? x[i] : x[i] + add[i];
    for (uint64_t i = count; i < d; ++i) y[i] = 0;
    rotate_block<false>(y, y, d, words, y);
  } else if (add == nullptr) {
    rotate_block<false>(x, x, d, words, y);
  } else {
    rotate_block<true>(x, add, d, words, y);
  }
}

/// out(i, D·H·y / √d) by vectors; for a short block one(i, it) by elements, i < count.
template <class Out, class One>
HWY_INLINE void rotate_back(float* y, uint32_t d, SignStream signs, uint64_t count, Out out,
                            One one) {
  const SignWords words(signs, d);
  const auto in = [&](uint32_t i) LACONIC_LAMBDA { return hn::LoadU(F32(), y + i); };
  if (HWY_LIKELY(count == d)) {
    transform(y, d, in, [&](uint32_t i, VF v) LACONIC_LAMBDA { out(i, words.flip(v, i)); });
    return;
  }
  transform(y, d, in,
            [&](uint32_t i, VF v) LACONIC_LAMBDA { hn::StoreU(words.flip(v, i), F32(), y + i); });
  for (uint64_t i = 0; i < count; ++i) one(i, y[i]);
}

template <bool kAdd>
HWY_INLINE void unrotate_block(float* y, uint32_t d, SignStream signs, uint64_t count, float weight,
                               float* out) {
  const VF w = hn::Set(F32(), weight);
  rotate_back(
      y, d, signs, count,
      [&](uint32_t i, VF v) LACONIC_LAMBDA {
        prefetch_ahead(out + i);
        const VF product = hn::Mul(w, v);
        hn::StoreU(kAdd ? hn::Add(hn::LoadU(F32(), out + i), product) : product, F32(), out + i);
      },
      [&](uint64_t i, float v)
          LACONIC_LAMBDA { out[i] = kAdd ? out[i] + weight * v : weight * v; });
}

void unrotate(float* y, uint32_t d, SignStream signs, uint64_t count, float weight, bool add,
              float* out) {
  if (add) {
    unrotate_block<true>(y, d, signs, count, weight, out);
  } else {
    unrotate_block<false>(y, d, signs, count, weight, out);
  }
}

template <bool kAdd>
HWY_INLINE void remainder_block(float* y, uint32_t d, SignStream signs, uint64_t count,
                                const float* x, const float* add, float* residual) {
  rotate_back(
      y, d, signs, count,
      [&](uint32_t i, VF v) LACONIC_LAMBDA {
        VF a = hn::LoadU(F32(), x + i);
        if constexpr (kAdd) a = hn::Add(a, hn::LoadU(F32(), add + i));
        hn::StoreU(hn::Sub(a, v), F32(), residual + i);
      },
      [&](uint64_t i, float v) LACONIC_LAMBDA { residual[i] = (kAdd ? x[i] + add[i] : x[i]) - v; });
}

void remainder(float* y, uint32_t d, SignStream signs, uint64_t count, const float* x,
               const float* add, float* residual) {
  if (add == nullptr) {
    remainder_block<false>(y, d, signs, count, x, x, residual);
  } else {
    remainder_block<true>(y, d, signs, count, x, add, residual);
  }
}

constexpr RotateKernels kTable{&square_norm, &rotate, &unrotate, &remainder};

#undef LACONIC_AVX2
#undef LACONIC_AVX512

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const RotateKernels& rotate_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kRotateScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

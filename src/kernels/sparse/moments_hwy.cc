// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0

#include "kernels/sparse/moments.h"
#include "kernels/sparse/select.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sparse/moments_hwy.cc"
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
using VF = hn::Vec<F>;
using VI = hn::Vec<I>;
using U = hn::RebindToUnsigned<F>;
using VU = hn::Vec<U>;

constexpr size_t kLanes = HWY_MAX_BYTES / sizeof(float);
constexpr size_t kVectors = kMomentsLanes / kLanes;  // that hold the 64 lanes of one sum

HWY_INLINE void fold_lanes(float* HWY_RESTRICT lane) {
  const F f;
  for (size_t half = kMomentsLanes / 2; half >= kLanes; half /= 2) {
    for (size_t l = 0; l < half; l += kLanes) {
      hn::StoreU(hn::Add(hn::LoadU(f, lane + l), hn::LoadU(f, lane + l + half)), f, lane + l);
    }
  }
  for (size_t half = kLanes / 2; half != 0; half /= 2) {
    for (size_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
}

struct Log2 {
  VI exponent;
  VF fraction;
};

HWY_INLINE Log2 log2_of(VI key) {
  const F f;
  const I d;
  const VI root = hn::Set(d, kSqrtHalf);
  const VI over = hn::Sub(key, root);
  const VI m = hn::Add(hn::And(over, hn::Set(d, 0x7FFFFF)), root);
  const VF t = hn::Sub(hn::BitCast(f, m), hn::Set(f, 1.0F));
  VF p = hn::Set(f, log2_coefficient(5));
  for (int i = 4; i >= 0; --i) p = hn::Add(hn::Mul(p, t), hn::Set(f, log2_coefficient(i)));
  return {hn::ShiftRight<23>(over), hn::Mul(p, t)};
}

// The float sums need 64 lanes; counts and extremes do not depend on the order.
template <bool kSquare, bool kLog>
struct Sums {
  VF sum[kVectors];
  VF square[kSquare ? kVectors : 1];
  VF log[kLog ? kVectors : 1];
  VI exponent, count, max_key;
  VU min_beyond;  // the smallest key − floor
};

template <bool kSquare, bool kLog>
HWY_INLINE void clear(Sums<kSquare, kLog>& s) {
  const F f;
  const I d;
  for (VF& v : s.sum) v = hn::Zero(f);
  for (VF& v : s.square) v = hn::Zero(f);
  for (VF& v : s.log) v = hn::Zero(f);
  s.exponent = s.count = s.max_key = hn::Zero(d);
  s.min_beyond = hn::Set(U(), 0xFFFFFFFFU);
}

// With kPlain every element counts as its magnitude, zeros as 0, which is what they add.
template <bool kPlain, bool kSquare, bool kLog>
HWY_INLINE void add_vector(Sums<kSquare, kLog>& s, size_t v, const float* HWY_RESTRICT x, VI bound,
                           VF scale, VF shift) {
  const F f;
  const I d;
  const U u;
  const VI key = hn::And(hn::BitCast(d, hn::LoadU(f, x)), hn::Set(d, 0x7FFFFFFF));
  const auto counts = hn::Gt(key, bound);
  const auto counts_f = hn::RebindMask(f, counts);
  VF z = hn::BitCast(f, key);
  if (!kPlain) z = hn::IfThenElseZero(counts_f, hn::Sub(hn::Mul(z, scale), shift));
  s.sum[v] = hn::Add(s.sum[v], z);
  if (kSquare) s.square[v] = hn::Add(s.square[v], hn::Mul(z, z));
  if (kLog) {
    const Log2 log2 = log2_of(key);
    s.log[v] = hn::Add(s.log[v], hn::IfThenElseZero(counts_f, log2.fraction));
    s.exponent = hn::Add(s.exponent, hn::IfThenElseZero(counts, log2.exponent));
  }
  s.count = hn::Sub(s.count, hn::VecFromMask(d, counts));
  // Without a mask: a key that does not count is huge as a distance, and never the largest.
  const VI beyond = hn::Sub(key, hn::Add(bound, hn::Set(d, 1)));
  s.min_beyond = hn::Min(s.min_beyond, hn::BitCast(u, beyond));
  s.max_key = hn::Max(s.max_key, key);
}

HWY_INLINE void store_lanes(const VF* sums, float* HWY_RESTRICT lane) {
  for (size_t v = 0; v < kVectors; ++v) hn::StoreU(sums[v], F(), lane + v * kLanes);
}

// Elements that do not fill 64 lanes join the chunk as a row padded with zeros, which nothing
// counts (floor is at least 1).
template <bool kPlain, bool kSquare, bool kLog>
HWY_INLINE void moments_as(const float* HWY_RESTRICT x, uint32_t n, MomentsInput in,
                           ChunkMoments* HWY_RESTRICT out) {
  const F f;
  const I d;
  const VI bound = hn::Set(d, static_cast<int32_t>(in.floor) - 1);
  const VF scale = hn::Set(f, in.scale);
  const VF shift = hn::Set(f, in.shift);
  Sums<kSquare, kLog> s;
  clear(s);
  uint32_t i = 0;
  for (; i + kMomentsLanes <= n; i += kMomentsLanes) {
    for (size_t v = 0; v < kVectors; ++v) {
      if (v * kLanes % 16 == 0) prefetch_ahead(x + i + v * kLanes + 1024);
      add_vector<kPlain>(s, v, x + i + v * kLanes, bound, scale, shift);
    }
  }
  if (i < n) {
    float row[kMomentsLanes] = {};
    for (uint32_t l = 0; i + l < n; ++l) row[l] = x[i + l];
    for (size_t v = 0; v < kVectors; ++v)
      add_vector<kPlain>(s, v, row + v * kLanes, bound, scale, shift);
  }

  float lane[kMomentsLanes];
  ChunkMoments m;
  store_lanes(s.sum, lane);
  fold_lanes(lane);
  m.sum = lane[0];
  if (kSquare) {
    store_lanes(s.square, lane);
    fold_lanes(lane);
    m.square = lane[0];
  }
  if (kLog) {
    store_lanes(s.log, lane);
    fold_lanes(lane);
    m.log_fraction = lane[0];
    m.exponent = hn::GetLane(hn::SumOfLanes(d, s.exponent));
  }
  m.count = static_cast<uint32_t>(hn::GetLane(hn::SumOfLanes(d, s.count)));
  const uint32_t min_beyond = hn::GetLane(hn::MinOfLanes(U(), s.min_beyond));
  const auto max_key = static_cast<uint32_t>(hn::GetLane(hn::MaxOfLanes(d, s.max_key)));
  if (m.count != 0) {
    m.min_key = in.floor + min_beyond;
    m.max_key = max_key;
  }
  *out = m;
}

template <bool kSquare, bool kLog>
HWY_INLINE void moments(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  if (in.floor == 1 && in.scale == 1.0F && in.shift == 0.0F) {
    moments_as<true, kSquare, kLog>(x, n, in, out);
  } else {
    moments_as<false, kSquare, kLog>(x, n, in, out);
  }
}

void mean(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  moments<false, false>(x, n, in, out);
}
void variance(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  moments<true, false>(x, n, in, out);
}
void log_mean(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  moments<false, true>(x, n, in, out);
}

constexpr MomentsKernels kTable{&mean, &variance, &log_mean};

}  // namespace laconic::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // LACONIC_SIMD_BODY

#if HWY_ONCE
namespace laconic::kernels {

const MomentsKernels& moments_kernels(Isa isa) noexcept {
  LACONIC_SIMD_SELECT(isa, kTable, kMomentsScalar)
}

}  // namespace laconic::kernels
#endif  // HWY_ONCE

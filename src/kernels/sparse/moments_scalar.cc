// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>
#include <cmath>

#include "kernels/sparse/moments.h"
#include "kernels/sparse/select.h"

namespace laconic::kernels {
namespace {

struct Log2 {
  int32_t exponent;
  float fraction;
};

Log2 log2_of(uint32_t key) {
  const int32_t above = static_cast<int32_t>(key) - kSqrtHalf;
  const float t = std::bit_cast<float>((above & 0x7FFFFF) + kSqrtHalf) - 1.0F;
  float p = kLog2Polynomial[5];
  for (int i = 4; i >= 0; --i) p = p * t + kLog2Polynomial[i];
  return {above >> 23, p * t};
}

float fold(float* lane) {
  for (uint32_t half = kMomentsLanes / 2; half != 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lane[l] += lane[l + half];
  }
  return lane[0];
}

template <bool kSquare, bool kLog>
void moments(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  float sum[kMomentsLanes] = {}, square[kMomentsLanes] = {}, log[kMomentsLanes] = {};
  ChunkMoments m;
  for (uint32_t i = 0; i < n; ++i) {
    const uint32_t key = magnitude_key(x[i]);
    if (key < in.floor) continue;
    const float z = std::fabs(x[i]) * in.scale - in.shift;
    const uint32_t l = i % kMomentsLanes;
    sum[l] += z;
    if (kSquare) square[l] += z * z;
    if (kLog) {
      const Log2 log2 = log2_of(key);
      log[l] += log2.fraction;
      m.exponent += log2.exponent;
    }
    ++m.count;
    m.min_key = key < m.min_key ? key : m.min_key;
    m.max_key = key > m.max_key ? key : m.max_key;
  }
  m.sum = fold(sum);
  if (kSquare) m.square = fold(square);
  if (kLog) m.log_fraction = fold(log);
  *out = m;
}

}  // namespace

constinit const MomentsKernels kMomentsScalar{&moments<false, false>, &moments<true, false>,
                                              &moments<false, true>};

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Moments element by element: the reference, and the device.
#pragma once

#include "base/host_device.h"
#include "kernels/sparse/moments.h"
#include "kernels/sparse/select.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

struct KeyLog2 {
  int32_t exponent;
  float fraction;
};
[[nodiscard]] LACONIC_HOST_DEVICE inline KeyLog2 log2_of_key(uint32_t key) noexcept {
  const int32_t above = static_cast<int32_t>(key) - kSqrtHalf;
  const float t = bits_float(static_cast<uint32_t>((above & 0x7FFFFF) + kSqrtHalf)) - 1.0F;
  float p = log2_coefficient(5);
  for (int i = 4; i >= 0; --i) p = p * t + log2_coefficient(i);
  return {above >> 23, p * t};
}

/// z of an element that counts.
[[nodiscard]] LACONIC_HOST_DEVICE inline float exceedance(uint32_t key,
                                                          const MomentsInput& in) noexcept {
  return bits_float(key) * in.scale - in.shift;
}

/// Adds an element to its lane, if it counts.
LACONIC_HOST_DEVICE inline void add_element(ChunkMoments& lane, uint32_t key,
                                            const MomentsInput& in, bool square,
                                            bool log) noexcept {
  if (key < in.floor) return;
  const float z = exceedance(key, in);
  lane.sum += z;
  if (square) lane.square += z * z;
  if (log) {
    const KeyLog2 log2 = log2_of_key(key);
    lane.log_fraction += log2.fraction;
    lane.exponent += log2.exponent;
  }
  ++lane.count;
  lane.min_key = key < lane.min_key ? key : lane.min_key;
  lane.max_key = key > lane.max_key ? key : lane.max_key;
}

/// One step of the fold: a lane and the one that is half of them further on.
[[nodiscard]] LACONIC_HOST_DEVICE inline ChunkMoments joined(const ChunkMoments& a,
                                                             const ChunkMoments& b) noexcept {
  return {a.sum + b.sum,
          a.square + b.square,
          a.log_fraction + b.log_fraction,
          a.exponent + b.exponent,
          a.count + b.count,
          a.min_key < b.min_key ? a.min_key : b.min_key,
          a.max_key > b.max_key ? a.max_key : b.max_key};
}

}  // namespace laconic::kernels

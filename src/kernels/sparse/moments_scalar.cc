// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/sparse/moments_elements.h"

namespace laconic::kernels {
namespace {

template <bool kSquare, bool kLog>
void moments(const float* x, uint32_t n, MomentsInput in, ChunkMoments* out) {
  ChunkMoments lane[kMomentsLanes];
  for (uint32_t i = 0; i < n; ++i)
    add_element(lane[i % kMomentsLanes], magnitude_key(x[i]), in, kSquare, kLog);
  for (uint32_t half = kMomentsLanes / 2; half != 0; half /= 2) {
    for (uint32_t l = 0; l < half; ++l) lane[l] = joined(lane[l], lane[l + half]);
  }
  *out = lane[0];
}

}  // namespace

constinit const MomentsKernels kMomentsScalar{&moments<false, false>, &moments<true, false>,
                                              &moments<false, true>};

}  // namespace laconic::kernels

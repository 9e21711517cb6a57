// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/random_sample.h"

#include <array>
#include <cmath>

#include "base/slices.h"
#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {

uint64_t RandomSample::size(double sample, uint64_t n) noexcept {
  const double part = std::min(sample, 1.0) * static_cast<double>(n);
  return round_up(std::max(kFewest, static_cast<uint64_t>(part)), 4);
}

void RandomSample::take(const float* x, uint64_t size, const Work& work,
                        float* out) const noexcept {
  constexpr uint64_t kSlice = 4096;  // of elements: a multiple of 16
  const bool quads = n_ > kQuads;
  for_slices(work.pool, size, kSlice, [&](uint64_t begin, uint64_t end) {
    if (!quads) {
      for (uint64_t j = begin; j < end; j += 4) {
        const RandomBlock place = places(j / 4);
        for (uint32_t i = 0; i < 4; ++i) out[j + i] = x[place[i]];
      }
      return;
    }
    for (uint64_t j = begin; j < end; j += 16) {
      const RandomBlock place = places(j / 16);
      for (uint64_t i = 0; i < 4 && j + 4 * i < end; ++i) {
        const float* four = x + std::min<uint64_t>(place[i] / 4 * 4, n_ - 4);
        std::copy_n(four, 4, out + j + 4 * i);
      }
    }
  });
}

// This number of groups has a maximum of at least the rank-th of the maxima: a bound a little below
// the rank-th element, at a fraction of its cost.
uint32_t RandomSample::bound_of_rank(const float* values, uint64_t m, uint64_t rank,
                                     Isa isa) noexcept {
  constexpr uint64_t kMostGroups = 1024;
  const uint64_t groups = round_up(3 * rank, kernels::kGroupColumns);
  if (groups > kMostGroups || 2 * groups > m) return exact_cut(values, m, rank).key;
  std::array<uint32_t, kMostGroups> maximum;
  kernels::select_kernels(isa).group_max(values, m, static_cast<uint32_t>(groups), maximum.data());
  return bound_of_kth(maximum.data(), groups, rank);
}

uint32_t RandomSample::bound(const float* taken, uint64_t m, uint64_t size, double wanted,
                             uint64_t n, uint32_t attempt, Isa isa) noexcept {
  const double expected = wanted / static_cast<double>(n) * static_cast<double>(size);
  const double deviations = n > kQuads ? 4.5 : 3.0;
  const double enough = 0.75 * expected + deviations * std::sqrt(expected) + 2.0;
  const uint64_t rank = static_cast<uint64_t>(std::max(expected, enough)) << attempt;
  return rank > m ? 1 : std::max(1U, bound_of_rank(taken, m, rank, isa));
}

}  // namespace laconic::codecs

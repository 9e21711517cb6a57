// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/magnitude_sample.h"

#include <cmath>

#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/select.h"
#include "kernels/sparse/sparse_elements.h"

namespace laconic::codecs {
namespace {

constexpr uint64_t kLineUnits = uint64_t{1} << 22;  // above: four samples of each cache line

uint32_t key_at(Source from, uint64_t i) {
  const float x = from.values[i];
  return kernels::magnitude_key(from.residual == nullptr ? x : x + from.residual[i]);
}

// Positions [begin, end) of s; in large units, where a sample costs what its cache misses cost, a
// position stands for four elements of one line.
void take_points(Source from, uint64_t n, uint64_t begin, uint64_t end, uint32_t* keys) {
  const uint64_t s = MagnitudeSample::size(n);
  for (uint64_t i = begin; i < end; ++i) {
    keys[i] = key_at(from, kernels::sample_position(i, n, s));
  }
}
void take_lines(Source from, uint64_t n, uint64_t begin, uint64_t end, uint32_t* keys) {
  const uint64_t s = MagnitudeSample::size(n) / 4;
  for (uint64_t i = begin; i < end; ++i) {
    const uint64_t line = kernels::sample_position(i, n, s, 16) / 16 * 16;
    for (uint64_t j = 0; j < 4; ++j) keys[4 * i + j] = key_at(from, line + 4 * j);
  }
}

}  // namespace

MagnitudeSample::MagnitudeSample(Source from, uint64_t n, const Work& work, uint32_t* keys) noexcept
    : n_(n), keys_(keys) {
  constexpr uint64_t kSlice = 1024;
  const bool lines = n > kLineUnits;
  const uint64_t positions = size(n) / (lines ? 4 : 1);
  for_slices(work.pool, positions, kSlice, [&](uint64_t begin, uint64_t end) {
    (lines ? take_lines : take_points)(from, n, begin, end, keys);
  });
}

uint32_t MagnitudeSample::bound(uint64_t wanted, uint32_t attempt) const noexcept {
  const uint64_t s = size(n_);
  const double expected =
      static_cast<double>(wanted) / static_cast<double>(n_) * static_cast<double>(s);
  const double deviations = n_ > kLineUnits ? 6.0 : 4.0;
  const double rank = expected + deviations * std::sqrt(expected) + 3.0;
  return kth_largest(keys_, s, std::min(s, static_cast<uint64_t>(rank) << attempt));
}

}  // namespace laconic::codecs

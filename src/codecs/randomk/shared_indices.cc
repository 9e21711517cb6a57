// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/randomk/shared_indices.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace laconic::codecs {

SharedIndices::SharedIndices(const Unit& unit, const Place& place, uint64_t k) noexcept
    : shuffled_(unit.count <= kShuffled) {
  const RandomKey key = shared_key(place.seed, place.step, unit.parameter);
  if (shuffled_) {
    shuffle(key, unit.offset, unit.count, k);
  } else {
    permutation_ = kernels::make_permutation(unit.count, key, unit.offset);
  }
}

// Draw j takes word j of the stream: (word · (n - j)) / 2^32 is uniform to within n/2^32.
void SharedIndices::shuffle(RandomKey key, uint64_t stream, uint64_t n, uint64_t k) noexcept {
  std::iota(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(n), uint16_t{0});
  RandomBlock block{};
  for (uint64_t j = 0; j < k; ++j) {
    if (j % 4 == 0) block = philox(key, j / 4, stream);
    const uint64_t other = j + ((block[j % 4] * (n - j)) >> 32);
    std::swap(order_[j], order_[other]);
  }
}

void SharedIndices::get(uint64_t first, uint32_t m, Isa isa, uint32_t* out) const noexcept {
  if (shuffled_) {
    std::copy_n(order_.begin() + static_cast<std::ptrdiff_t>(first), m, out);
  } else {
    kernels::permute_kernels(isa).permute(permutation_, first, m, out);
  }
}

}  // namespace laconic::codecs

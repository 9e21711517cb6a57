// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// k distinct indices below n that depend on (seed, step, parameter, offset in the parameter, n) and
// nothing else: the first k places of a keyed permutation. Every k-subset is equally likely.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/sparse/permute.h"
#include "laconic/codec.h"

namespace laconic::codecs {

class SharedIndices {
 public:
  SharedIndices(const Unit& unit, const Place& place, uint64_t k) noexcept;

  /// out[j] = index of lane first + j, j < m, first + m <= k
  void get(uint64_t first, uint32_t m, Isa isa, uint32_t* out) const noexcept;

 private:
  // So small that a few rounds of hashing would not mix well: shuffled by Fisher and Yates instead.
  static constexpr uint64_t kShuffled = 1024;

  void shuffle(RandomKey key, uint64_t stream, uint64_t n, uint64_t k) noexcept;

  bool shuffled_;
  kernels::Permutation permutation_;
  std::array<uint16_t, kShuffled> order_;
};

}  // namespace laconic::codecs

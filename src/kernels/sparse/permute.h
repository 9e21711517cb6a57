// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A keyed permutation of [0, n): any position on its own, without a table, so that k distinct
// indices need neither memory nor an order of drawing.
#pragma once

#include <array>
#include <cstdint>

#include "laconic/isa.h"
#include "laconic/random.h"

namespace laconic::kernels {

inline constexpr uint32_t kPermuteRounds = 6;

/// An alternating Feistel network on [0, 2^low_bits) × [0, high): the low part takes an exclusive
/// or, the high part a sum modulo `high`, of a hash of the other part (Black and Rogaway, CT-RSA
/// 2002, use the same on Z_a × Z_b). The domain exceeds n by less than 2^low_bits ≈ √n; a result
/// outside [0, n) is sent through again until it falls inside.
struct Permutation {
  uint64_t n = 0;
  uint32_t low_bits = 0;
  uint32_t high = 0;
  std::array<uint32_t, kPermuteRounds> key{};
};

/// 1 <= n <= 2^32.
[[nodiscard]] Permutation make_permutation(uint64_t n, RandomKey key, uint64_t stream) noexcept;

/// Hash of a round: two multiplications, each followed by a shift down.
[[nodiscard]] constexpr uint32_t permute_hash(uint32_t x, uint32_t key) noexcept {
  uint32_t h = (x ^ key) * 0x9E3779B1U;
  h = (h ^ (h >> 15)) * 0x85EBCA77U;
  return h ^ (h >> 13);
}

/// The image of position i < n.
[[nodiscard]] uint32_t permute_one(const Permutation& p, uint64_t i) noexcept;

struct PermuteKernels {
  /// out[j] = where position first + j goes, j < n
  void (*permute)(const Permutation& p, uint64_t first, uint32_t n, uint32_t* out);
};

const PermuteKernels& permute_kernels(Isa isa) noexcept;
extern const PermuteKernels kPermuteScalar;

}  // namespace laconic::kernels

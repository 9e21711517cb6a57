// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <bit>

#include "kernels/sparse/permute.h"
#include "laconic/bytes.h"

namespace laconic::kernels {
namespace {

uint64_t feistel(const Permutation& p, uint64_t i) {
  const uint32_t low_mask = (1U << p.low_bits) - 1;
  uint32_t low = static_cast<uint32_t>(i) & low_mask;
  uint32_t high = static_cast<uint32_t>(i >> p.low_bits);
  for (uint32_t round = 0; round < kPermuteRounds; round += 2) {
    low ^= permute_hash(high, p.key[round]) & low_mask;
    const uint64_t product = uint64_t{permute_hash(low, p.key[round + 1])} * p.high;
    high += static_cast<uint32_t>(product >> 32);
    if (high >= p.high) high -= p.high;
  }
  return (uint64_t{high} << p.low_bits) | low;
}

void permute(const Permutation& p, uint64_t first, uint32_t n, uint32_t* out) {
  for (uint32_t j = 0; j < n; ++j) out[j] = permute_one(p, first + j);
}

}  // namespace

Permutation make_permutation(uint64_t n, RandomKey key, uint64_t stream) noexcept {
  Permutation p;
  p.n = n;
  p.low_bits = n <= 1 ? 0 : static_cast<uint32_t>(std::bit_width(n - 1) + 1) / 2;
  p.high = static_cast<uint32_t>(ceil_div(n, uint64_t{1} << p.low_bits));
  const RandomBlock a = philox(key, 0, stream);
  const RandomBlock b = philox(key, 1, stream);
  p.key = {a[0], a[1], a[2], a[3], b[0], b[1]};
  return p;
}

uint32_t permute_one(const Permutation& p, uint64_t i) noexcept {
  uint64_t to = feistel(p, i);
  while (to >= p.n) to = feistel(p, to);
  return static_cast<uint32_t>(to);
}

constinit const PermuteKernels kPermuteScalar{&permute};

}  // namespace laconic::kernels

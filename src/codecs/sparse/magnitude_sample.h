// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A sample of a large unit's magnitudes, from which a bound follows that a wanted number of
// elements reaches, nearly always and with few to spare. The positions are a function of the length
// alone, so what follows from them is the same for every thread count and instruction set.
#pragma once

#include <algorithm>
#include <cstdint>

#include "laconic/codec.h"

namespace laconic::codecs {

class MagnitudeSample {
 public:
  /// Worth its cache misses: in units of more than 2^16 elements of which at most 1/16 is wanted.
  [[nodiscard]] static bool pays(uint64_t n, uint64_t wanted) noexcept {
    return n > (uint64_t{1} << 16) && wanted * 16 <= n;
  }
  /// A multiple of four.
  [[nodiscard]] static uint64_t size(uint64_t n) noexcept {
    return std::max<uint64_t>(4096, n / 1024 * 4);
  }

  /// Takes the sample of x[0, n); `keys` has room for size(n).
  MagnitudeSample(const float* x, uint64_t n, const Work& work, uint32_t* keys) noexcept
      : MagnitudeSample(Source{x, nullptr}, n, work, keys) {}
  /// The same of the sums of values and residual, if there is one.
  MagnitudeSample(Source from, uint64_t n, const Work& work, uint32_t* keys) noexcept;

  /// The key that at least `wanted` elements of the unit reach, but for the chance that binomial
  /// sampling exceeds four standard deviations (six in large units, whose samples lie four to a
  /// line). Each further attempt looks twice as deep.
  [[nodiscard]] uint32_t bound(uint64_t wanted, uint32_t attempt = 0) const noexcept;

 private:
  uint64_t n_;
  const uint32_t* keys_;
};

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A random sample of a unit: places drawn with replacement by a counter from the stream that all
// ranks share, so a function of (seed, step, parameter, offset in it, n) alone. Integers only: a
// float32 has too few places above 2^24 elements, and its rounding reaches n itself.
#pragma once

#include <algorithm>
#include <cstdint>

#include "laconic/codec.h"
#include "laconic/random.h"

namespace laconic::codecs {

class RandomSample {
 public:
  /// Units from here on give four neighbours for each place drawn: a place costs a cache miss.
  static constexpr uint64_t kQuads = uint64_t{1} << 22;
  static constexpr uint64_t kFewest = 1024;

  /// Elements that are taken of n for a part `sample` of them; a multiple of four.
  [[nodiscard]] static uint64_t size(double sample, uint64_t n) noexcept;

  /// n < 2^32.
  RandomSample(const Unit& unit, const Place& place) noexcept
      : key_(shared_key(place.seed, place.step, unit.parameter)),
        stream_(unit.offset),
        n_(unit.count) {}

  /// Places 4·i to 4·i + 3: any element below n is as likely as any other, to within n/2^32.
  [[nodiscard]] RandomBlock places(uint64_t i) const noexcept {
    RandomBlock word = philox(key_, i, stream_);
    for (uint32_t& w : word) w = static_cast<uint32_t>((uint64_t{w} * n_) >> 32);
    return word;
  }

  /// The elements of x[0, n) there; `size` as of size(), and so is the room of `out`.
  void take(const float* x, uint64_t size, const Work& work, float* out) const noexcept;

  /// The key that at least three quarters of `wanted` elements of a unit of n reach, but for the
  /// chance that sampling exceeds three standard deviations (4.5 where neighbours are taken), and
  /// few more than wanted; 1, every element but zeros, where the sample is too small to say. Known
  /// of the unit are `m` of the `size` elements of a sample, all that may be among the wanted. Each
  /// further attempt looks twice as deep.
  [[nodiscard]] static uint32_t bound(const float* taken, uint64_t m, uint64_t size, double wanted,
                                      uint64_t n, uint32_t attempt, Isa isa) noexcept;

  /// A key that at least `rank` of values[0, m) reach, 1 <= rank <= m, and few more.
  [[nodiscard]] static uint32_t bound_of_rank(const float* values, uint64_t m, uint64_t rank,
                                              Isa isa) noexcept;

 private:
  RandomKey key_;
  uint64_t stream_;
  uint64_t n_;
};

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The elements of a unit whose magnitude reaches a floor, positives and negatives apart, in lent
// memory: one pass over the unit, which counts the elements of each sign on the way.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "codecs/sparse/sparse_select.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// Side of an element, by its sign bit; zeros belong to neither.
enum Sign : uint32_t { kPositive, kNegative };
inline constexpr std::array kSigns{kPositive, kNegative};

[[nodiscard]] inline Sign sign_of(float x) noexcept {
  return static_cast<Sign>(std::bit_cast<uint32_t>(x) >> 31);
}

template <class T>
using PerSign = std::array<T, 2>;

class SignedList {
 public:
  /// `capacity` of each sign.
  [[nodiscard]] static uint64_t scratch_bytes(uint64_t n, uint64_t capacity) noexcept;
  SignedList(MutBytes scratch, uint64_t n, uint64_t capacity) noexcept;

  /// Collects from x[0, n) the elements whose key is at least their sign's floor, 1 or more.
  void collect(const float* x, PerSign<uint32_t> floor, const Work& work) noexcept;

  /// Non-zero elements of this sign in the unit.
  [[nodiscard]] uint64_t total(Sign s) const noexcept { return total_[s]; }
  /// How many of them reach the floor. The list holds them unless it is too small for them.
  [[nodiscard]] uint64_t count(Sign s) const noexcept { return count_[s]; }
  [[nodiscard]] uint32_t floor(Sign s) const noexcept { return floor_[s]; }
  [[nodiscard]] bool complete(Sign s) const noexcept { return count_[s] <= capacity_; }
  /// The cut that keeps exactly k of a sign's, 1 <= k <= count().
  [[nodiscard]] Cut cut(Sign s, uint64_t k) const noexcept;
  /// Copies what the cut keeps of a sign's, in ascending order of indices. Returns how many. May
  /// write one entry past them.
  uint64_t keep(Sign s, Cut cut, uint32_t* index, float* value) const noexcept;

 private:
  struct BlockEntries {
    PerSign<uint64_t> at;
    PerSign<uint32_t> count;
  };

  using Counters = PerSign<std::atomic<uint64_t>>;
  void collect_block(const float* x, uint64_t block, Isa isa, Counters& total,
                     Counters& taken) noexcept;

  uint64_t n_;
  uint64_t blocks_;
  uint64_t capacity_;
  PerSign<uint64_t> total_{};
  PerSign<uint64_t> count_{};
  PerSign<uint32_t> floor_{};
  BlockEntries* piece_;
  PerSign<uint32_t*> index_{};
  PerSign<float*> value_{};
};

/// The cut that keeps exactly k of one sign's elements of x[0, n), of which there are at least k.
[[nodiscard]] Cut exact_cut_of(Sign s, const float* x, uint64_t n, uint64_t k) noexcept;
/// SignedList::keep from the unit itself.
uint64_t keep_of(Sign s, const float* x, uint64_t n, Cut cut, uint32_t* index,
                 float* value) noexcept;

}  // namespace laconic::codecs

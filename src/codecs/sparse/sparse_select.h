// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Finding the large elements of a unit in one pass over memory, and the exact k-th magnitude among
// the few that were found.
#pragma once

#include <atomic>
#include <cstdint>

#include "codecs/sparse/sparse_payload.h"
#include "kernels/sparse/select.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// The elements to keep: every element with a key above `key`, and of those equal to it the first
/// `ties` (lowest index first).
struct Cut {
  uint32_t key = 0;
  uint64_t ties = 0;
};

/// The cut that keeps exactly k of values[0, m), 1 <= k <= m: the k-th largest magnitude, by radix
/// selection; expected O(m), at most three passes over equal leading digits. No key lies below
/// `floor`: knowing one near the k-th saves looking for it.
[[nodiscard]] Cut exact_cut(const float* values, uint64_t m, uint64_t k,
                            uint32_t floor = 0) noexcept;
/// The k-th largest of keys[0, m), 1 <= k <= m.
[[nodiscard]] uint32_t kth_largest(const uint32_t* keys, uint64_t m, uint64_t k) noexcept;

/// A key that at least k of keys[0, m) reach and at most an eighth more (or, of few, eight).
[[nodiscard]] uint32_t bound_of_kth(const uint32_t* keys, uint64_t m, uint64_t k) noexcept;

/// The elements of a unit whose key is at least some floor, in lent memory. Threads write pieces in
/// any order; a table of pieces restores the order of indices, so results do not depend on them.
class CandidateList {
 public:
  [[nodiscard]] static uint64_t scratch_bytes(uint64_t n, uint64_t capacity) noexcept;
  CandidateList(MutBytes scratch, uint64_t n, uint64_t capacity) noexcept;

  /// Collects from x[0, n). Returns how many elements there are; only when they are at most
  /// `capacity` does the list hold them (complete()).
  uint64_t collect(const float* x, uint32_t floor, const Work& work, Pass pass) noexcept {
    return collect(Source{x, nullptr}, floor, work, pass);
  }
  /// The same from the sums of values and residual, if there is one.
  uint64_t collect(Source from, uint32_t floor, const Work& work, Pass pass) noexcept;

  [[nodiscard]] bool complete() const noexcept { return count_ <= capacity_; }
  [[nodiscard]] uint64_t count() const noexcept { return count_; }
  [[nodiscard]] uint32_t floor() const noexcept { return floor_; }
  /// All values, in no order that means anything.
  [[nodiscard]] const float* values() const noexcept { return value_; }
  /// How many of the list have a key of at least `key`.
  [[nodiscard]] uint64_t count_from(uint32_t key, Isa isa) const noexcept;
  /// body(index, value, m) for the pieces in ascending order of indices.
  template <class Body>
  void for_each_piece(Body&& body) const {
    for_pieces(0, blocks_, body);
  }
  /// The cut that keeps exactly k of the list, 1 <= k <= count().
  [[nodiscard]] Cut exact_cut(uint64_t k) const noexcept;
  /// Writes what the cut keeps, with `writer` at its start; the cut lies at or above floor().
  void write(Cut cut, const Work& work, SparseWriter& writer) noexcept;

 private:
  struct BlockEntries {
    uint64_t at;
    uint64_t count;
  };

  /// Blocks that one thread cuts in a batch: the number of elements above the cut, and on it; then
  /// where they go.
  struct Share {
    uint64_t kept;
    uint64_t ties;
  };

  static uint64_t entries(uint64_t capacity) noexcept;
  template <class Body>
  void for_pieces(uint64_t begin, uint64_t end, Body&& body) const {
    for (uint64_t b = begin; b < end; ++b) {
      if (piece_[b].count != 0) {
        body(index_ + piece_[b].at, value_ + piece_[b].at, uint64_t{piece_[b].count});
      }
    }
  }
  uint64_t place_shares(Cut cut, const Work& work) noexcept;
  void write_shared(Cut cut, const Work& work, const SparseWriter& writer) noexcept;
  [[nodiscard]] uint32_t block_size(uint64_t block) const noexcept;
  uint64_t select_block(Source from, uint64_t block, Isa isa, uint32_t* index,
                        float* value) const noexcept;
  void collect_block(Source from, uint64_t block, Isa isa, std::atomic<uint64_t>& taken) noexcept;
  void collect_alone(Source from, Isa isa, Pass pass) noexcept;

  uint64_t n_;
  uint64_t blocks_;
  uint64_t capacity_;
  uint64_t count_ = 0;
  uint32_t floor_ = 0;
  BlockEntries* piece_;
  Share* share_;
  uint32_t* index_;
  float* value_;
  uint32_t* kept_index_;
  float* kept_value_;
};

/// Writes what the cut keeps of x[0, n): for cuts that no list holds.
void write_cut(const float* x, uint64_t n, Cut cut, Isa isa, SparseWriter& writer) noexcept;

}  // namespace laconic::codecs

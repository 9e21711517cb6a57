// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// RingSum, for engines: a ring all-reduce. Each rank has a share of the elements; pieces of a share
// pass from rank to rank, which add their terms, and then once more as sums. It sends the same
// number of bytes as a LargeSum, over connections to two neighbours only.
#pragma once

#include <algorithm>
#include <cstdint>

#include "laconic/dtype.h"
#include "laconic/engine.h"

namespace laconic::detail {

/// The schedule: in every turn a rank sends one piece to the rank before it and receives one from
/// the rank after it: terms in the first half of the turns, sums in the second. The piece sent in
/// turn t + pieces() is the one received in turn t.
class RingSum {
 public:
  struct Extent {
    uint64_t offset = 0, bytes = 0;  // range of the elements; bytes may be 0
  };

  RingSum(const Step& step, uint32_t rank, uint32_t world, uint64_t piece_bytes) noexcept
      : size_(dtype_size(step.dtype)), count_(step.count), rank_(rank), world_(world) {
    const uint64_t share = (count_ + world_ - 1) / world_, most = piece_bytes / size_;
    pieces_ = std::max<uint64_t>((share + most - 1) / most, 1);
    piece_ = (share + pieces_ - 1) / pieces_;
  }

  /// Number of pieces of a share.
  [[nodiscard]] uint64_t pieces() const noexcept { return pieces_; }
  [[nodiscard]] uint64_t turns() const noexcept { return 2 * half(); }
  /// Number of turns that send terms.
  [[nodiscard]] uint64_t half() const noexcept { return (world_ - 1) * pieces_; }
  [[nodiscard]] Extent sent(uint64_t turn) const noexcept { return piece(rank_ + 1, turn); }
  [[nodiscard]] Extent received(uint64_t turn) const noexcept { return piece(rank_ + 2, turn); }

 private:
  [[nodiscard]] Extent piece(uint64_t owner, uint64_t turn) const noexcept {
    owner = (owner + turn / pieces_) % world_;
    const uint64_t left = count_ % world_, share = count_ / world_ + (owner < left ? 1 : 0);
    const uint64_t first = count_ / world_ * owner + std::min(left, owner);
    const uint64_t from = std::min(share, turn % pieces_ * piece_);
    return {(first + from) * size_, (std::min(share, from + piece_) - from) * size_};
  }

  uint64_t size_, count_;
  uint64_t rank_, world_;
  uint64_t pieces_ = 1, piece_ = 1;  // of a share; lanes
};

}  // namespace laconic::detail

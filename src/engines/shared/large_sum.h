// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// LargeSum, for engines: a sum taken by the ranks, for libraries whose own sum is slow. Each rank
// adds a share of the elements in rank order, piece by piece as terms arrive, and sends each piece
// to all others. It sends the same number of bytes as a ring; the gradient is read once to be sent
// and once to be added.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "laconic/dtype.h"
#include "laconic/engine.h"

namespace laconic::detail {

/// The shares of the ranks and the order of their pieces. The same on all ranks.
class LargeSum {
 public:
  struct Extent {
    uint8_t* at = nullptr;
    uint64_t bytes = 0;
  };
  /// `ahead`: pieces whose terms are in flight at a time.
  struct Pace {
    uint32_t ahead = 1;
    uint64_t piece_bytes = 4;
  };
  static constexpr uint32_t kMostAhead = 3;

  /// Between hosts the next pieces travel while one is added. On one host every copy is work of
  /// these cores and nothing is waited for, so few large pieces cost least. Terms under way take
  /// 12 MiB for 64 ranks.
  static constexpr Pace pace(uint32_t world, bool one_host) noexcept {
    constexpr uint64_t kKiB = 1024;
    if (one_host) return {1, std::clamp(2048 * kKiB / world / 4 * 4, 192 * kKiB, 1024 * kKiB)};
    return {kMostAhead, std::clamp(4096 * kKiB / world / 4 * 4, 64 * kKiB, 256 * kKiB)};
  }

  LargeSum() = default;
  LargeSum(const Step& step, uint32_t rank, uint32_t world, uint64_t piece_bytes)
      : step_(step), rank_(rank), world_(world), piece_(piece_bytes / dtype_size(step.dtype)) {}

  [[nodiscard]] const Step& step() const noexcept { return step_; }
  /// Number of pieces of the longest share.
  [[nodiscard]] uint64_t pieces() const noexcept {
    return ((step_.count + world_ - 1) / world_ + piece_ - 1) / piece_;
  }
  /// Piece `number` of `owner`'s share; the last one may be empty.
  [[nodiscard]] Extent piece_of(uint32_t owner, uint64_t number) const noexcept {
    const uint64_t size = dtype_size(step_.dtype), left = step_.count % world_;
    const uint64_t first = step_.count / world_ * owner + std::min<uint64_t>(left, owner);
    const uint64_t share = step_.count / world_ + (owner < left ? 1 : 0);
    const uint64_t from = std::min(share, number * piece_);
    const uint64_t to = std::min(share, from + piece_);
    return {step_.recv + (first + from) * size, (to - from) * size};
  }
  /// Adds this rank's piece in place, in rank order (x + y and y + x have the same bits).
  /// `term_of(r)`: rank r's elements of it, which are overwritten; `add`: Engine::add_lanes with
  /// two factors. Slices fit the first-level cache.
  template <class TermOf, class Add>
  void add_piece(uint64_t number, const TermOf& term_of, const Add& add) const {
    constexpr uint64_t kSlice = 8192;
    const Extent mine = piece_of(rank_, number);
    for (uint64_t done = 0; done < mine.bytes; done += kSlice) {
      const uint64_t count = std::min(kSlice, mine.bytes - done) / dtype_size(step_.dtype);
      uint8_t* total = (rank_ == 0 ? mine.at : term_of(0)) + done;
      float of_total = step_.scale;
      for (uint32_t r = 1; r < world_; ++r) {
        uint8_t* x = (r == rank_ ? mine.at : term_of(r)) + done;
        float of_x = step_.scale;
        if (r == rank_) {
          std::swap(total, x);
          std::swap(of_total, of_x);
        }
        add(step_.dtype, total, of_total, x, of_x, count);
        of_total = 1.0F;
      }
    }
  }

 private:
  Step step_;
  uint32_t rank_ = 0, world_ = 1;
  uint64_t piece_ = 1;  // lanes
};

}  // namespace laconic::detail

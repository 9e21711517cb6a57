// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums that an MpiEngine computes itself, one at a time.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "../shared/large_sum.h"
#include "group.h"
#include "laconic/engine/mpi.h"
#include "status.h"
#include "transfers.h"

namespace laconic::mpi {

/// All ranks post the same messages in the same order, so tags need not tell them apart.
class LargeSums {
 public:
  LargeSums(Status& status, const Group& group, Transfers& transfers) noexcept
      : status_(status), group_(group), transfers_(transfers) {}

  /// Once the group is there.
  void open();
  /// Whether a sum of `bytes` bytes goes this way. The same on all ranks.
  [[nodiscard]] bool takes(uint64_t bytes) const {
    return group_.world() > 1 && bytes != 0 &&
           bytes / group_.world() >= group_.options().large_share;
  }
  [[nodiscard]] bool under_way() const noexcept { return batch_ != nullptr; }
  void begin(Started& started, const Step& step);
  /// After transfers have ended: whatever has all its terms.
  void go_on();
  /// The receive buffers, to be kept alive where a request never completes.
  [[nodiscard]] std::shared_ptr<void> memory() const noexcept { return terms_; }

 private:
  using LargeSum = detail::LargeSum;

  [[nodiscard]] uint8_t* term_of(uint32_t peer, uint64_t number) const {
    return terms_.get() + (number % pace_.ahead * group_.world() + peer) * pace_.piece_bytes;
  }
  [[nodiscard]] uint32_t& pending_of(uint64_t number) {
    return pending_[number % LargeSum::kMostAhead];
  }
  void exchange_terms(uint64_t number);
  void add_terms(uint64_t number);
  void hand_round(uint64_t number);
  void post(Kind kind, uint32_t peer, LargeSum::Extent range, uint32_t* term);

  Status& status_;
  const Group& group_;
  Transfers& transfers_;
  LargeSum::Pace pace_;
  std::shared_ptr<uint8_t[]> terms_;
  LargeSum sum_;
  Started* batch_ = nullptr;
  uint64_t posted_ = 0, summed_ = 0;                      // pieces
  std::array<uint32_t, LargeSum::kMostAhead> pending_{};  // calls with terms, by piece
};

}  // namespace laconic::mpi

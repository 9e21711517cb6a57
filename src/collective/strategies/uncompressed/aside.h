// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other where float32 is summed as it is: lanes of the same type, behind the
// others or, beside a bucket that is summed in place, in an all-reduce of their own in the same
// batch.
//     wish, a lane for each bit | reports, a slot for each rank of the turn
#pragma once

#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class Aside {
 public:
  explicit Aside(const RankState& state) : state_(&state) {}
  void reserve() { book_.reserve(state_->model().options().reports, state_->world()); }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return book_.held_bytes(); }
  /// Lanes of an exchange, and of the longest.
  [[nodiscard]] uint64_t lanes(const Input& input) const noexcept {
    return kWishLanes + turn(input).count * report_lanes(DType::f32);
  }
  [[nodiscard]] uint64_t lanes_at_most() const noexcept {
    return kWishLanes + slot_turn(state_->world(), 0).count * report_lanes(DType::f32);
  }

  void begin() noexcept {
    book_.begin();
    wish_ = 0;
  }
  /// Into lanes(input) floats at `at`.
  void put(const Input& input, uint8_t* at) const noexcept;
  /// The sum is there. A rank that failed has said nothing.
  void hear(const Input& input, const uint8_t* at) noexcept;
  [[nodiscard]] uint32_t wish() const noexcept { return wish_; }
  [[nodiscard]] HeardReports reports() const noexcept { return book_.heard(); }

 private:
  [[nodiscard]] SlotTurn turn(const Input& input) const noexcept {
    return input.report == nullptr ? SlotTurn{} : slot_turn(state_->world(), input.report->turn);
  }

  const RankState* state_;
  ReportBook book_;
  uint32_t wish_ = 0;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other where float32 is summed as it is: lanes of the same type, behind the
// others or, beside a bucket that is summed in place, in an all-reduce of their own in the same
// batch.
//     wish, a lane for each bit | present, a lane for each parameter whose memory is joint
//     (UnitCodec::joint) | reports, a slot for each rank of the turn
#pragma once

#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/exchange/strategy.h"
#include "collective/plan/layout.h"

namespace laconic::collective {

class Aside {
 public:
  Aside(const RankState& state, const Layout& layout);
  void reserve() { book_.reserve(state_->model().options().reports, state_->world()); }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(book_, joint_); }
  /// Lanes of an exchange, and of the longest.
  [[nodiscard]] uint64_t lanes(const Input& input) const noexcept {
    return front() + turn(input).count * report_lanes(DType::f32);
  }
  [[nodiscard]] uint64_t lanes_at_most() const noexcept {
    return front() + slot_turn(state_->world(), 0).count * report_lanes(DType::f32);
  }

  /// The gradients are still in their place.
  void begin(const Input& input) noexcept;
  /// Into lanes(input) floats at `at`.
  void put(const Input& input, uint8_t* at) const noexcept;
  /// The sum is there. A rank that failed has said nothing.
  void hear(const Input& input, const uint8_t* at) noexcept;
  [[nodiscard]] uint32_t wish() const noexcept { return wish_; }
  [[nodiscard]] HeardReports reports() const noexcept { return book_.heard(); }
  /// Is some parameter's memory joint?
  [[nodiscard]] bool joint() const noexcept { return !joint_.empty(); }
  /// body(parameter of the layout) for those whose memory is joint and that no rank has a gradient
  /// for: what was sent of them does not count.
  template <class Body>
  void over_absent(Body&& body) const {
    for (const Joint& j : joint_) {
      if (!j.present) body(j.index);
    }
  }

 private:
  struct Joint {
    uint32_t index = 0;    // in the layout
    bool present = false;  // here; then on some rank
  };
  [[nodiscard]] uint64_t front() const noexcept { return kWishLanes + joint_.size(); }
  [[nodiscard]] SlotTurn turn(const Input& input) const noexcept {
    return input.report == nullptr ? SlotTurn{} : slot_turn(state_->world(), input.report->turn);
  }

  const RankState* state_;
  const Layout* layout_;
  std::vector<Joint> joint_;
  ReportBook book_;
  uint32_t wish_ = 0;
};

}  // namespace laconic::collective

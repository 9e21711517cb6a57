// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Riders: values that travel with summed elements, after them or, if a bucket is summed in place,
// in an all-reduce of their own in the same batch:
//
//    flush, an element for each bit | present, an element for each parameter whose memory is joint
//    (UnitCodec::joint) | in some exchanges reports, a slot for each rank of the turn
#pragma once

#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

/// A lane of f32, f16, bf16 or i32 as a number, which is small and whole where it is i32.
[[nodiscard]] float load_lane(DType type, const uint8_t* at) noexcept;
void store_lane(DType type, float value, uint8_t* at) noexcept;

class Riders {
 public:
  explicit Riders(const RankState& state) : state_(&state) {}
  /// For all parameters of a layout.
  Riders(const RankState& state, const Layout& layout);
  /// As settings are now.
  void carry(bool flush, bool reports) noexcept {
    carries_flush_ = flush;
    carries_reports_ = reports;
    joint_.clear();
  }
  /// `count` elements at `offset` of the gradient have a joint memory. `index` is the caller's.
  void add_joint(uint32_t index, uint64_t offset, uint64_t count) {
    joint_.push_back({index, offset, count});
  }
  [[nodiscard]] bool joint() const noexcept { return !joint_.empty(); }
  void reserve() { book_.reserve(state_->model().options().reports, state_->world()); }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(book_, joint_); }

  /// The gradients are still in their place.
  void begin(const Input& input) noexcept;
  /// Number of report slots in this exchange; 0: none.
  [[nodiscard]] uint32_t slots() const noexcept { return turn_.count; }
  [[nodiscard]] uint32_t most_slots() const noexcept {
    const bool reports = state_->model().options().reports && carries_reports_;
    return reports ? slot_turn(state_->world(), 0).count : 0;
  }
  /// In this exchange, and in the longest.
  [[nodiscard]] uint64_t lanes(DType type) const noexcept {
    return front() + slots() * report_lanes(type);
  }
  [[nodiscard]] uint64_t most_lanes(DType type) const noexcept {
    return front() + most_slots() * report_lanes(type);
  }
  /// Into lanes(type). `bit` goes where a bit of the flush is set.
  void put(DType type, float bit, uint8_t* at) const noexcept;
  void put_flush(DType type, float bit, uint8_t* at) const noexcept;
  void put_reports(DType type, uint8_t* at) const noexcept;

  /// The sums are there. A rank that failed has said nothing.
  void hear(DType type, const uint8_t* at) noexcept;
  void hear_flush(DType type, const uint8_t* at) noexcept;
  void hear_reports(DType type, const uint8_t* at) noexcept {
    if (turn_.count != 0) book_.hear_lanes(turn_, type, at);
  }
  [[nodiscard]] uint32_t flush() const noexcept { return heard_; }
  [[nodiscard]] HeardReports reports() const noexcept { return book_.heard(); }
  /// body(index) for joint memory that no rank has a gradient for: nothing counts as sent.
  template <class Body>
  void over_absent(Body&& body) const {
    for (const Joint& j : joint_) {
      if (!j.present) body(j.index);
    }
  }

 private:
  struct Joint {
    uint32_t index = 0;
    uint64_t offset = 0, count = 0;
    bool present = false;  // here; then on some rank
  };
  [[nodiscard]] uint64_t front() const noexcept {
    return (carries_flush_ ? kWishLanes : 0) + joint_.size();
  }

  const RankState* state_;
  bool carries_flush_ = true, carries_reports_ = true;
  std::vector<Joint> joint_;
  ReportBook book_;
  SlotTurn turn_;
  const control::Report* own_ = nullptr;  // null: nothing to say
  uint32_t asked_ = 0;                    // bits of the flush that this rank asks for
  uint32_t heard_ = 0;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What ranks tell each other beside a bucket that is summed as it is: lanes of float32 in an
// all-reduce of their own, in the same batch.
//     wish, a lane for each bit | reports, a slot for each rank of the turn
#pragma once

#include "base/arena.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class Aside {
 public:
  explicit Aside(const RankState& state) : state_(&state) {}
  /// False: no memory.
  [[nodiscard]] bool reserve();
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(lanes_) + book_.held_bytes(); }

  void begin() noexcept { book_.begin(); }
  /// `input` has a report.
  void emit(const Input& input, Step& step, Counters& counters);
  /// The sum is there. A rank that failed has said nothing.
  void hear(const Input& input) noexcept;
  [[nodiscard]] uint32_t wish() const noexcept { return wish_; }
  [[nodiscard]] HeardReports reports() const noexcept { return book_.heard(); }

 private:
  [[nodiscard]] uint64_t lanes(const SlotTurn& turn) const noexcept {
    return kWishLanes + turn.count * report_lanes(DType::f32);
  }

  const RankState* state_;
  Arena lanes_;
  ReportBook book_;
  uint32_t wish_ = 0;
};

}  // namespace laconic::collective

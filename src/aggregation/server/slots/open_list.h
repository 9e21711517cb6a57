// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Slots that are open, in the order of their opening. Shared ones are not in a list: the program in
// the kernel opens and closes them as well.
#pragma once

#include <cstdint>

#include "aggregation/server/slots/ring.h"

namespace laconic::aggregation {

class OpenList {
 public:
  /// `ring` outlives it.
  explicit OpenList(SlotRing& ring) noexcept : ring_(ring) {}

  void append(Slot& slot) noexcept {
    if (ring_.is_shared()) return;
    const uint16_t index = ring_.index_of(slot.number);
    slot.before = last_;
    slot.behind = kNobody;
    (last_ == kNobody ? first_ : ring_.at_index(last_).behind) = index;
    last_ = index;
    ++count_;
  }
  void remove(Slot& slot) noexcept {
    if (ring_.is_shared()) return;
    (slot.before == kNobody ? first_ : ring_.at_index(slot.before).behind) = slot.behind;
    (slot.behind == kNobody ? last_ : ring_.at_index(slot.behind).before) = slot.before;
    --count_;
  }

  /// Calls visit(slot) for those in the list, which may remove it, while it returns true.
  template <class Visit>
  void visit_own(Visit&& visit) const noexcept {
    for (uint16_t i = first_; i != kNobody;) {
      Slot& slot = ring_.at_index(i);
      i = slot.behind;
      if (!visit(slot)) return;
    }
  }
  /// All of them, shared ones, too.
  template <class Visit>
  void visit(Visit&& visit) const noexcept {
    visit_own([&](const Slot& slot) {
      visit(slot);
      return true;
    });
    if (!ring_.is_shared()) return;
    for (uint64_t number = ring_.front(); number < ring_.opened(); ++number) {
      const SlotRing::Hold hold(ring_, number);
      if (ring_.has(number, SlotState::open)) visit(ring_.at(number));
    }
  }
  [[nodiscard]] uint32_t count() const noexcept {
    if (!ring_.is_shared()) return count_;
    uint32_t found = 0;
    visit([&](const Slot&) { ++found; });
    return found;
  }

 private:
  static constexpr uint16_t kNobody = 0xFFFFU;

  SlotRing& ring_;
  uint32_t count_ = 0;
  uint16_t first_ = kNobody, last_ = kNobody;
};

}  // namespace laconic::aggregation

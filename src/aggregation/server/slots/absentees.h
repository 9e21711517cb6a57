// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Workers that sums closed without: they are not waited for until they have caught up, or were left
// out of several exchanges in a row.
#pragma once

#include <array>
#include <cstdint>

#include "aggregation/server/slots/slot.h"

namespace laconic::aggregation {

class Absentees {
 public:
  explicit Absentees(uint32_t world) noexcept : world_(world) {}

  /// Bit w: worker w is not waited for.
  [[nodiscard]] uint64_t late() const noexcept { return late_; }
  void caught_up(uint32_t worker) noexcept { late_ &= ~bit_of(worker); }
  /// A sum was closed.
  void note(const Slot& slot, uint64_t missing) noexcept {
    late_ |= missing;
    if ((slot.flags & protocol::kFirst) != 0) count(slot);
  }

 private:
  static constexpr uint8_t kExchanges = 4;

  void count(const Slot& slot) noexcept {
    for (uint32_t w = 0; w < world_; ++w) {
      if ((slot.bitmap & bit_of(w)) != 0) {
        left_out_[w] = 0;
      } else if (++left_out_[w] >= kExchanges) {
        left_out_[w] = 0;
        late_ &= ~bit_of(w);
      }
    }
  }

  uint32_t world_;
  uint64_t late_ = 0;
  std::array<uint8_t, protocol::kMaxWorkers> left_out_{};  ///< exchanges in a row
};

}  // namespace laconic::aggregation

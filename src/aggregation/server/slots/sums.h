// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Adds contributions to the lanes of sums: each as it comes, or, where payloads stay, all those of
// a sum at once.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "aggregation/server/add.h"
#include "aggregation/server/slots/ring.h"

namespace laconic::aggregation {

class Sums {
 public:
  [[nodiscard]] static uint64_t memory(const protocol::JobSettings& settings) noexcept {
    return settings.ring * (sizeof(Promised) + sizeof(uint16_t));
  }
  /// `ring` outlives it.
  Sums(const protocol::JobSettings& settings, SlotRing& ring);

  /// Bytes of the sum that it goes into.
  [[nodiscard]] uint32_t length_of(const Addend& c) const noexcept;
  /// Not an empty one.
  void add(Slot& slot, const Addend& c) noexcept;
  /// Adds all that the sum was promised.
  void complete(Slot& slot) noexcept;
  /// The same for all sums: the payloads that stayed may go now.
  void settle() noexcept;
  [[nodiscard]] bool owes() const noexcept { return owed_ != 0; }

 private:
  /// Codes that are in a sum by all that is said of it, and not in its lanes yet.
  struct Promised {
    static constexpr std::size_t kMost = 8;
    std::array<const uint8_t*, kMost> codes{};
    std::size_t count = 0;
  };
  [[nodiscard]] bool may_promise(const Addend& c) const noexcept {
    return c.stays && !ring_.is_shared() && (c.flags & protocol::kValues) == 0;
  }
  void promise(Slot& slot, const uint8_t* codes) noexcept;

  SlotRing& ring_;
  Adder adder_;
  uint32_t lane_bytes_;
  std::vector<Promised> promised_;   ///< by slot; none if slots are shared
  std::vector<uint16_t> unsettled_;  ///< slots that were promised something, some of them twice
  std::size_t unsettled_count_ = 0, owed_ = 0;
};

}  // namespace laconic::aggregation

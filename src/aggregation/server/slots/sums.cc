// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/slots/sums.h"

#include <algorithm>

namespace laconic::aggregation {

Sums::Sums(const protocol::JobSettings& settings, SlotRing& ring)
    : ring_(ring),
      adder_(settings),
      lane_bytes_(static_cast<uint32_t>(settings.lane_bytes())),
      promised_(ring.is_shared() ? 0 : settings.ring),
      unsettled_(promised_.size()) {}

uint32_t Sums::length_of(const Addend& c) const noexcept {
  if ((c.flags & protocol::kEmpty) != 0) return 0;
  if ((c.flags & protocol::kValues) != 0) return static_cast<uint32_t>(c.payload.size());
  return lane_bytes_;
}

void Sums::add(Slot& slot, const Addend& c) noexcept {
  const uint8_t* payload = c.payload.data();
  const bool first = slot.added == 0;
  if (first) slot.length = length_of(c);
  if (may_promise(c)) return promise(slot, payload);
  complete(slot);
  ++slot.added;
  uint8_t* lanes = ring_.sum(slot).data();
  if ((c.flags & protocol::kValues) == 0) {
    first ? adder_.set_codes(payload, lanes) : adder_.add_codes(payload, lanes);
  } else if (first) {
    std::copy_n(payload, slot.length, lanes);
  } else {
    Adder::add_values(payload, lanes, slot.length / 4);
  }
}

// A sum that all workers' codes come for while payloads stay is written once, not read and written
// for each of them.
void Sums::promise(Slot& slot, const uint8_t* codes) noexcept {
  const uint16_t index = ring_.index_of(slot.number);
  Promised& promised = promised_[index];
  if (promised.count == Promised::kMost) complete(slot);
  if (promised.count == 0) {
    if (unsettled_count_ == unsettled_.size()) settle();
    unsettled_[unsettled_count_++] = index;
    ++owed_;
  }
  promised.codes[promised.count++] = codes;
  ++slot.added;
}

void Sums::complete(Slot& slot) noexcept {
  if (ring_.is_shared()) return;
  Promised& promised = promised_[ring_.index_of(slot.number)];
  if (promised.count == 0) return;
  const bool first = promised.count == slot.added;
  adder_.add_all({promised.codes.data(), promised.count}, first, ring_.sum(slot).data());
  promised.count = 0;
  if (--owed_ == 0) unsettled_count_ = 0;
}

void Sums::settle() noexcept {
  for (std::size_t i = 0; i < unsettled_count_; ++i) complete(ring_.at_index(unsettled_[i]));
}

}  // namespace laconic::aggregation

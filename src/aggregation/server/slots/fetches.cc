// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/slots/fetches.h"

#include <algorithm>
#include <bit>

namespace laconic::aggregation {
namespace {

bool holds(const Holding& h, uint64_t number) noexcept {
  if (number < h.ack) return number >= h.kept;
  const uint64_t i = number - h.ack;
  return i < 8 * h.held.size() && (uint32_t{h.held[i / 8]} >> (i % 8) & 1U) != 0;
}

/// One above the highest result that is held.
uint64_t top_of(const Holding& h) noexcept {
  for (uint64_t i = 8 * h.held.size(); i > 0; --i) {
    if (holds(h, h.ack + i - 1)) return h.ack + i;
  }
  return h.ack;
}

}  // namespace

int Fetches::restore(std::span<const Holding> holdings) noexcept {
  uint32_t lowest = 0;
  top_ = 0;
  uint64_t most = 0;
  for (uint32_t w = 0; w < holdings.size(); ++w) {
    if (holdings[w].ack < holdings[lowest].ack) lowest = w;
    most = std::max(most, holdings[w].ack);
    top_ = std::max(top_, top_of(holdings[w]));
  }
  ring_.begin(holdings);
  next_ = ring_.floor();
  if (top_ - ring_.floor() > settings_.ring) return static_cast<int>(lowest);
  for (uint64_t number = ring_.floor(); number < top_; ++number) {
    uint64_t holders = 0;
    for (uint32_t w = 0; w < holdings.size(); ++w) {
      if (holds(holdings[w], number)) holders |= bit_of(w);
    }
    if (holders == 0 && number < most) return static_cast<int>(lowest);
    if (holders == 0) continue;
    Slot& slot = ring_.at(number);
    slot = {};
    slot.number = number;
    slot.passed = number + 1;
    slot.state = SlotState::fetching;
    slot.holders = holders;
    ++count_;
  }
  ring_.advance_front();
  return -1;
}

bool Fetches::next(Time now, Time retry, Fetch* fetch) noexcept {
  if (count_ == 0) return false;
  const uint64_t floor = ring_.floor();
  for (uint64_t seen = floor; seen < top_; ++seen, ++next_) {
    if (next_ < floor || next_ >= top_) next_ = floor;
    Slot& slot = ring_.at(next_);
    if (!ring_.has(next_, SlotState::fetching)) continue;
    if (slot.since != 0 && now - slot.since < retry) continue;
    // The holders in turn: the next one above the last that was asked.
    const uint64_t above =
        slot.added == 0 ? slot.holders : slot.holders & ~((bit_of(slot.added - 1U) << 1U) - 1U);
    fetch->worker = static_cast<uint32_t>(std::countr_zero(above != 0 ? above : slot.holders));
    fetch->number = next_++;
    slot.added = static_cast<uint8_t>(fetch->worker + 1);
    slot.since = std::max<Time>(now, 1);
    return true;
  }
  return false;
}

bool Fetches::take(uint32_t worker, uint64_t number, const protocol::DownHeader& header,
                   Bytes payload) noexcept {
  const SlotRing::Hold hold(ring_, number);
  Slot& slot = ring_.at(number);
  if (!ring_.has(number, SlotState::fetching) || (slot.holders & bit_of(worker)) == 0) return false;
  const bool values = (header.flags & protocol::kValues) != 0;
  const bool length_fits = values ? payload.size() <= 4U * settings_.values
                                  : payload.empty() || payload.size() == settings_.lane_bytes();
  const uint64_t all = ~uint64_t{0} >> (64U - settings_.world);
  if (!length_fits || (header.bitmap & ~all) != 0) return false;
  slot.state = SlotState::closed;
  slot.bitmap = header.bitmap;
  slot.settings = header.settings;
  slot.norm = header.norm;
  slot.flags = header.flags & static_cast<uint8_t>(~protocol::kFull);
  slot.added = header.added;
  slot.length = static_cast<uint32_t>(payload.size());
  std::copy(payload.begin(), payload.end(), ring_.sum(slot).begin());
  --count_;
  return true;
}

}  // namespace laconic::aggregation

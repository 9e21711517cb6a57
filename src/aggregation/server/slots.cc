// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/slots.h"

#include <algorithm>
#include <bit>

namespace laconic::aggregation {
namespace {

constexpr uint8_t kSumFlags = protocol::kTrouble | protocol::kFirst;  // OR-ed into the result

}  // namespace

uint64_t Slots::memory(const protocol::JobSettings& s) noexcept {
  return SlotRing::memory(s) + Sums::memory(s) + s.ring * sizeof(uint64_t);
}

Slots::Slots(const protocol::JobSettings& settings, SharedSlots shared)
    : settings_(settings),
      all_(~uint64_t{0} >> (64U - settings.world)),
      deadline_(uint64_t{settings.deadline_us} * 1000U),
      ring_(settings, shared),
      sums_(settings, ring_),
      open_(ring_),
      absentees_(settings.world),
      fetches_(settings_, ring_),
      closed_(settings.ring) {}

bool Slots::acknowledge(uint32_t worker, uint64_t number) noexcept {
  const SlotRing::Ack ack = ring_.acknowledge(worker, number);
  if (ack == SlotRing::Ack::raised && number >= ring_.front()) absentees_.caught_up(worker);
  return ack != SlotRing::Ack::wrong;
}

bool Slots::has_length(const Addend& c) const noexcept {
  if ((c.flags & protocol::kEmpty) != 0) return true;
  const uint64_t size = c.payload.size();
  if ((c.flags & protocol::kValues) != 0) return size % 4 == 0 && size <= 4U * settings_.values;
  return size == settings_.code_bytes() || size == settings_.padded_bytes();
}

void Slots::open_slot(Time now, const Addend& c) noexcept {
  Slot& slot = ring_.at(c.number);
  slot = {};
  slot.number = c.number;
  slot.state = SlotState::open;
  slot.since = now;
  slot.settings = c.settings;
  slot.flags = c.flags & protocol::kValues;
  ring_.note_opened(c.number);
  open_.append(slot);
}

Verdict Slots::add(Time now, const Addend& c) noexcept {
  if (c.number < ring_.ack(c.worker)) return Verdict::stale;
  if (ring_.is_beyond(c.number)) return Verdict::beyond;
  const SlotRing::Hold hold(ring_, c.number);
  Slot& slot = ring_.at(c.number);
  if (slot.number > c.number) return Verdict::stale;  // all have acknowledged it meanwhile
  if (ring_.has(c.number, SlotState::closed)) return Verdict::stored;
  if (ring_.has(c.number, SlotState::fetching)) return Verdict::waiting;
  const bool is_open = ring_.has(c.number, SlotState::open);
  if (is_open && (slot.bitmap & bit_of(c.worker)) != 0) return Verdict::duplicate;
  if (!has_length(c)) return Verdict::differs;
  const bool empty = (c.flags & protocol::kEmpty) != 0;
  if (is_open) {
    const bool same_length = slot.length == 0 || empty || slot.length == sums_.length_of(c);
    if (slot.settings != c.settings || !same_length ||
        ((slot.flags ^ c.flags) & protocol::kValues) != 0) {
      return Verdict::differs;
    }
  } else {
    open_slot(now, c);
  }
  slot.bitmap |= bit_of(c.worker);
  slot.norm = std::max(slot.norm, c.norm);
  slot.flags |= c.flags & kSumFlags;
  if (!empty) sums_.add(slot, c);
  if (!may_close(slot, now)) return Verdict::added;
  const bool deadline = (slot.bitmap | late()) != all_;
  close(slot);
  if (deadline) close_all_due(now);
  return Verdict::added;
}

bool Slots::may_close(const Slot& slot, Time now) const noexcept {
  if (slot.bitmap == all_) return true;
  if (static_cast<uint32_t>(std::popcount(slot.bitmap)) < settings_.needed) return false;
  return (slot.bitmap | late()) == all_ || is_due(slot, now);
}

void Slots::close(Slot& slot) noexcept {
  const uint64_t missing = all_ & ~slot.bitmap;
  sums_.complete(slot);
  open_.remove(slot);
  slot.state = SlotState::closed;
  if (slot.added == 0) slot.flags |= protocol::kEmpty;
  ring_.pass(slot);
  closed_[closed_count_++] = slot.number;
  ring_.advance_front();
  absentees_.note(slot, missing);
}

// A worker that is late for one sum is not waited for in the others, which may close then, too.
// Sums that are due lie in front, and they alone make a worker late: one pass.
void Slots::close_all_due(Time now) noexcept {
  open_.visit_own([&](Slot& slot) {
    if (may_close(slot, now)) close(slot);
    return true;
  });
}

Verdict Slots::pull(uint32_t worker, uint64_t number) noexcept {
  if (number < ring_.ack(worker)) return Verdict::stale;
  if (ring_.is_beyond(number)) return Verdict::beyond;
  const SlotRing::Hold hold(ring_, number);
  if (ring_.has(number, SlotState::closed)) return Verdict::stored;
  if (ring_.has(number, SlotState::fetching)) return Verdict::waiting;
  return Verdict::open;
}

bool Slots::take_held(uint32_t worker, uint64_t number, const protocol::DownHeader& header,
                      Bytes payload) noexcept {
  if (!fetches_.take(worker, number, header, payload)) return false;
  closed_[closed_count_++] = number;
  return true;
}

void Slots::tick(Time now) noexcept {
  ticked_ = now;
  if (settings_.needed < settings_.world) close_all_due(now);
}

Time Slots::next_deadline() const noexcept {
  Time next = kNever;
  if (settings_.needed == settings_.world) return next;
  open_.visit_own([&](const Slot& slot) {
    if (!is_due(slot, ticked_)) next = slot.since + deadline_;
    return next == kNever;
  });
  return next;
}

bool Slots::waits_for(uint32_t worker) const noexcept {
  bool waits = fetching() != 0 || ring_.ack(worker) == ring_.floor();
  open_.visit([&](const Slot& open) { waits |= (open.bitmap & bit_of(worker)) == 0; });
  return waits;
}

}  // namespace laconic::aggregation

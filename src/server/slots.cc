// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "server/slots.h"

#include <algorithm>
#include <bit>

namespace laconic::server {
namespace {

using wire::DatagramFlag;

constexpr uint16_t kNobody = 0xFFFFU;  // end of the list of open slots
constexpr uint8_t kExchangesLeftOut = 4;
constexpr uint8_t kSumFlags = wire::kTrouble | wire::kFirst;  // OR-ed into the result

constexpr uint64_t bit_of(uint32_t worker) noexcept { return uint64_t{1} << worker; }

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

uint64_t Slots::memory(const wire::JobSettings& s) noexcept {
  return s.ring * (wire::kDownHeaderBytes + s.slot_bytes() + sizeof(Slot) + sizeof(uint64_t));
}

Slots::Slots(const wire::JobSettings& settings)
    : settings_(settings),
      adder_(settings),
      all_(~uint64_t{0} >> (64U - settings.world)),
      deadline_(uint64_t{settings.deadline_us} * 1000U),
      slots_(settings.ring),
      sums_(settings.ring * (wire::kDownHeaderBytes + settings.slot_bytes())),
      stride_(wire::kDownHeaderBytes + settings.slot_bytes()),
      closed_(settings.ring),
      first_(kNobody),
      last_(kNobody) {}

Bytes Slots::sum(const Slot& slot) const noexcept {
  const auto index = static_cast<uint64_t>(&slot - slots_.data());
  return {sums_.data() + index * stride_ + wire::kDownHeaderBytes, slot.length};
}

MutBytes Slots::sum(const Slot& slot) noexcept {
  const Bytes bytes = static_cast<const Slots*>(this)->sum(slot);
  return {const_cast<uint8_t*>(bytes.data()), bytes.size()};
}

MutBytes Slots::datagram(const Slot& slot) noexcept {
  const auto index = static_cast<uint64_t>(&slot - slots_.data());
  return {sums_.data() + index * stride_, wire::kDownHeaderBytes + slot.length};
}

int Slots::restore(std::span<const Holding> holdings) noexcept {
  uint32_t lowest = 0;
  top_ = 0;
  uint64_t most = 0;
  for (uint32_t w = 0; w < holdings.size(); ++w) {
    acks_[w] = holdings[w].ack;
    if (holdings[w].ack < holdings[lowest].ack) lowest = w;
    most = std::max(most, holdings[w].ack);
    top_ = std::max(top_, top_of(holdings[w]));
  }
  floor_ = front_ = next_fetch_ = acks_[lowest];
  if (top_ - floor_ > slots_.size()) return static_cast<int>(lowest);
  for (uint64_t number = floor_; number < top_; ++number) {
    uint64_t holders = 0;
    for (uint32_t w = 0; w < holdings.size(); ++w) {
      if (holds(holdings[w], number)) holders |= bit_of(w);
    }
    if (holders == 0 && number < most) return static_cast<int>(lowest);
    if (holders == 0) continue;
    Slot& slot = at(number);
    slot = {};
    slot.number = number;
    slot.state = SlotState::fetching;
    slot.holders = holders;
    ++fetching_;
  }
  advance_front();
  return -1;
}

bool Slots::acknowledge(uint32_t worker, uint64_t ack) noexcept {
  if (ack > front_) return false;
  const uint64_t old = acks_[worker];
  if (ack <= old) return true;
  acks_[worker] = ack;
  if (old == floor_) floor_ = *std::min_element(acks_.begin(), acks_.begin() + settings_.world);
  if (ack >= front_) late_ &= ~bit_of(worker);
  return true;
}

uint32_t Slots::length_of(const Contribution& c) const noexcept {
  if ((c.flags & wire::kEmpty) != 0) return 0;
  if ((c.flags & wire::kValues) != 0) return static_cast<uint32_t>(c.payload.size());
  return static_cast<uint32_t>(settings_.lane_bytes());
}

void Slots::open_slot(Time now, const Contribution& c) noexcept {
  Slot& slot = at(c.number);
  slot = {};
  slot.number = c.number;
  slot.state = SlotState::open;
  slot.since = now;
  slot.settings = c.settings;
  slot.flags = c.flags & wire::kValues;
  slot.before = last_;
  slot.behind = kNobody;
  const auto index = static_cast<uint16_t>(c.number % slots_.size());
  (last_ == kNobody ? first_ : slots_[last_].behind) = index;
  last_ = index;
  ++open_count_;
}

void Slots::unlink(Slot& slot) noexcept {
  (slot.before == kNobody ? first_ : slots_[slot.before].behind) = slot.behind;
  (slot.behind == kNobody ? last_ : slots_[slot.behind].before) = slot.before;
  --open_count_;
}

Verdict Slots::add(Time now, const Contribution& c) noexcept {
  if (c.number < acks_[c.worker]) return Verdict::stale;
  if (c.number >= floor_ + slots_.size()) return Verdict::beyond;
  Slot& slot = at(c.number);
  if (has(c.number, SlotState::closed)) return Verdict::stored;
  if (has(c.number, SlotState::fetching)) return Verdict::waiting;
  const bool is_open = has(c.number, SlotState::open);
  if (is_open && (slot.bitmap & bit_of(c.worker)) != 0) return Verdict::duplicate;
  const bool values = (c.flags & wire::kValues) != 0;
  const uint64_t right = values ? c.payload.size() : settings_.code_bytes();
  const bool empty = (c.flags & wire::kEmpty) != 0;
  const bool padded = !values && c.payload.size() == settings_.padded_bytes();
  if (!empty && ((c.payload.size() != right && !padded) || right % (values ? 4 : 1) != 0 ||
                 (values && right > 4U * settings_.values))) {
    return Verdict::differs;
  }
  if (is_open) {
    const bool same_length = slot.length == 0 || empty || slot.length == length_of(c);
    if (slot.settings != c.settings || !same_length ||
        ((slot.flags ^ c.flags) & wire::kValues) != 0) {
      return Verdict::differs;
    }
  } else {
    open_slot(now, c);
  }
  put(slot, c);
  if (!may_close(slot, now)) return Verdict::added;
  const bool deadline = (slot.bitmap | late_) != all_;
  close(slot);
  if (deadline) close_all_due(now);
  return Verdict::added;
}

void Slots::put(Slot& slot, const Contribution& c) noexcept {
  slot.bitmap |= bit_of(c.worker);
  slot.norm = std::max(slot.norm, c.norm);
  slot.flags |= c.flags & kSumFlags;
  if ((c.flags & wire::kEmpty) != 0) return;
  const bool first = slot.added++ == 0;
  if (first) slot.length = length_of(c);
  uint8_t* lanes = sum(slot).data();
  const uint8_t* payload = c.payload.data();
  if ((c.flags & wire::kValues) == 0) {
    first ? adder_.set_codes(payload, lanes) : adder_.add_codes(payload, lanes);
  } else if (first) {
    std::copy_n(payload, slot.length, lanes);
  } else {
    Adder::add_values(payload, lanes, slot.length / 4);
  }
}

bool Slots::may_close(const Slot& slot, Time now) const noexcept {
  if (slot.bitmap == all_) return true;
  if (static_cast<uint32_t>(std::popcount(slot.bitmap)) < settings_.needed) return false;
  return (slot.bitmap | late_) == all_ || is_due(slot, now);
}

void Slots::close(Slot& slot) noexcept {
  const uint64_t missing = all_ & ~slot.bitmap;
  unlink(slot);
  slot.state = SlotState::closed;
  if (slot.added == 0) slot.flags |= wire::kEmpty;
  note_closed(slot.number);
  advance_front();
  late_ |= missing;
  if ((slot.flags & wire::kFirst) != 0) count_left_out(slot);
}

void Slots::count_left_out(const Slot& slot) noexcept {
  for (uint32_t w = 0; w < settings_.world; ++w) {
    if ((slot.bitmap & bit_of(w)) != 0) {
      left_out_[w] = 0;
    } else if (++left_out_[w] >= kExchangesLeftOut) {
      left_out_[w] = 0;
      late_ &= ~bit_of(w);
    }
  }
}

// A worker that is late for one sum is not waited for in the others, which may close then, too.
void Slots::close_all_due(Time now) noexcept {
  for (bool again = true; again;) {
    again = false;
    for (uint16_t i = first_; i != kNobody;) {
      Slot& slot = slots_[i];
      i = slot.behind;
      if (!may_close(slot, now)) continue;
      close(slot);
      again = true;
    }
  }
}

void Slots::note_closed(uint64_t number) noexcept { closed_[closed_count_++] = number; }

void Slots::advance_front() noexcept {
  while (has(front_, SlotState::closed) || has(front_, SlotState::fetching)) ++front_;
}

Verdict Slots::pull(uint32_t worker, uint64_t number) noexcept {
  if (number < acks_[worker]) return Verdict::stale;
  if (number >= floor_ + slots_.size()) return Verdict::beyond;
  if (has(number, SlotState::closed)) return Verdict::stored;
  if (has(number, SlotState::fetching)) return Verdict::waiting;
  return Verdict::open;
}

bool Slots::take_held(uint32_t worker, uint64_t number, const wire::DownHeader& header,
                      Bytes payload) noexcept {
  Slot& slot = at(number);
  if (!has(number, SlotState::fetching) || (slot.holders & bit_of(worker)) == 0) return false;
  const bool values = (header.flags & wire::kValues) != 0;
  const bool length_fits = values ? payload.size() <= 4U * settings_.values
                                  : payload.empty() || payload.size() == settings_.lane_bytes();
  if (!length_fits || (header.bitmap & ~all_) != 0) return false;
  slot.state = SlotState::closed;
  slot.bitmap = header.bitmap;
  slot.settings = header.settings;
  slot.norm = header.norm;
  slot.flags = header.flags & static_cast<uint8_t>(~wire::kFull);
  slot.added = header.added;
  slot.length = static_cast<uint32_t>(payload.size());
  std::copy(payload.begin(), payload.end(), sum(slot).begin());
  --fetching_;
  note_closed(number);
  return true;
}

void Slots::tick(Time now) noexcept {
  ticked_ = now;
  if (settings_.needed < settings_.world) close_all_due(now);
}

Time Slots::next_deadline() const noexcept {
  if (settings_.needed == settings_.world) return kNever;
  for (uint16_t i = first_; i != kNobody; i = slots_[i].behind) {
    if (!is_due(slots_[i], ticked_)) return slots_[i].since + deadline_;
  }
  return kNever;
}

bool Slots::next_fetch(Time now, Time retry, Fetch* fetch) noexcept {
  if (fetching_ == 0) return false;
  for (uint64_t seen = floor_; seen < top_; ++seen, ++next_fetch_) {
    if (next_fetch_ < floor_ || next_fetch_ >= top_) next_fetch_ = floor_;
    Slot& slot = at(next_fetch_);
    if (!has(next_fetch_, SlotState::fetching)) continue;
    if (slot.since != 0 && now - slot.since < retry) continue;
    // The holders in turn: the next one above the last that was asked.
    const uint64_t above =
        slot.added == 0 ? slot.holders : slot.holders & ~((bit_of(slot.added - 1U) << 1U) - 1U);
    fetch->worker = static_cast<uint32_t>(std::countr_zero(above != 0 ? above : slot.holders));
    fetch->number = next_fetch_++;
    slot.added = static_cast<uint8_t>(fetch->worker + 1);
    slot.since = std::max<Time>(now, 1);
    return true;
  }
  return false;
}

uint32_t Slots::kept() const noexcept {
  uint32_t count = 0;
  for (uint64_t number = floor_; number < floor_ + slots_.size(); ++number) {
    if (has(number, SlotState::closed)) ++count;
  }
  return count;
}

bool Slots::waits_for(uint32_t worker) const noexcept {
  for (uint16_t i = first_; i != kNobody; i = slots_[i].behind) {
    if ((slots_[i].bitmap & bit_of(worker)) == 0) return true;
  }
  return fetching_ != 0 || acks_[worker] == floor_;
}

}  // namespace laconic::server

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
  return s.ring * (wire::kDownHeaderBytes + s.slot_bytes() + sizeof(Slot) + sizeof(uint64_t) +
                   sizeof(Promised) + sizeof(uint16_t));
}

Slots::Slots(const wire::JobSettings& settings, SharedSlots shared)
    : settings_(settings),
      adder_(settings),
      all_(~uint64_t{0} >> (64U - settings.world)),
      deadline_(uint64_t{settings.deadline_us} * 1000U),
      shared_(shared),
      closed_(settings.ring),
      first_(kNobody),
      last_(kNobody) {
  if (is_shared()) {
    ring_ = &shared.job->ring;
    slot_bytes_ = reinterpret_cast<uint8_t*>(&shared.slots->slot);
    sum_bytes_ = reinterpret_cast<uint8_t*>(shared.slots->sum);
    slot_step_ = sum_step_ = sizeof(laconic_kernel_slot);
    return;
  }
  ring_ = &own_ring_;
  sum_step_ = wire::kDownHeaderBytes + settings.slot_bytes();
  slot_step_ = sizeof(Slot);
  slots_.resize(settings.ring);
  promised_.resize(settings.ring);
  unsettled_.resize(settings.ring);
  sums_.resize(settings.ring * sum_step_);
  slot_bytes_ = reinterpret_cast<uint8_t*>(slots_.data());
  sum_bytes_ = sums_.data() + wire::kDownHeaderBytes;
}

/// Holders in the kernel cannot be interrupted: it is a matter of microseconds.
class Slots::Hold {
 public:
  Hold(const Slots& slots, uint64_t number) noexcept {
    if (!slots.is_shared()) return;
    lock_ = &slots.shared_.slots[number % slots.settings_.ring].lock;
    for (uint64_t free = 0; !std::atomic_ref(*lock_).compare_exchange_weak(free, 1); free = 0) {
    }
  }
  ~Hold() {
    if (lock_ != nullptr) std::atomic_ref(*lock_).store(0, std::memory_order_release);
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;

 private:
  uint64_t* lock_ = nullptr;
};

void Slots::raise(uint64_t& word, uint64_t to) const noexcept {
  if (!is_shared()) {
    word = std::max(word, to);
    return;
  }
  std::atomic_ref shared(word);
  for (uint64_t old = shared.load(); old < to && !shared.compare_exchange_weak(old, to);) {
  }
}

template <class Visit>
void Slots::visit_open(Visit&& visit) const noexcept {
  if (!is_shared()) {
    for (uint16_t i = first_; i != kNobody; i = at_index(i).behind) visit(at_index(i));
    return;
  }
  for (uint64_t number = front(); number < look(ring_->opened); ++number) {
    const Hold hold(*this, number);
    if (has(number, SlotState::open)) visit(slot(number));
  }
}

uint32_t Slots::open() const noexcept {
  if (!is_shared()) return open_count_;
  uint32_t found = 0;
  visit_open([&](const Slot&) { ++found; });
  return found;
}

Bytes Slots::sum(const Slot& slot) const noexcept {
  const auto offset = reinterpret_cast<const uint8_t*>(&slot) - slot_bytes_;
  return {sum_at(static_cast<uint64_t>(offset) / slot_step_), slot.length};
}

MutBytes Slots::sum(const Slot& slot) noexcept {
  const Bytes bytes = static_cast<const Slots*>(this)->sum(slot);
  return {const_cast<uint8_t*>(bytes.data()), bytes.size()};
}

MutBytes Slots::datagram(const Slot& slot) noexcept {
  if (is_shared()) return {};
  return {sum(slot).data() - wire::kDownHeaderBytes, wire::kDownHeaderBytes + slot.length};
}

int Slots::restore(std::span<const Holding> holdings) noexcept {
  uint32_t lowest = 0;
  top_ = 0;
  uint64_t most = 0;
  for (uint32_t w = 0; w < holdings.size(); ++w) {
    ring_->acks[w] = holdings[w].ack;
    if (holdings[w].ack < holdings[lowest].ack) lowest = w;
    most = std::max(most, holdings[w].ack);
    top_ = std::max(top_, top_of(holdings[w]));
  }
  ring_->floor = ring_->front = next_fetch_ = holdings[lowest].ack;
  if (top_ - floor() > settings_.ring) return static_cast<int>(lowest);
  for (uint64_t number = floor(); number < top_; ++number) {
    uint64_t holders = 0;
    for (uint32_t w = 0; w < holdings.size(); ++w) {
      if (holds(holdings[w], number)) holders |= bit_of(w);
    }
    if (holders == 0 && number < most) return static_cast<int>(lowest);
    if (holders == 0) continue;
    Slot& slot = at(number);
    slot = {};
    slot.number = number;
    slot.passed = number + 1;
    slot.state = SlotState::fetching;
    slot.holders = holders;
    ++fetching_;
  }
  advance_front();
  return -1;
}

bool Slots::acknowledge(uint32_t worker, uint64_t number) noexcept {
  if (number > front()) advance_front();  // the program in the kernel may not have got there
  if (number > front()) return false;
  const uint64_t old = ack(worker);
  if (number <= old) return true;
  raise(ring_->acks[worker], number);
  // Beside the program only the last of several acks sees them all, whichever that is.
  if (is_shared() || old == floor()) raise_floor();
  if (number >= front()) late_ &= ~bit_of(worker);
  return true;
}

void Slots::raise_floor() noexcept {
  uint64_t lowest = ack(0);
  for (uint32_t w = 1; w < settings_.world; ++w) lowest = std::min(lowest, ack(w));
  raise(ring_->floor, lowest);
}

bool Slots::is_beyond(uint64_t number) noexcept {
  if (number < floor() + settings_.ring) return false;
  if (is_shared()) raise_floor();  // the program in the kernel gives up after some tries
  return number >= floor() + settings_.ring;
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
  raise(ring_->opened, c.number + 1);
  if (is_shared()) {
    shared_.slots[c.number % settings_.ring].asked = 0;
    return;
  }
  slot.before = last_;
  slot.behind = kNobody;
  const auto index = static_cast<uint16_t>(c.number % settings_.ring);
  (last_ == kNobody ? first_ : at_index(last_).behind) = index;
  last_ = index;
  ++open_count_;
}

void Slots::unlink(Slot& slot) noexcept {
  if (is_shared()) return;
  (slot.before == kNobody ? first_ : at_index(slot.before).behind) = slot.behind;
  (slot.behind == kNobody ? last_ : at_index(slot.behind).before) = slot.before;
  --open_count_;
}

Verdict Slots::add(Time now, const Contribution& c) noexcept {
  if (c.number < ack(c.worker)) return Verdict::stale;
  if (is_beyond(c.number)) return Verdict::beyond;
  const Hold hold(*this, c.number);
  Slot& slot = at(c.number);
  if (slot.number > c.number) return Verdict::stale;  // all have acknowledged it meanwhile
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
  const uint8_t* payload = c.payload.data();
  const bool first = slot.added == 0;
  if (first) slot.length = length_of(c);
  if (may_promise(c)) return promise(slot, payload);
  keep_promise(slot);
  ++slot.added;
  uint8_t* lanes = sum(slot).data();
  if ((c.flags & wire::kValues) == 0) {
    first ? adder_.set_codes(payload, lanes) : adder_.add_codes(payload, lanes);
  } else if (first) {
    std::copy_n(payload, slot.length, lanes);
  } else {
    Adder::add_values(payload, lanes, slot.length / 4);
  }
}

// A sum that all workers' codes come for while payloads stay is written once, not read and written
// for each of them.
void Slots::promise(Slot& slot, const uint8_t* codes) noexcept {
  Promised& promised = promised_[slot.number % settings_.ring];
  if (promised.count == Promised::kMost) keep_promise(slot);
  if (promised.count == 0) {
    if (unsettled_count_ == unsettled_.size()) settle();
    unsettled_[unsettled_count_++] = static_cast<uint16_t>(slot.number % settings_.ring);
    ++owed_;
  }
  promised.codes[promised.count++] = codes;
  ++slot.added;
}

void Slots::keep_promise(Slot& slot) noexcept {
  if (is_shared()) return;
  Promised& promised = promised_[slot.number % settings_.ring];
  if (promised.count == 0) return;
  const bool first = promised.count == slot.added;
  adder_.add_all({promised.codes.data(), promised.count}, first, sum(slot).data());
  promised.count = 0;
  if (--owed_ == 0) unsettled_count_ = 0;
}

void Slots::settle() noexcept {
  for (std::size_t i = 0; i < unsettled_count_; ++i) keep_promise(at_index(unsettled_[i]));
}

bool Slots::may_close(const Slot& slot, Time now) const noexcept {
  if (slot.bitmap == all_) return true;
  if (static_cast<uint32_t>(std::popcount(slot.bitmap)) < settings_.needed) return false;
  return (slot.bitmap | late_) == all_ || is_due(slot, now);
}

void Slots::close(Slot& slot) noexcept {
  const uint64_t missing = all_ & ~slot.bitmap;
  keep_promise(slot);
  unlink(slot);
  slot.state = SlotState::closed;
  if (slot.added == 0) slot.flags |= wire::kEmpty;
  std::atomic_ref(slot.passed).store(slot.number + 1);
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
// Sums that are due lie in front, and they alone make a worker late: one pass.
void Slots::close_all_due(Time now) noexcept {
  for (uint16_t i = first_; i != kNobody;) {
    Slot& slot = at_index(i);
    i = slot.behind;
    if (may_close(slot, now)) close(slot);
  }
}

void Slots::note_closed(uint64_t number) noexcept { closed_[closed_count_++] = number; }

void Slots::advance_front() noexcept {
  for (uint64_t at = front(); look(slot(at).passed) == at + 1; at = front()) {
    raise(ring_->front, at + 1);
  }
}

Verdict Slots::pull(uint32_t worker, uint64_t number) noexcept {
  if (number < ack(worker)) return Verdict::stale;
  if (is_beyond(number)) return Verdict::beyond;
  const Hold hold(*this, number);
  if (has(number, SlotState::closed)) return Verdict::stored;
  if (has(number, SlotState::fetching)) return Verdict::waiting;
  return Verdict::open;
}

bool Slots::take_held(uint32_t worker, uint64_t number, const wire::DownHeader& header,
                      Bytes payload) noexcept {
  const Hold hold(*this, number);
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
  for (uint16_t i = first_; i != kNobody; i = at_index(i).behind) {
    if (!is_due(at_index(i), ticked_)) return at_index(i).since + deadline_;
  }
  return kNever;
}

bool Slots::next_fetch(Time now, Time retry, Fetch* fetch) noexcept {
  if (fetching_ == 0) return false;
  for (uint64_t seen = floor(); seen < top_; ++seen, ++next_fetch_) {
    if (next_fetch_ < floor() || next_fetch_ >= top_) next_fetch_ = floor();
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
  const uint64_t lowest = floor();
  for (uint64_t number = lowest; number < lowest + settings_.ring; ++number) {
    const Hold hold(*this, number);
    if (has(number, SlotState::closed)) ++count;
  }
  return count;
}

bool Slots::waits_for(uint32_t worker) const noexcept {
  bool waits = fetching_ != 0 || ack(worker) == floor();
  visit_open([&](const Slot& open) { waits |= (open.bitmap & bit_of(worker)) == 0; });
  return waits;
}

}  // namespace laconic::server

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/slots/ring.h"

#include <algorithm>

namespace laconic::aggregation {

uint64_t SlotRing::memory(const protocol::JobSettings& s) noexcept {
  return s.ring * (protocol::kDownHeaderBytes + s.slot_bytes() + sizeof(Slot));
}

SlotRing::SlotRing(const protocol::JobSettings& settings, SharedSlots shared)
    : slots_in_all_(settings.ring), world_(settings.world), shared_(shared) {
  if (is_shared()) {
    marks_ = &shared.job->ring;
    slot_bytes_ = reinterpret_cast<uint8_t*>(&shared.slots->slot);
    sum_bytes_ = reinterpret_cast<uint8_t*>(shared.slots->sum);
    slot_step_ = sum_step_ = sizeof(laconic_kernel_slot);
    return;
  }
  marks_ = &own_marks_;
  sum_step_ = protocol::kDownHeaderBytes + settings.slot_bytes();
  slot_step_ = sizeof(Slot);
  slots_.resize(settings.ring);
  sums_.resize(settings.ring * sum_step_);
  slot_bytes_ = reinterpret_cast<uint8_t*>(slots_.data());
  sum_bytes_ = sums_.data() + protocol::kDownHeaderBytes;
}

void SlotRing::raise(uint64_t& word, uint64_t to) const noexcept {
  if (!is_shared()) {
    word = std::max(word, to);
    return;
  }
  std::atomic_ref shared(word);
  for (uint64_t old = shared.load(); old < to && !shared.compare_exchange_weak(old, to);) {
  }
}

Bytes SlotRing::sum(const Slot& slot) const noexcept {
  const auto offset = reinterpret_cast<const uint8_t*>(&slot) - slot_bytes_;
  return {sum_bytes_ + static_cast<uint64_t>(offset) / slot_step_ * sum_step_, slot.length};
}

MutBytes SlotRing::sum(const Slot& slot) noexcept {
  const Bytes bytes = static_cast<const SlotRing*>(this)->sum(slot);
  return {const_cast<uint8_t*>(bytes.data()), bytes.size()};
}

MutBytes SlotRing::datagram(const Slot& slot) noexcept {
  if (is_shared()) return {};
  return {sum(slot).data() - protocol::kDownHeaderBytes, protocol::kDownHeaderBytes + slot.length};
}

uint32_t SlotRing::kept() const noexcept {
  uint32_t count = 0;
  const uint64_t lowest = floor();
  for (uint64_t number = lowest; number < lowest + slots_in_all_; ++number) {
    const Hold hold(*this, number);
    if (has(number, SlotState::closed)) ++count;
  }
  return count;
}

void SlotRing::begin(std::span<const Holding> holdings) noexcept {
  marks_->floor = holdings[0].ack;
  for (uint32_t w = 0; w < holdings.size(); ++w) {
    marks_->acks[w] = holdings[w].ack;
    marks_->floor = std::min(marks_->floor, holdings[w].ack);
  }
  marks_->front = marks_->floor;
}

SlotRing::Ack SlotRing::acknowledge(uint32_t worker, uint64_t number) noexcept {
  if (number > front()) advance_front();  // the program in the kernel may not have got there
  if (number > front()) return Ack::wrong;
  const uint64_t old = ack(worker);
  if (number <= old) return Ack::old;
  raise(marks_->acks[worker], number);
  // With the program in the kernel only the last of several acks sees all of them.
  if (is_shared() || old == floor()) raise_floor();
  return Ack::raised;
}

void SlotRing::raise_floor() noexcept {
  uint64_t lowest = ack(0);
  for (uint32_t w = 1; w < world_; ++w) lowest = std::min(lowest, ack(w));
  raise(marks_->floor, lowest);
}

bool SlotRing::is_beyond(uint64_t number) noexcept {
  if (number < floor() + slots_in_all_) return false;
  if (is_shared()) raise_floor();  // the program in the kernel gives up after some tries
  return number >= floor() + slots_in_all_;
}

void SlotRing::note_opened(uint64_t number) noexcept {
  raise(marks_->opened, number + 1);
  if (is_shared()) shared_.slots[index_of(number)].asked = 0;
}

void SlotRing::pass(Slot& slot) noexcept { std::atomic_ref(slot.passed).store(slot.number + 1); }

void SlotRing::advance_front() noexcept {
  for (uint64_t number = front(); look(slot(number).passed) == number + 1; number = front()) {
    raise(marks_->front, number + 1);
  }
}

}  // namespace laconic::aggregation

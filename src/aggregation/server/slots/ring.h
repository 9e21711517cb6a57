// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The slots of a job by number, their sums, and how far its workers have got: in this process's
// memory, or where a program in the kernel works on them, too (docs/decisions/0037).
#pragma once

#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/server/slots/slot.h"

namespace laconic::aggregation {

class SlotRing {
 public:
  [[nodiscard]] static uint64_t memory(const protocol::JobSettings& settings) noexcept;
  SlotRing(const protocol::JobSettings& settings, SharedSlots shared);
  SlotRing(const SlotRing&) = delete;
  SlotRing& operator=(const SlotRing&) = delete;

  /// A slot's lock, where there is one. Holders in the kernel cannot be interrupted: it is a matter
  /// of microseconds.
  class Hold {
   public:
    Hold(const SlotRing& ring, uint64_t number) noexcept {
      if (!ring.is_shared()) return;
      lock_ = &ring.shared_.slots[ring.index_of(number)].lock;
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

  [[nodiscard]] bool is_shared() const noexcept { return shared_.job != nullptr; }
  [[nodiscard]] uint16_t index_of(uint64_t number) const noexcept {
    return static_cast<uint16_t>(number % slots_in_all_);
  }
  [[nodiscard]] Slot& at_index(uint64_t index) const noexcept {
    return *reinterpret_cast<Slot*>(slot_bytes_ + index * slot_step_);
  }
  [[nodiscard]] Slot& at(uint64_t number) noexcept { return at_index(index_of(number)); }
  [[nodiscard]] const Slot& slot(uint64_t number) const noexcept {
    return at_index(index_of(number));
  }
  [[nodiscard]] bool has(uint64_t number, SlotState state) const noexcept {
    return slot(number).number == number && slot(number).state == state;
  }
  /// Complete once it is closed.
  [[nodiscard]] Bytes sum(const Slot& slot) const noexcept;
  [[nodiscard]] MutBytes sum(const Slot& slot) noexcept;
  /// The sum with room for a header before it. Datagrams of the longest length lie in a row. Empty:
  /// the slots are shared, and there is no room.
  [[nodiscard]] MutBytes datagram(const Slot& slot) noexcept;
  /// Closed sums that not all workers have acknowledged. Looks at the whole ring.
  [[nodiscard]] uint32_t kept() const noexcept;

  /// All workers have all results below it.
  [[nodiscard]] uint64_t floor() const noexcept { return look(marks_->floor); }
  [[nodiscard]] uint64_t ack(uint32_t worker) const noexcept { return look(marks_->acks[worker]); }
  /// The lowest sum that is not closed.
  [[nodiscard]] uint64_t front() const noexcept { return look(marks_->front); }
  /// Above all sums that were ever opened.
  [[nodiscard]] uint64_t opened() const noexcept { return look(marks_->opened); }
  /// At or above floor + ring; with the program in the kernel it computes the floor again first.
  [[nodiscard]] bool is_beyond(uint64_t number) noexcept;

  /// Begins there; front and floor are the lowest ack.
  void begin(std::span<const Holding> holdings) noexcept;
  enum class Ack : uint8_t {
    raised,
    old,
    wrong,  ///< it contradicts what was closed, and was not taken
  };
  Ack acknowledge(uint32_t worker, uint64_t number) noexcept;
  /// Slot `number` is open now.
  void note_opened(uint64_t number) noexcept;
  /// Marks a slot as closed, with one atomic word.
  void pass(Slot& slot) noexcept;
  void advance_front() noexcept;

 private:
  static uint64_t look(const uint64_t& word) noexcept {
    return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
  }
  void raise(uint64_t& word, uint64_t to) const noexcept;
  void raise_floor() noexcept;

  uint32_t slots_in_all_, world_;
  SharedSlots shared_;
  std::vector<Slot> slots_;    // not if they are shared
  std::vector<uint8_t> sums_;  // neither
  uint8_t* slot_bytes_ = nullptr;
  uint8_t* sum_bytes_ = nullptr;
  uint64_t slot_step_ = 0, sum_step_ = 0;
  laconic_ring own_marks_{};
  laconic_ring* marks_ = nullptr;
};

}  // namespace laconic::aggregation

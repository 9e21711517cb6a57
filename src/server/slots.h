// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The slot machine of one job: a ring of sums that are open, closed, or being fetched from workers
// that have them. No I/O, no clock, no allocation after construction. The rules are those of
// docs/decisions/0032 and 0033; docs/format/DATAGRAM.md section 6 says what they mean on the wire.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <span>
#include <vector>

#include "server/add.h"
#include "server/address.h"
#include "server/shared.h"
#include "wire/enrolment.h"

namespace laconic::server {

/// What became of a contribution or a pull.
enum class Verdict : uint8_t {
  added,      ///< in the sum now; see newly_closed()
  duplicate,  ///< it is in the sum already: nothing to answer
  waiting,    ///< the sum is being fetched from a worker: nothing to answer
  stored,     ///< the sum is closed: it goes to this worker alone
  open,       ///< a pull for a sum that is open
  beyond,     ///< at or above the floor + ring: only the ack was taken
  stale,      ///< the worker has acknowledged it: nothing to answer
  differs,    ///< other settings or another length than the first contribution's
};

struct Contribution {
  uint32_t worker = 0;
  uint64_t number = 0;
  uint32_t settings = 0;
  uint16_t norm = 0;
  uint8_t flags = 0;  ///< wire::DatagramFlag
  Bytes payload{};
  bool stays = false;  ///< the payload can be read until settle(), and may be added then
};

/// What a worker has when it registers.
struct Holding {
  uint64_t ack = 0;
  uint64_t kept = 0;
  Bytes held{};
};

enum SlotState : uint8_t {
  unused = LACONIC_SLOT_UNUSED,
  open = LACONIC_SLOT_OPEN,
  fetching = LACONIC_SLOT_FETCHING,
  closed = LACONIC_SLOT_CLOSED,
};
using Slot = laconic_slot;

/// Slots that a program in the kernel works on, too, in jobs that need all their workers: nobody is
/// ever late there, and no deadline closes anything.
struct SharedSlots {
  laconic_kernel_job* job = nullptr;  ///< null: the slots are this process's alone
  laconic_kernel_slot* slots = nullptr;
};

/// A sum that a worker has.
struct Fetch {
  uint64_t number = 0;
  uint32_t worker = 0;
};

class Slots {
 public:
  /// Memory that a job takes, all of it in the constructor.
  [[nodiscard]] static uint64_t memory(const wire::JobSettings& settings) noexcept;
  explicit Slots(const wire::JobSettings& settings, SharedSlots shared = {});
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  /// Begins with what the workers hold, one Holding for each. What somebody holds will be fetched
  /// and is never summed again. A worker that lacks results which nobody has any more is returned,
  /// else -1.
  [[nodiscard]] int restore(std::span<const Holding> holdings) noexcept;

  /// False: the ack contradicts what was closed, and nothing was taken.
  bool acknowledge(uint32_t worker, uint64_t ack) noexcept;
  Verdict add(Time now, const Contribution& c) noexcept;
  /// Adds what open sums were promised: the payloads that stayed may go now. What a closed sum was
  /// promised is in it already.
  void settle() noexcept;
  /// Open sums were promised something.
  [[nodiscard]] bool owes() const noexcept { return owed_ != 0; }
  Verdict pull(uint32_t worker, uint64_t number) noexcept;
  /// A result that a worker holds, as it got it. False: nobody asked for it.
  bool take_held(uint32_t worker, uint64_t number, const wire::DownHeader& header,
                 Bytes payload) noexcept;
  /// Closes what the deadline closes.
  void tick(Time now) noexcept;
  /// When to call tick(), if nothing else happens before.
  [[nodiscard]] Time next_deadline() const noexcept;
  /// What to ask for next; asked again after `retry`.
  bool next_fetch(Time now, Time retry, Fetch* fetch) noexcept;

  /// Sums closed by the last calls, in any order, until forgotten.
  [[nodiscard]] std::span<const uint64_t> newly_closed() const noexcept {
    return {closed_.data(), closed_count_};
  }
  void forget_closed() noexcept { closed_count_ = 0; }

  /// All workers have all results below it.
  [[nodiscard]] uint64_t floor() const noexcept { return look(ring_->floor); }
  [[nodiscard]] uint64_t ack(uint32_t worker) const noexcept { return look(ring_->acks[worker]); }
  /// The lowest sum that is not closed.
  [[nodiscard]] uint64_t front() const noexcept { return look(ring_->front); }
  [[nodiscard]] uint32_t open() const noexcept;
  [[nodiscard]] uint32_t fetching() const noexcept { return fetching_; }
  /// Closed sums that not all workers have acknowledged. Looks at the whole ring.
  [[nodiscard]] uint32_t kept() const noexcept;
  /// Workers that are not waited for.
  [[nodiscard]] uint64_t late() const noexcept { return late_; }
  /// Open sums that worker w is missing from, or results that only come from it.
  [[nodiscard]] bool waits_for(uint32_t worker) const noexcept;
  [[nodiscard]] const Slot& slot(uint64_t number) const noexcept {
    return at_index(number % settings_.ring);
  }
  /// Complete once the sum is closed.
  [[nodiscard]] Bytes sum(const Slot& slot) const noexcept;
  [[nodiscard]] MutBytes sum(const Slot& slot) noexcept;
  /// The sum with room for a header before it. Datagrams of the longest length lie in a row. Empty:
  /// the slots are shared, and there is no room.
  [[nodiscard]] MutBytes datagram(const Slot& slot) noexcept;

 private:
  /// A slot's lock, where there is one.
  class Hold;
  /// Codes that are in a sum by all that is said of it, and not in its lanes yet.
  struct Promised {
    static constexpr std::size_t kMost = 8;
    std::array<const uint8_t*, kMost> codes{};
    std::size_t count = 0;
  };

  static uint64_t look(const uint64_t& word) noexcept {
    return std::atomic_ref(const_cast<uint64_t&>(word)).load(std::memory_order_acquire);
  }
  void raise(uint64_t& word, uint64_t to) const noexcept;
  [[nodiscard]] bool is_shared() const noexcept { return shared_.job != nullptr; }
  [[nodiscard]] Slot& at_index(uint64_t index) const noexcept {
    return *reinterpret_cast<Slot*>(slot_bytes_ + index * slot_step_);
  }
  [[nodiscard]] uint8_t* sum_at(uint64_t index) const noexcept {
    return sum_bytes_ + index * sum_step_;
  }
  Slot& at(uint64_t number) noexcept { return at_index(number % settings_.ring); }
  template <class Visit>
  void visit_open(Visit&& visit) const noexcept;
  [[nodiscard]] bool has(uint64_t number, SlotState state) const noexcept {
    return slot(number).number == number && slot(number).state == state;
  }
  [[nodiscard]] bool is_due(const Slot& slot, Time now) const noexcept {
    return now >= slot.since + deadline_;
  }
  [[nodiscard]] bool may_close(const Slot& slot, Time now) const noexcept;
  [[nodiscard]] uint32_t length_of(const Contribution& c) const noexcept;
  void open_slot(Time now, const Contribution& c) noexcept;
  void put(Slot& slot, const Contribution& c) noexcept;
  [[nodiscard]] bool may_promise(const Contribution& c) const noexcept {
    return c.stays && !is_shared() && (c.flags & wire::kValues) == 0;
  }
  void promise(Slot& slot, const uint8_t* codes) noexcept;
  void keep_promise(Slot& slot) noexcept;
  void close(Slot& slot) noexcept;
  void close_all_due(Time now) noexcept;
  void count_left_out(const Slot& slot) noexcept;
  void unlink(Slot& slot) noexcept;
  void advance_front() noexcept;
  void raise_floor() noexcept;
  /// Not below floor + ring; beside the program in the kernel looks for the floor once more.
  [[nodiscard]] bool is_beyond(uint64_t number) noexcept;
  void note_closed(uint64_t number) noexcept;

  wire::JobSettings settings_;
  Adder adder_;
  uint64_t all_ = 0;  ///< bits of all workers
  Time deadline_ = 0, ticked_ = 0;
  SharedSlots shared_;
  std::vector<Slot> slots_;    // not if they are shared
  std::vector<uint8_t> sums_;  // neither
  uint8_t* slot_bytes_ = nullptr;
  uint8_t* sum_bytes_ = nullptr;
  uint64_t slot_step_ = 0, sum_step_ = 0;
  laconic_ring own_ring_{};
  laconic_ring* ring_ = nullptr;
  std::vector<uint64_t> closed_;
  std::size_t closed_count_ = 0;
  std::vector<Promised> promised_;   ///< by slot; none if slots are shared
  std::vector<uint16_t> unsettled_;  ///< slots that were promised something, some of them twice
  std::size_t unsettled_count_ = 0, owed_ = 0;
  std::array<uint8_t, wire::kMaxWorkers> left_out_{};  ///< exchanges in a row
  uint64_t late_ = 0, top_ = 0, next_fetch_ = 0;
  uint32_t open_count_ = 0, fetching_ = 0;
  uint16_t first_ = 0, last_ = 0;  ///< of the list of open slots, in the order of their opening
};

}  // namespace laconic::server

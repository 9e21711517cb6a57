// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The slot machine of one job: a ring of sums that are open, closed, or being fetched from workers
// that have them. No I/O, no clock, no allocation after construction. The rules are those of
// docs/decisions/0032 and 0033; docs/format/DATAGRAM.md section 6 says what they mean on the wire.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "server/add.h"
#include "server/address.h"
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
};

/// What a worker has when it registers.
struct Holding {
  uint64_t ack = 0;
  uint64_t kept = 0;
  Bytes held{};
};

enum class SlotState : uint8_t { unused, open, fetching, closed };

struct Slot {
  uint64_t number = 0;
  uint64_t bitmap = 0;   ///< contributors
  uint64_t holders = 0;  ///< fetching: workers that have it
  Time since = 0;        ///< open: the first contribution; fetching: when it was asked for
  uint32_t settings = 0;
  uint32_t length = 0;  ///< bytes of the sum; 0 while nothing was added
  uint16_t norm = 0;
  uint16_t before = 0, behind = 0;  ///< in the list of open slots
  uint8_t flags = 0;
  uint8_t added = 0;
  SlotState state = SlotState::unused;
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
  explicit Slots(const wire::JobSettings& settings);

  /// Begins with what the workers hold, one Holding for each. What somebody holds will be fetched
  /// and is never summed again. A worker that lacks results which nobody has any more is returned,
  /// else -1.
  [[nodiscard]] int restore(std::span<const Holding> holdings) noexcept;

  /// False: the ack contradicts what was closed, and nothing was taken.
  bool acknowledge(uint32_t worker, uint64_t ack) noexcept;
  Verdict add(Time now, const Contribution& c) noexcept;
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
  [[nodiscard]] uint64_t floor() const noexcept { return floor_; }
  [[nodiscard]] uint64_t ack(uint32_t worker) const noexcept { return acks_[worker]; }
  /// The lowest sum that is not closed.
  [[nodiscard]] uint64_t front() const noexcept { return front_; }
  [[nodiscard]] uint32_t open() const noexcept { return open_count_; }
  [[nodiscard]] uint32_t fetching() const noexcept { return fetching_; }
  /// Closed sums that not all workers have acknowledged. Looks at the whole ring.
  [[nodiscard]] uint32_t kept() const noexcept;
  /// Workers that are not waited for.
  [[nodiscard]] uint64_t late() const noexcept { return late_; }
  /// Open sums that worker w is missing from, or results that only come from it.
  [[nodiscard]] bool waits_for(uint32_t worker) const noexcept;
  [[nodiscard]] const Slot& slot(uint64_t number) const noexcept {
    return slots_[number % slots_.size()];
  }
  [[nodiscard]] Bytes sum(const Slot& slot) const noexcept;
  [[nodiscard]] MutBytes sum(const Slot& slot) noexcept;
  /// The sum with room for a header before it. Datagrams of the longest length lie in a row.
  [[nodiscard]] MutBytes datagram(const Slot& slot) noexcept;

 private:
  Slot& at(uint64_t number) noexcept { return slots_[number % slots_.size()]; }
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
  void close(Slot& slot) noexcept;
  void close_all_due(Time now) noexcept;
  void count_left_out(const Slot& slot) noexcept;
  void unlink(Slot& slot) noexcept;
  void advance_front() noexcept;
  void note_closed(uint64_t number) noexcept;

  wire::JobSettings settings_;
  Adder adder_;
  uint64_t all_ = 0;  ///< bits of all workers
  Time deadline_ = 0, ticked_ = 0;
  std::vector<Slot> slots_;
  std::vector<uint8_t> sums_;
  uint64_t stride_ = 0;
  std::vector<uint64_t> closed_;
  std::size_t closed_count_ = 0;
  std::array<uint64_t, wire::kMaxWorkers> acks_{};
  std::array<uint8_t, wire::kMaxWorkers> left_out_{};  ///< exchanges in a row
  uint64_t floor_ = 0, front_ = 0, late_ = 0, top_ = 0, next_fetch_ = 0;
  uint32_t open_count_ = 0, fetching_ = 0;
  uint16_t first_ = 0, last_ = 0;  ///< of the list of open slots, in the order of their opening
};

}  // namespace laconic::server

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The slot machine of one job: a ring of sums that are open, closed, or being fetched from workers
// that have them. No I/O, no clock, no allocation after construction. The rules are those of
// docs/decisions/0032 and 0033; docs/format/DATAGRAM.md section 6 says what they mean on the wire.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/protocol/clock.h"
#include "aggregation/server/slots/absentees.h"
#include "aggregation/server/slots/fetches.h"
#include "aggregation/server/slots/open_list.h"
#include "aggregation/server/slots/ring.h"
#include "aggregation/server/slots/sums.h"

namespace laconic::aggregation {

/// The result of a contribution or a pull.
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

class Slots {
 public:
  /// Memory that a job takes, all of it in the constructor.
  [[nodiscard]] static uint64_t memory(const protocol::JobSettings& settings) noexcept;
  explicit Slots(const protocol::JobSettings& settings, SharedSlots shared = {});
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  [[nodiscard]] SlotRing& ring() noexcept { return ring_; }
  [[nodiscard]] const SlotRing& ring() const noexcept { return ring_; }

  /// Fetches::restore.
  [[nodiscard]] int restore(std::span<const Holding> holdings) noexcept {
    return fetches_.restore(holdings);
  }
  /// False: the ack contradicts what was closed, and nothing was taken.
  bool acknowledge(uint32_t worker, uint64_t ack) noexcept;
  Verdict add(Time now, const Addend& c) noexcept;
  /// Adds what open sums were promised: the payloads that stayed may go now. What a closed sum was
  /// promised is in it already.
  void settle() noexcept { sums_.settle(); }
  /// Open sums were promised something.
  [[nodiscard]] bool owes() const noexcept { return sums_.owes(); }
  Verdict pull(uint32_t worker, uint64_t number) noexcept;
  /// Fetches::take.
  bool take_held(uint32_t worker, uint64_t number, const protocol::DownHeader& header,
                 Bytes payload) noexcept;
  /// Closes what the deadline closes.
  void tick(Time now) noexcept;
  /// When to call tick(), if nothing else happens before.
  [[nodiscard]] Time next_deadline() const noexcept;
  /// Fetches::next.
  bool next_fetch(Time now, Time retry, Fetch* fetch) noexcept {
    return fetches_.next(now, retry, fetch);
  }

  /// Sums closed by the last calls, in any order, until forgotten.
  [[nodiscard]] std::span<const uint64_t> newly_closed() const noexcept {
    return {closed_.data(), closed_count_};
  }
  void forget_closed() noexcept { closed_count_ = 0; }

  [[nodiscard]] uint32_t open() const noexcept { return open_.count(); }
  [[nodiscard]] uint32_t fetching() const noexcept { return fetches_.count(); }
  /// Workers that are not waited for.
  [[nodiscard]] uint64_t late() const noexcept { return absentees_.late(); }
  /// Open sums that worker w is missing from, or results that only come from it.
  [[nodiscard]] bool waits_for(uint32_t worker) const noexcept;

 private:
  [[nodiscard]] bool is_due(const Slot& slot, Time now) const noexcept {
    return now >= slot.since + deadline_;
  }
  [[nodiscard]] bool may_close(const Slot& slot, Time now) const noexcept;
  /// True if the contribution has the expected length.
  [[nodiscard]] bool has_length(const Addend& c) const noexcept;
  void open_slot(Time now, const Addend& c) noexcept;
  void close(Slot& slot) noexcept;
  void close_all_due(Time now) noexcept;

  protocol::JobSettings settings_;
  uint64_t all_;  ///< bits of all workers
  Time deadline_, ticked_ = 0;
  SlotRing ring_;
  Sums sums_;
  OpenList open_;
  Absentees absentees_;
  Fetches fetches_;
  std::vector<uint64_t> closed_;
  std::size_t closed_count_ = 0;
};

}  // namespace laconic::aggregation

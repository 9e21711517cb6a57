// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// State shared by the parts of a job: its agreed settings, its progress and its counters.
#pragma once

#include <array>
#include <cstdint>

#include "aggregation/protocol/address.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/enrolment.h"

namespace laconic::aggregation {

struct JobStats {
  uint64_t datagrams = 0;
  uint64_t duplicates = 0;
  uint64_t stored = 0;   ///< results sent again
  uint64_t beyond = 0;   ///< the ring pushed back
  uint64_t closed = 0;   ///< sums
  uint64_t partial = 0;  ///< of these, without all workers
  uint64_t fetched = 0;  ///< sums that workers brought back
  uint64_t bad_acks = 0;
  uint64_t late = 0;                   ///< contributions after their sum was closed
  uint64_t together = 0;               ///< sums that went to the group
  std::array<uint64_t, 7> rejected{};  ///< by protocol::DatagramFault
};

/// The multicast group of a job.
struct Multicast {
  protocol::Group group;  ///< the group in messages to workers
  Address address;        ///< as a Sender takes it
};

struct Terms {
  protocol::JobSettings settings;
  uint64_t number = 0, epoch = 0;
  protocol::SipKey key{};
  Multicast multicast{};

  /// As headers carry it.
  [[nodiscard]] uint32_t id() const noexcept { return static_cast<uint32_t>(number); }
  [[nodiscard]] Time timeout() const noexcept { return uint64_t{settings.timeout_ms} * 1000000U; }
};

enum class JobState : uint8_t {
  gathering,  ///< not all workers are here (again)
  running,
  failed,  ///< kept for a while: it answers that it is over
  ended,   ///< all have left; kept for a while, too
};

/// How far a job is.
struct Course {
  JobState state = JobState::gathering;
  Time over = kNever;  ///< when it failed or ended
  protocol::Reason reason = protocol::Reason::none;
  uint8_t blamed = 0;
  uint64_t lost = 0;  ///< bit w: worker w has been silent
};

/// Why something is refused, or the job cannot go on, as refusals say it.
struct Judgement {
  protocol::Reason reason = protocol::Reason::none;
  uint64_t expected = 0;
  uint64_t found = 0;  ///< often the worker
};

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "aggregation/link/granule.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/enrolment.h"

namespace laconic::aggregation {

struct LinkSettings {
  protocol::Token token{};
  protocol::JobSettings job;
  uint64_t number = 0;    ///< of the job: random, the same on all workers
  uint64_t instance = 0;  ///< random, of this process
  uint8_t worker = 0;
  std::string server;      ///< its address, for messages
  uint32_t window = 0;     ///< maximum datagrams in flight; 0: the number of the ring's slots
  bool multicast = false;  ///< asks for results to a group

  [[nodiscard]] uint32_t id() const noexcept { return static_cast<uint32_t>(number); }
};

/// Before the first round trip is known.
inline constexpr Time kFirstHello = 20 * kMillisecond;

/// Nothing is sent again later than this.
[[nodiscard]] inline Time longest_timeout(const protocol::JobSettings& job) noexcept {
  return std::min<Time>(1000 * kMillisecond, uint64_t{job.timeout_ms} * kMillisecond / 8);
}

}  // namespace laconic::aggregation

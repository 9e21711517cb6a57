// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums that workers hold from before the server was started: each is fetched from one of them, and
// is never summed again.
#pragma once

#include <cstdint>
#include <span>

#include "aggregation/protocol/clock.h"
#include "aggregation/server/slots/ring.h"

namespace laconic::aggregation {

/// A sum that a worker has.
struct Fetch {
  uint64_t number = 0;
  uint32_t worker = 0;
};

class Fetches {
 public:
  /// Both outlive it.
  Fetches(const protocol::JobSettings& settings, SlotRing& ring) noexcept
      : settings_(settings), ring_(ring) {}

  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  /// Starts with what the workers hold, one Holding per worker. Returns a worker that lacks results
  /// which no rank has any more, else -1.
  [[nodiscard]] int restore(std::span<const Holding> holdings) noexcept;
  /// The next result to request; requested again after `retry`.
  bool next(Time now, Time retry, Fetch* fetch) noexcept;
  /// Takes a result from a worker, closed as it was sent. False: it was not requested.
  bool take(uint32_t worker, uint64_t number, const protocol::DownHeader& header,
            Bytes payload) noexcept;

 private:
  const protocol::JobSettings& settings_;
  SlotRing& ring_;
  uint64_t top_ = 0;  ///< above all that are held
  uint64_t next_ = 0;
  uint32_t count_ = 0;
};

}  // namespace laconic::aggregation

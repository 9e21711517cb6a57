// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums that workers hold from before the server was started: each is fetched from one of them, and
// is never summed again.
#pragma once

#include <cstdint>
#include <span>

#include "server/slots/ring.h"

namespace laconic::server {

/// A sum that a worker has.
struct Fetch {
  uint64_t number = 0;
  uint32_t worker = 0;
};

class Fetches {
 public:
  /// Both outlive it.
  Fetches(const wire::JobSettings& settings, SlotRing& ring) noexcept
      : settings_(settings), ring_(ring) {}

  [[nodiscard]] uint32_t count() const noexcept { return count_; }
  /// Begins with what the workers hold, one Holding for each. A worker that lacks results which
  /// nobody has any more is returned, else -1.
  [[nodiscard]] int restore(std::span<const Holding> holdings) noexcept;
  /// What to ask for next; asked again after `retry`.
  bool next(Time now, Time retry, Fetch* fetch) noexcept;
  /// A result that a worker holds, as it got it: it is closed. False: nobody asked for it.
  bool take(uint32_t worker, uint64_t number, const wire::DownHeader& header,
            Bytes payload) noexcept;

 private:
  const wire::JobSettings& settings_;
  SlotRing& ring_;
  uint64_t top_ = 0;  ///< above all that are held
  uint64_t next_ = 0;
  uint32_t count_ = 0;
};

}  // namespace laconic::server

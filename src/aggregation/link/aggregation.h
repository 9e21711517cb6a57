// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A worker's side of all aggregation servers of a job: granule number modulo servers says which.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "aggregation/link/link.h"
#include "aggregation/protocol/clock.h"

namespace laconic::aggregation {

class Aggregation {
 public:
  /// One per server, in the same order on all workers, else the same.
  explicit Aggregation(std::vector<LinkSettings> servers);

  void connect(Time now) noexcept;
  [[nodiscard]] bool joined() const noexcept;
  /// Begins an exchange; out and in are of one length, and are used until done().
  void begin(Time now, std::span<const Outgoing> out, std::span<Incoming> in) noexcept;
  [[nodiscard]] bool done() const noexcept;
  void close(Time now) noexcept;
  [[nodiscard]] bool closed() const noexcept;

  [[nodiscard]] std::span<Link> links() noexcept { return links_; }
  /// The first link that failed; null: none. Without it the others are of no use.
  [[nodiscard]] const Link* failed() const noexcept;
  [[nodiscard]] Time wake(Time now) const noexcept;
  [[nodiscard]] LinkStats stats() const noexcept;

 private:
  std::vector<Link> links_;
  uint64_t next_ = 0;  ///< number of the next exchange's first granule, over all servers
};

}  // namespace laconic::aggregation

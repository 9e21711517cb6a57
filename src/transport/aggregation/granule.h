// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What goes to an aggregation server and what comes back, granule by granule. Nothing here knows
// what the integers mean.
#pragma once

#include <cstdint>

#include "laconic/bytes.h"

namespace laconic::transport::aggregation {

/// Nanoseconds on a clock that never goes back.
using Time = uint64_t;
inline constexpr Time kNever = ~Time{0};

/// A rank's contribution to one sum.
struct Outgoing {
  Bytes payload{};        ///< packed codes, or 32-bit lanes with wire::kValues; none with kEmpty
  uint32_t settings = 0;  ///< hash of what the lanes mean: the same on all ranks
  uint16_t norm = 0;      ///< the largest comes back
  uint8_t flags = 0;      ///< wire::kEmpty, kTrouble, kValues
};

/// The sum, the same bytes on all ranks.
struct Incoming {
  MutBytes lanes{};     ///< room, given by the caller
  uint64_t bitmap = 0;  ///< contributors; a rank that is missing keeps what it sent
  uint32_t length = 0;  ///< bytes of the sum; 0: nobody had anything to add
  uint16_t norm = 0;
  uint8_t flags = 0;    ///< wire::kEmpty, kTrouble, kValues
  uint8_t added = 0;    ///< contributions in the sum
  uint8_t divisor = 0;  ///< contributors, empty ones too
};

struct LinkStats {
  uint64_t sent = 0;
  uint64_t resent_datagrams = 0;
  uint64_t received = 0;
  uint64_t duplicate_datagrams = 0;
  uint64_t rejected = 0;           ///< not from the server, or of another epoch
  uint64_t excluded_granules = 0;  ///< sums without this rank
  uint64_t partial_granules = 0;   ///< sums without somebody
  uint64_t aggregator_restarts = 0;
  uint64_t rtt_us = 0;  ///< smoothed
  LinkStats& operator+=(const LinkStats& o) noexcept {
    sent += o.sent;
    resent_datagrams += o.resent_datagrams;
    received += o.received;
    duplicate_datagrams += o.duplicate_datagrams;
    rejected += o.rejected;
    excluded_granules += o.excluded_granules;
    partial_granules += o.partial_granules;
    aggregator_restarts += o.aggregator_restarts;
    rtt_us = rtt_us > o.rtt_us ? rtt_us : o.rtt_us;
    return *this;
  }
};

}  // namespace laconic::transport::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Contributions to an aggregation server and its sums, by granule. Nothing here interprets the
// integers.
#pragma once

#include <cstdint>

#include "laconic/aggregation.h"

namespace laconic::aggregation {

using Outgoing = Contribution;
using Incoming = Aggregate;

struct LinkStats {
  uint64_t sent = 0;
  uint64_t resent_datagrams = 0;
  uint64_t received = 0;
  uint64_t duplicate_datagrams = 0;
  uint64_t rejected = 0;           ///< not from the server, or of another epoch
  uint64_t excluded_granules = 0;  ///< sums without this rank
  uint64_t partial_granules = 0;   ///< sums without the contribution of some rank
  uint64_t aggregator_restarts = 0;
  uint64_t rtt_us = 0;               ///< smoothed
  uint64_t multicast_datagrams = 0;  ///< results that came to the group
  uint64_t multicast_servers = 0;    ///< servers whose group reaches this rank
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
    multicast_datagrams += o.multicast_datagrams;
    multicast_servers += o.multicast_servers;
    return *this;
  }
};

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Counters and memory of a session.
#pragma once

#include <cstdint>

#include "collective/exchange/strategy.h"

namespace laconic::session {

/// Counters of a driver.
struct DriverCounts {
  uint64_t parts = 0;              ///< exchanges that carried a part of a bucket that was cut
  uint64_t coalesced = 0;          ///< buckets, or parts, that travelled with others
  double window_wait_seconds = 0;  ///< waiting for an older exchange, because the window was full
  uint64_t node_bytes = 0;         ///< sent to the other ranks of the node
  double node_seconds = 0;         ///< in exchanges among them
};

/// Counts since creation.
struct Stats {
  uint64_t exchanges = 0;
  uint64_t steps = 0;        ///< distinct step numbers seen
  uint64_t elements = 0;     ///< elements exchanged
  uint64_t dense_bytes = 0;  ///< what a float32 ring all-reduce would have sent
  uint64_t fallbacks = 0;    ///< exchanges uncompressed because a gradient was not finite
  uint64_t flushes = 0;      ///< exchanges that took part of the residuals with them
  uint64_t failures = 0;
  DriverCounts driver;
  double encode_seconds = 0;     ///< begin to the first step that carries gradients
  double decode_seconds = 0;     ///< all later work of ours
  uint64_t setting_changes = 0;  ///< that policies have decided, or that were set
  uint64_t held_steps = 0;       ///< whose reports no policy could use
  uint64_t reports_missing = 0;  ///< of any rank, that were due
  double network_seconds = 0;    ///< of the time in collectives, what the network took
  double straggler_seconds = 0;  ///< and the wait for ranks that came later
  collective::Counters counters;
  // As of now:
  bool alone = false;             ///< one rank: see Model::alone
  uint64_t layouts = 0;           ///< bucket layouts that hold exchange buffers
  uint64_t flush_steps_left = 0;  ///< draining steps still to come
  uint64_t residual_bytes = 0;    ///< as Memory has it
  double residual_norm = 0;       ///< sqrt of the sum of squares of this rank's residuals
};

/// The memory of a session in bytes, as far as it grows with the model.
struct Memory {
  uint64_t residual_bytes = 0;  ///< error feedback, that of owned means included
  uint64_t state_bytes = 0;     ///< what else outlives a step: codec state, the flush's numbers
  uint64_t exchange_bytes = 0;  ///< buffers and tables of all bucket layouts
};

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The message that the ranks of a node exchange at the end of a step, so that policies decide the
// same for all shards: the reports that the ranks of each shard have exchanged.
#pragma once

#include <cstdint>
#include <span>

#include "control/report.h"
#include "laconic/bytes.h"
#include "session/active.h"

namespace laconic::session {

/// A rank's bytes: the number of reports, and space for those of `world` ranks.
[[nodiscard]] constexpr uint64_t node_report_bytes(uint32_t world) noexcept {
  return sizeof(uint64_t) + world * control::kReportBytes;
}

/// This rank's; `out` has node_report_bytes(). The session is held.
void store_node_reports(const Active& active, std::span<uint8_t> out) noexcept;

/// `notes`: every rank's, each `stride` bytes after the one before. Where the network took longest,
/// those are the reports that this rank's policy decides by. The session is held.
void decide_by(Active& active, Bytes notes, uint64_t stride) noexcept;

}  // namespace laconic::session

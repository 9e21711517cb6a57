// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// N ranks as threads of one process: the engine of the unit tests, of virtual workers and of the
// sanitizers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/engine.h"

namespace laconic::transport {

/// Meeting place of `world` threads. Sums are taken in rank order, so they do not depend on timing.
class LoopbackHub {
 public:
  explicit LoopbackHub(uint32_t world,
                       std::chrono::milliseconds timeout = std::chrono::seconds(30));
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  /// The engine of one rank; lives as long as the hub.
  Engine& engine(uint32_t rank);
  /// A peer is gone: from now on every collective fails on every rank, at once.
  void break_off();
  /// Bytes that `rank` put on the wire so far: what a direct exchange sends, a ring all-reduce for
  /// sums.
  [[nodiscard]] uint64_t sent_bytes(uint32_t rank) const;
  /// Collectives that `rank` has taken part in.
  [[nodiscard]] uint64_t rounds(uint32_t rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic::transport

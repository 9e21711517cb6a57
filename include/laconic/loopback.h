// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// N ranks as threads of one process: the reference engine, for tests, virtual workers and the
// sanitizers.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "laconic/engine.h"

namespace laconic {

/// Meeting place of `world` threads. Sums are taken in rank order, so they do not depend on timing.
class LoopbackHub {
 public:
  /// A rank that does not come within `timeout` fails all others.
  explicit LoopbackHub(uint32_t world, std::chrono::milliseconds timeout = std::chrono::seconds(30),
                       EngineCaps caps = {kAllSums, false});
  ~LoopbackHub();
  LoopbackHub(const LoopbackHub&) = delete;
  LoopbackHub& operator=(const LoopbackHub&) = delete;

  /// The engine of one rank; lives as long as the hub.
  Engine& engine(uint32_t rank);
  /// `rank` is gone: from now on every collective fails on every rank, at once.
  void break_off(uint32_t rank);
  /// Bytes that `rank` put on the wire so far: what a direct exchange sends, a ring all-reduce for
  /// sums.
  [[nodiscard]] uint64_t sent_bytes(uint32_t rank) const;
  /// Steps that `rank` has taken part in.
  [[nodiscard]] uint64_t rounds(uint32_t rank) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Writes what a member of a job sends.
#pragma once

#include <cstdint>

#include "aggregation/link/registration.h"
#include "aggregation/link/results.h"
#include "aggregation/protocol/sender.h"

namespace laconic::aggregation {

class Uplink {
 public:
  /// All arguments outlive it. `hears`: the server's group reaches this worker.
  Uplink(const LinkSettings& settings, const Epoch& epoch, bool hears, Sender& sender,
         LinkStats& stats) noexcept
      : settings_(settings), epoch_(epoch), sender_(sender), stats_(stats), hears_(hears) {}

  /// Sends a contribution; only its header, which requests the result, if the worker is late.
  /// `again`: it was lost.
  void granule(const Results& results, uint64_t number, bool again) noexcept;
  /// A header alone, about the granule that is `ahead` of all that are here.
  void bare(protocol::DatagramType type, uint64_t ack, uint8_t flags = 0,
            uint16_t ahead = 0) noexcept;
  /// A result that is kept.
  void held(const Results& results, uint64_t number) noexcept;

 private:
  [[nodiscard]] protocol::UpHeader header(protocol::DatagramType type, uint64_t number,
                                          uint64_t ahead) const noexcept;

  const LinkSettings& settings_;
  const Epoch& epoch_;
  Sender& sender_;
  LinkStats& stats_;
  bool hears_;
};

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A step where owners have turns (collective::Options::owner_turns): pushes, which are buckets that
// a driver is given, then the turn of every owner, then pulls.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "session/driver/window.h"

namespace laconic::session {

class OwnerTurns {
 public:
  OwnerTurns(Session& session, Window& window) : session_(&session), window_(&window) {}

  /// Parameters as the program has them, by their places in the model, before begin() and pull().
  /// `begins`: masters take their values.
  Result<void> set_replicas(std::span<const collective::Replica> replicas, bool begins);
  /// This rank's ranges, without means. Throws bad_alloc.
  [[nodiscard]] std::vector<collective::OwnedRange> owned() const;

  struct Turn {
    std::span<const collective::OwnedRange> ranges;  ///< until pull()
    double sum_of_squares = 0;  ///< of the means that this rank owns, small parameters included
    bool skips = false;         ///< some rank's gradient is not finite: no owner steps
  };
  /// Completes all pushes of a step. Call pull() next in any case; it reports an Error to all
  /// ranks, and then no master changes.
  Result<Turn> begin();
  /// Pulls the difference between masters and replicas, and ends the step. `trouble`: this rank's
  /// turn failed, also if begin() did. Returns false if the step was skipped.
  Result<bool> pull(const Error* trouble = nullptr);

 private:
  [[nodiscard]] std::optional<BundleFailure> failure(const Error* trouble);

  Session* session_;
  Window* window_;
  std::vector<collective::OwnedRange> ranges_;
  bool turned_ = false;  // since the last pull
};

}  // namespace laconic::session

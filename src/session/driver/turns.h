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
  /// Ends all pushes of a step. pull() comes next in any case; with an Error, which it then tells
  /// all ranks, no master moves.
  Result<Turn> begin();
  /// What masters are ahead of replicas comes down, and ends the step. `trouble`: this rank's turn
  /// failed, as it has where begin() did. False: the step was skipped, nothing moved.
  Result<bool> pull(const Error* trouble = nullptr);

 private:
  [[nodiscard]] std::optional<BundleFailure> failure(const Error* trouble);

  Session* session_;
  Window* window_;
  std::vector<collective::OwnedRange> ranges_;
  bool turned_ = false;  // since the last pull
};

}  // namespace laconic::session

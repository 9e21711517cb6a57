// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A round in which every rank reports whether it has failed: before a layout's first exchange, and
// after an engine's sum with NaN in it, because sums carry no messages and a failed rank can only
// send NaN. Its memory is allocated at create, and it never runs in steady state.
#pragma once

#include <vector>

#include "collective/exchange/held.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class StatusRound {
 public:
  explicit StatusRound(const RankState& state) : state_(&state) {}
  /// False: no memory. Needs kMinCapacity bytes per rank.
  [[nodiscard]] bool reserve();
  /// An all-gather of small bundles with this rank's `failure` (null: none).
  void emit(const Input& input, const Error* failure, Step& step);
  /// The first rank's failure, the same on every rank.
  [[nodiscard]] Result<void> receive(const Input& input);
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(send_, recv_, counts_, send_offsets_, recv_offsets_);
  }

 private:
  [[nodiscard]] BundleId id(const Input& input, uint32_t rank) const {
    return state_->bundle_id(BundleKind::contribution, rank, input, 0);
  }

  const RankState* state_;
  Arena send_, recv_;
  std::vector<uint64_t> counts_, send_offsets_, recv_offsets_;
};

/// A failure of this rank, for the other ranks.
[[nodiscard]] inline BundleFailure own_failure(const RankState& state, const Input& input,
                                               const Error& error) {
  return {error.code, state.rank(), input.bucket, BundleFailure::kNoParameter, error.message};
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What an engine's sum cannot say: lanes travel bare, so a rank that failed sends NaN, and a sum
// with NaN in it is followed by this round, in which every rank says what happened to it. It never
// runs in steady state.
#pragma once

#include <vector>

#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "wire/bundle.h"

namespace laconic::collective {

class StatusRound {
 public:
  explicit StatusRound(const RankState& state) : state_(&state) {}
  /// False: no memory.
  [[nodiscard]] bool reserve();
  /// An all-gather of small bundles: this rank's failure (null: none) to everybody.
  void emit(const Input& input, transport::Step& step, Counters& counters);
  /// The first rank's failure, the same on every rank.
  [[nodiscard]] Result<void> receive(const Input& input);

 private:
  [[nodiscard]] BundleId id(const Input& input, uint32_t rank) const;

  const RankState* state_;
  Arena send_, recv_;
  std::vector<uint64_t> send_counts_, send_offsets_, recv_counts_, recv_offsets_;
};

}  // namespace laconic::collective

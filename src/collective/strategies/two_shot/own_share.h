// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank's contribution to the means that it takes itself, as the owner of a range. No network is
// in between: if its codec keeps a residual, nothing is encoded, the contribution counts exactly,
// and the residual of that range stays zero.
#pragma once

#include <cstring>
#include <vector>

#include "base/arena.h"
#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/held.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class OwnShare {
 public:
  OwnShare(const RankState& state, const BucketPlan& plan) : state_(&state), plan_(&plan) {
    uint64_t floats = 0;
    for (const BucketUnit& u : plan.units) {
      const RankPiece& piece = *u.piece;
      const bool mine =
          piece.owner == state.rank() && piece.codec->delivers_exactly(piece.send.memory);
      offsets_.push_back(mine ? floats : kElsewhere);
      if (mine) floats += round_up(piece.send.unit.count, 16);
    }
    floats_ = floats;
    taken_.resize(plan.units.size());
  }
  /// False: no memory.
  [[nodiscard]] bool reserve() { return values_.reserve(floats_ * sizeof(float)); }

  void begin() { std::ranges::fill(taken_, uint8_t{0}); }
  /// Is this a unit that needs no payload?
  [[nodiscard]] bool has(uint32_t unit) const { return offsets_[unit] != kElsewhere; }
  pipeline::UnitEncoded take(uint32_t unit, const float* gradient) {
    const RankPiece& piece = *plan_->units[unit].piece;
    const pipeline::UnitEncoded done = piece.codec->take(piece.send, gradient, values_of(unit));
    taken_[unit] = done.outcome == pipeline::Outcome::payload ? 1 : 0;
    return done;
  }
  /// mean += 1/world of it
  void add_to(uint32_t unit, float* mean) {
    if (taken_[unit] == 0) return;
    const auto weight = 1.0F / static_cast<float>(state_->world());
    state_->kernels().axpy(mean, weight, values_of(unit),
                           plan_->units[unit].piece->send.unit.count);
  }
  void undo(uint32_t unit, const float* gradient, pipeline::Undo why) {
    if (taken_[unit] == 0) return;
    taken_[unit] = 0;
    const RankPiece& piece = *plan_->units[unit].piece;
    piece.codec->give_back(piece.send, values_of(unit), gradient, why);
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(offsets_, taken_, values_); }

 private:
  static constexpr uint64_t kElsewhere = ~uint64_t{0};
  [[nodiscard]] float* values_of(uint32_t unit) {
    return reinterpret_cast<float*>(values_.bytes().data()) + offsets_[unit];
  }

  const RankState* state_;
  const BucketPlan* plan_;
  std::vector<uint64_t> offsets_;  // by unit
  std::vector<uint8_t> taken_;     // by unit: delivered to this rank, or to be undone
  Arena values_;
  uint64_t floats_ = 0;
};

}  // namespace laconic::collective

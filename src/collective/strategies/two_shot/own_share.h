// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank's contribution to the means that it takes itself, as the owner of a range. No network is
// in between: if its codec keeps a residual, nothing is encoded, the contribution counts exactly,
// and the residual of that range stays zero.
#pragma once

#include <algorithm>
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
      const bool mine = piece.owner == state.rank() && keeps_residual(piece);
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
  /// Moves the sum of gradient and residual here; the residual is then zero. Outcomes are those of
  /// encode.
  pipeline::UnitEncoded take(uint32_t unit, const float* gradient) {
    const RankPiece& piece = *plan_->units[unit].piece;
    const uint64_t n = piece.send.unit.count;
    float* const residual = piece.send.memory.values;
    if (!state_->kernels().any_nonzero(gradient, n)) return {pipeline::Outcome::zero, 0};
    const bool reset = !piece.codec->keep(piece.send, gradient);
    if (reset) {
      if (!pipeline::scan(*piece.codec, gradient, n).all_finite)
        return {pipeline::Outcome::non_finite, 0};
      std::copy_n(gradient, n, residual);
    }
    std::copy_n(residual, n, values_of(unit));
    std::fill_n(residual, n, 0.0F);
    taken_[unit] = 1;
    return {pipeline::Outcome::payload, 0, reset};
  }
  /// mean += 1/world of it
  void add_to(uint32_t unit, float* mean) {
    if (taken_[unit] == 0) return;
    const auto weight = 1.0F / static_cast<float>(state_->world());
    state_->kernels().axpy(mean, weight, values_of(unit),
                           plan_->units[unit].piece->send.unit.count);
  }
  /// Nothing of it counts: as UnitCodec::undo.
  void undo(const float* gradient, pipeline::Undo why) {
    for (uint32_t unit = 0; unit < taken_.size(); ++unit) {
      if (taken_[unit] == 0) continue;
      taken_[unit] = 0;
      const BucketUnit& u = plan_->units[unit];
      const pipeline::UnitSlot& slot = u.piece->send;
      std::copy_n(values_of(unit), slot.unit.count, slot.memory.values);
      if (why == pipeline::Undo::gradient_travels)
        pipeline::subtract_from(*u.piece->codec, slot.memory.values, gradient + plan_->at[unit],
                                slot.unit.count);
    }
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(offsets_, taken_, values_); }

 private:
  static bool keeps_residual(const RankPiece& piece) {
    return piece.send.memory.values != nullptr &&
           piece.send.memory.settings.kind == MemoryKind::residual &&
           piece.codec->contract().feedback == Feedback::own;
  }
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

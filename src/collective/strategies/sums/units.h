// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The units (parameters that a codec compresses) of a bucket whose payloads are summed on the way:
// what happens to a unit in each round, and what is undone if the sum is of no use.
#pragma once

#include <span>
#include <vector>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class SumUnits {
 public:
  /// Adds the bucket's parameters for which takes(parameter) is true.
  template <class Takes>
  SumUnits(RankState& state, const Layout& layout, StrategyKind kind, Counters& counters,
           Takes&& takes)
      : state_(&state),
        counters_(&counters),
        plan_(state, layout, kind, takes),
        batch_(state.batches().sums()) {
    plan_memory();
  }
  /// Units have other plans.
  void replan() {
    plan_.refill();
    plan_memory();
  }
  /// False: no memory.
  [[nodiscard]] bool reserve() { return batch_->reserve() && copies_.reserve(offsets_.back()); }
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(plan_, *batch_, offsets_, copies_);
  }

  [[nodiscard]] const BucketPlan& plan() const noexcept { return plan_; }
  [[nodiscard]] uint32_t size() const noexcept { return static_cast<uint32_t>(plan_.units.size()); }
  [[nodiscard]] const pipeline::UnitCodec& codec(uint32_t i) const {
    return *plan_.units[i].piece->codec;
  }
  [[nodiscard]] const pipeline::UnitSlot& slot(uint32_t i) const {
    return plan_.units[i].piece->send;
  }
  [[nodiscard]] uint32_t last(uint32_t i) const { return slot(i).plan.rounds - 1; }
  /// Maximum number of rounds of a unit.
  [[nodiscard]] uint32_t rounds() const noexcept { return rounds_; }
  [[nodiscard]] Work work(uint32_t i) { return batch_->work(i); }

  /// Encodes nothing. True: every unit begins with its last round.
  bool begin(const Input& input);
  [[nodiscard]] const Input& input() const noexcept { return input_; }
  /// The first round that the unit needs in this exchange: of its state, which is the same on all
  /// ranks.
  [[nodiscard]] uint32_t first(uint32_t i) const { return batch_->first(i); }
  /// All units, in round 0 of the exchange: each in the first round that it needs.
  /// After an error in round 0 memory has the gradients of all; later undo() gives them back.
  Result<void> encode(uint32_t round, pipeline::PayloadSink& sink);
  /// The round of a unit that is encoded in `round` of the exchange.
  [[nodiscard]] uint32_t round_of(uint32_t i, uint32_t round) const {
    return round == 0 ? first(i) : round;
  }
  /// Counts a unit's outcome in that round. A later round of one without a payload is zero and
  /// does not count.
  void count(uint32_t i, uint32_t round, const pipeline::UnitEncoded& encoded);
  /// Copy of a unit's last payload: a sum overwrites elements.
  [[nodiscard]] MutBytes copy(uint32_t i) {
    return copies_.bytes().subspan(offsets_[i], kept_bytes(i));
  }
  /// `lanes` is the payload of the last round.
  Bytes keep(uint32_t i, MutBytes lanes);
  /// The sum of a round that is not the unit's last.
  void accept(uint32_t i, uint32_t round, MutBytes sum) { batch_->accept(i, round, sum); }
  /// The means go into the gradient.
  Result<void> finish(pipeline::SumSource& sums) {
    return batch_->take_sums(batch_->all(), sums, plan_.in(input_));
  }
  void undo(pipeline::Undo why) { batch_->undo(batch_->all(), plan_.in(input_), why); }
  /// False: it has sent nothing.
  bool undo(uint32_t i, pipeline::Undo why);

 private:
  void plan_memory();
  [[nodiscard]] uint64_t kept_bytes(uint32_t i) const;

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  std::unique_ptr<pipeline::SumBatch> batch_;
  uint32_t rounds_ = 1;
  std::vector<uint64_t> offsets_;  // of copies, and their end
  Arena copies_;
  Input input_;
};

}  // namespace laconic::collective

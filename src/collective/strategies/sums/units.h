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
      : state_(&state), counters_(&counters), plan_(state, layout, kind, takes) {
    plan_memory();
  }
  /// Units have other plans.
  void replan() {
    plan_.refill();
    plan_memory();
  }
  /// False: no memory.
  [[nodiscard]] bool reserve() { return memory_.reserve() && copies_.reserve(offsets_.back()); }
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(plan_, memory_, first_, outcomes_, sent_, offsets_, copies_);
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
  [[nodiscard]] Work work(uint32_t i) { return memory_.work(i, codec(i)); }

  /// Encodes nothing. True: every unit begins with its last round.
  bool begin(const Input& input);
  [[nodiscard]] const Input& input() const noexcept { return input_; }
  /// The first round that the unit needs in this exchange: of its state, which is the same on all
  /// ranks.
  [[nodiscard]] uint32_t first(uint32_t i) const { return first_[i]; }
  /// The unit's payload of that round; `zero`: it has nothing to send.
  pipeline::Outcome encode(uint32_t i, uint32_t round, MutBytes out);
  /// Copy of a unit's last payload: a sum overwrites elements.
  [[nodiscard]] MutBytes copy(uint32_t i) {
    return copies_.bytes().subspan(offsets_[i], kept_bytes(i));
  }
  /// `lanes` is the payload of the last round.
  Bytes keep(uint32_t i, MutBytes lanes);
  /// The sum of a round that is not the unit's last.
  void accept(uint32_t i, uint32_t round, MutBytes sum);
  /// The mean goes into the gradient. `left_out`: see CodeCarrier.
  void finish(uint32_t i, Term sum, std::span<const uint8_t> left_out = {});
  /// False: it has sent nothing.
  bool undo(uint32_t i, pipeline::Undo why);

 private:
  void plan_memory();
  [[nodiscard]] uint64_t kept_bytes(uint32_t i) const;
  [[nodiscard]] Place place(uint32_t i, uint32_t round) const;
  [[nodiscard]] float* gradient(uint32_t i) const {
    return input_.gradient + plan_.units[i].offset;
  }

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  WorkMemory memory_;
  uint32_t rounds_ = 1;
  std::vector<uint32_t> first_;
  std::vector<pipeline::Outcome> outcomes_;
  std::vector<Bytes> sent_;
  std::vector<uint64_t> offsets_;  // of copies, and their end
  Arena copies_;
  Input input_;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// code_sum: quantized values that add up, so that only the sum is decoded.
//
// A code is the integer that a codec (thc) makes of an element, by a table that all ranks share. A
// carrier is how codes travel: as fields of int32 lanes that the engine adds (integer_lanes.cc), or
// as granules to an aggregation server (server_sum/code_granules.cc). A granule is a block of lanes
// in one datagram.
//
// Codes are the last round of their units. What ranks agree on before they encode (the largest
// norm) travels in round 0, unless the state of every unit has it already. The carrier of a server
// takes parameters without a codec, too.
#include <algorithm>
#include <optional>

#include "collective/strategies/code_sum/agreement.h"
#include "collective/strategies/code_sum/code_carrier.h"
#include "collective/strategies/server_sum/values.h"
#include "collective/strategies/sums/sums.h"

namespace laconic::collective {
namespace {

using pipeline::Outcome;

class CodeLanes final : public UnitPart {
 public:
  CodeLanes(RankState& state, const Layout& layout, StrategyKind kind, Counters& counters);
  [[nodiscard]] bool reserve() override {
    return UnitPart::reserve() && agreement_.reserve() && carrier_->reserve();
  }
  /// No policy moves what codes add up to: plans stay.
  void replan() override {}
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(units_, riders_, agreement_, agreed_, *carrier_) +
           (values_ ? values_->held_bytes() : 0);
  }

  [[nodiscard]] uint32_t rounds() const noexcept override { return values_ ? 2 : units_.rounds(); }
  bool begin(const Input& input) override;
  Result<void> encode(const SumRound& round) override;
  void poison(const SumRound& round) override;
  uint32_t emit(const SumRound& round, std::span<Step> batch) override;
  bool hear(const SumRound& round) override;
  void accept(const SumRound& round) override;
  Result<void> finish() override;
  void undo(pipeline::Undo why) override;
  void learn() override {
    if (values_) values_->learn();
  }

 private:
  [[nodiscard]] bool agrees(const SumRound& round) const {
    return round.number == 0 && !round.last && agreement_.size() != 0;
  }
  /// A unit's, in round 0.
  [[nodiscard]] MutBytes agreed(uint32_t i) {
    const auto floats = agreement_.values(agreed_[i], agreed_[i + 1] - agreed_[i]);
    return {reinterpret_cast<uint8_t*>(floats.data()), floats.size_bytes()};
  }
  [[nodiscard]] std::span<float> ranges() { return agreement_.values(0, values_->size()); }
  class Codes;

  std::unique_ptr<CodeCarrier> carrier_;
  std::optional<Values> values_;  // parameters without a codec, where the carrier takes them
  Agreement agreement_;           // values' ranges, then units
  std::vector<uint64_t> agreed_;  // by unit: where its floats begin there, and the end
};

CodeLanes::CodeLanes(RankState& state, const Layout& layout, StrategyKind kind, Counters& counters)
    : UnitPart(state, {state, layout, kind, counters,
                       [&](const RankParameter& p) {
                         return kind == StrategyKind::server_sum || has_codes(p);
                       }}),
      carrier_(kind == StrategyKind::server_sum ? make_code_granules(state, counters)
                                                : make_integer_lanes(state)),
      agreement_(state.world()) {
  if (carrier_->values() != nullptr && !units_.plan().raw.empty())
    values_.emplace(state, units_.plan(), *carrier_->values(), counters);
  agreed_.push_back(agreement_.add(values_ ? values_->size() : 0));
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const Plan& plan = units_.slot(i).plan;
    agreed_.push_back(agreement_.add(plan.rounds == 1 ? 0 : plan.round[0].bytes / sizeof(float)));
    carrier_->add_unit(units_.slot(i));
  }
  riders_.carry(state.model().feedback(), true);
  carrier_->add_rides(riders_.most_slots());
}

bool CodeLanes::begin(const Input& input) {
  riders_.begin(input);
  carrier_->begin(input.step << 32U ^ input.sequence, riders_.slots());
  const bool known = units_.begin(input);
  return (!values_ || values_->start()) && known;
}

/// Payloads of a round go into `agreed` or, the last ones, to the carrier, which has the sums.
class CodeLanes::Codes final : public pipeline::PayloadSink, public pipeline::SumSource {
 public:
  Codes(CodeLanes& part, uint32_t round) : part_(&part), round_(round) {}
  MutBytes room(uint32_t i) override {
    return is_last(i) ? part_->units_.copy(i) : part_->agreed(i);
  }
  Bytes put(uint32_t i, const pipeline::UnitEncoded& encoded) override;
  Term sum(uint32_t i) override {
    Work work = part_->units_.work(i);
    return part_->carrier_->sum(i, work);
  }
  [[nodiscard]] std::span<const uint8_t> left_out(uint32_t i) const override {
    return part_->carrier_->left_out(i);
  }

 private:
  [[nodiscard]] bool is_last(uint32_t i) const {
    return part_->units_.round_of(i, round_) == part_->units_.last(i);
  }

  CodeLanes* part_;
  uint32_t round_;
};

Bytes CodeLanes::Codes::put(uint32_t i, const pipeline::UnitEncoded& encoded) {
  SumUnits& units = part_->units_;
  CodeCarrier& carrier = *part_->carrier_;
  units.count(i, units.round_of(i, round_), encoded);
  const MutBytes out = room(i);
  if (!is_last(i)) {
    if (encoded.outcome == Outcome::payload) return {};
    std::ranges::fill(out, encoded.outcome == Outcome::zero ? uint8_t{0} : uint8_t{0xFF});
    return {};
  }
  if (encoded.outcome == Outcome::payload) {
    Work work = units.work(i);
    const Bytes codes = units.keep(i, out);
    carrier.put(i, units.codec(i).spec(), codes, work);
    return codes;
  }
  carrier.put_nothing(i);
  if (encoded.outcome == Outcome::non_finite) carrier.report_trouble();
  return {};
}

Result<void> CodeLanes::encode(const SumRound& round) {
  if (round.number == 0) {
    if (values_ && !values_->encode(units_.input().gradient, ranges())) carrier_->report_trouble();
    const auto [flush, reports] = carrier_->rides_out();
    riders_.put_flush(DType::i32, 1.0F, flush.data());
    riders_.put_reports(DType::i32, reports.data());
    for (uint32_t i = 0; i < units_.size(); ++i) {
      if (units_.first(i) != 0) std::ranges::fill(agreed(i), uint8_t{0});
    }
  }
  Codes codes(*this, round.number);
  return units_.encode(round.number, codes);
}

void CodeLanes::poison(const SumRound&) {
  const auto agreed = std::as_writable_bytes(agreement_.values(0, agreement_.size()));
  std::ranges::fill(agreed, std::byte{0xFF});  // all are NaN
  for (uint32_t i = 0; i < units_.size(); ++i) carrier_->put_nothing(i);
  carrier_->report_trouble();
}

uint32_t CodeLanes::emit(const SumRound& round, std::span<Step> batch) {
  uint32_t steps = 0;
  if (agrees(round)) batch[steps++] = agreement_.step();
  if (round.last) batch[steps++] = carrier_->step();
  return steps;
}

bool CodeLanes::hear(const SumRound& round) {
  if (agrees(round) && !agreement_.reduce()) return false;
  if (!round.last) return true;
  const auto [flush, reports] = carrier_->rides_in();
  riders_.hear_flush(DType::i32, flush.data());
  riders_.hear_reports(DType::i32, reports.data());
  return !carrier_->trouble();
}

void CodeLanes::accept(const SumRound& round) {
  if (!agrees(round)) return;
  for (uint32_t i = 0; i < units_.size(); ++i) units_.accept(i, round.number, agreed(i));
  if (values_ && !values_->encode_rest(units_.input().gradient, ranges()))
    carrier_->report_trouble();
}

Result<void> CodeLanes::finish() {
  if (values_) values_->finish(units_.input().gradient);
  Codes sums(*this, 0);
  return units_.finish(sums);
}

void CodeLanes::undo(pipeline::Undo why) {
  if (values_) values_->undo(why, units_.input().gradient);
  units_.undo(why);
}

}  // namespace

std::unique_ptr<SumPart> make_code_lanes(RankState& state, const Layout& layout, StrategyKind kind,
                                         Counters& counters) {
  return std::make_unique<CodeLanes>(state, layout, kind, counters);
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/sums/units.h"

#include <algorithm>

#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {

using pipeline::Outcome;

void SumUnits::plan_memory() {
  plan_.fill(*batch_);
  rounds_ = 1;
  offsets_.assign(1, 0);
  for (uint32_t i = 0; i < size(); ++i) {
    rounds_ = std::max(rounds_, slot(i).plan.rounds);
    offsets_.push_back(offsets_.back() + round_up(kept_bytes(i), 64));
  }
}

/// Codes do not lie where they are summed. Own feedback decodes its own payload.
uint64_t SumUnits::kept_bytes(uint32_t i) const {
  const RoundPlan& round = slot(i).plan.round[last(i)];
  const bool own = codec(i).spec().feedback() && codec(i).contract().feedback == Feedback::own;
  return own || round.code_bits != 0 ? round.bytes : 0;
}

bool SumUnits::begin(const Input& input) {
  input_ = input;
  batch_->begin(state_->place(input.step, 0));
  bool late = true;
  for (uint32_t i = 0; i < size(); ++i) late = late && first(i) == last(i);
  return late;
}

Result<void> SumUnits::encode(uint32_t round, pipeline::PayloadSink& sink) {
  const pipeline::UnitFloats gradients = plan_.in(input_);
  auto encoded = round == 0 ? batch_->encode(batch_->all(), gradients, sink)
                            : batch_->encode_round(round, gradients, sink);
  if (!encoded && round == 0) keep_all(*batch_, batch_->all(), gradients);
  return encoded;
}

void SumUnits::count(uint32_t i, uint32_t round, const pipeline::UnitEncoded& encoded) {
  if (round != first(i) && batch_->outcome(i) != Outcome::payload) return;
  if (encoded.residual_reset) ++counters_->residual_resets;
  if (encoded.outcome == Outcome::zero) ++counters_->zero_units;
  if (encoded.outcome == Outcome::non_finite) ++counters_->non_finite_units;
}

Bytes SumUnits::keep(uint32_t i, MutBytes lanes) {
  const MutBytes copy = this->copy(i);
  if (copy.data() != lanes.data()) std::copy_n(lanes.begin(), copy.size(), copy.begin());
  return copy;
}

bool SumUnits::undo(uint32_t i, pipeline::Undo why) {
  if (batch_->outcome(i) != Outcome::payload) return false;
  batch_->undo(batch_->all().subspan(i, 1), plan_.in(input_), why);
  return true;
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/sums/units.h"

#include <algorithm>

namespace laconic::collective {

using pipeline::Outcome;

void SumUnits::plan_memory() {
  memory_.restart();
  rounds_ = 1;
  offsets_.assign(1, 0);
  for (uint32_t i = 0; i < size(); ++i) {
    memory_.plan(slot(i).plan);
    rounds_ = std::max(rounds_, slot(i).plan.rounds);
    offsets_.push_back(offsets_.back() + round_up(kept_bytes(i), 64));
  }
  first_.resize(size());
  outcomes_.resize(size());
  sent_.resize(size());
}

/// Codes do not lie where they are summed. Own feedback decodes its own payload.
uint64_t SumUnits::kept_bytes(uint32_t i) const {
  const RoundPlan& round = slot(i).plan.round[last(i)];
  const bool own = codec(i).spec().feedback() && codec(i).contract().feedback == Feedback::own;
  return own || round.code_bits != 0 ? round.bytes : 0;
}

/// 16-bit sums take the mean before they add, so that finite gradients cannot overflow
/// (pytorch/pytorch#57410).
Place SumUnits::place(uint32_t i, uint32_t round) const {
  Place p = state_->place(input_.step, 0);
  const DType lane = slot(i).plan.round[round].lane;
  if (lane == DType::f16 || lane == DType::bf16) p.prescale = 1.0F / static_cast<float>(p.world);
  return p;
}

bool SumUnits::begin(const Input& input) {
  input_ = input;
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  std::fill(outcomes_.begin(), outcomes_.end(), Outcome::zero);
  bool late = true;
  for (uint32_t i = 0; i < size(); ++i) {
    Work work = this->work(i);
    first_[i] = codec(i).start(slot(i), work);
    late = late && first_[i] == last(i);
  }
  return late;
}

Outcome SumUnits::encode(uint32_t i, uint32_t round, MutBytes out) {
  const bool begins = round == first_[i];
  if (!begins && outcomes_[i] != Outcome::payload) return Outcome::zero;
  Work work = this->work(i);
  const Place p = place(i, round);
  const pipeline::UnitEncoded encoded =
      begins ? codec(i).encode(slot(i), p, gradient(i), work, out, round)
             : codec(i).encode_round(slot(i), p, round, gradient(i), work, out);
  if (begins) outcomes_[i] = encoded.outcome;
  if (encoded.residual_reset) ++counters_->residual_resets;
  if (encoded.outcome == Outcome::zero) ++counters_->zero_units;
  if (encoded.outcome == Outcome::non_finite) ++counters_->non_finite_units;
  return encoded.outcome;
}

Bytes SumUnits::keep(uint32_t i, MutBytes lanes) {
  const MutBytes copy = this->copy(i);
  if (copy.data() != lanes.data()) std::copy_n(lanes.begin(), copy.size(), copy.begin());
  if (!copy.empty()) sent_[i] = copy;
  return sent_[i];
}

void SumUnits::accept(uint32_t i, uint32_t round, MutBytes sum) {
  if (round < first_[i] || round >= last(i)) return;
  Work work = this->work(i);
  codec(i).accept(slot(i), state_->place(input_.step, 0), round, sum, state_->world(), work);
}

void SumUnits::finish(uint32_t i, Term sum, std::span<const uint8_t> left_out) {
  const Place p = place(i, last(i));
  Work work = this->work(i);
  if (sum.contributors.empty() && p.prescale == 1.0F)
    sum.weight = 1.0F / static_cast<float>(state_->world());
  codec(i).decode(slot(i).unit, p, {&sum, 1}, work, {gradient(i), false});
  if (!left_out.empty()) codec(i).put_back(slot(i), p, sent_[i], left_out, work);
  codec(i).commit(slot(i), p, sent_[i], sum.payload, state_->world(), gradient(i), work);
}

bool SumUnits::undo(uint32_t i, pipeline::Undo why) {
  if (outcomes_[i] != Outcome::payload) return false;
  Work work = this->work(i);
  codec(i).undo(slot(i), place(i, last(i)), sent_[i], gradient(i), why, work);
  outcomes_[i] = Outcome::zero;
  return true;
}

}  // namespace laconic::collective

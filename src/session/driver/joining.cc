// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/joining.h"

#include <algorithm>

namespace laconic::session {

using collective::kShortElements;
using collective::Model;

Joining::Joining(const Model& model)
    : weights_(model.parameters().size()), waits_(model.parameters().size()) {
  refresh(model);
}

/// As configured: with a control, by the setting that it begins with, so that a resumed run has the
/// same groups, wherever the policy has come to.
void Joining::refresh(const Model& model) {
  joins_ = !model.alone() && !model.options().caps.aggregates && !model.options().owner_turns;
  part_ = model.options().part;
  uint64_t elements = 0;
  for (uint32_t p = 0; p < weights_.size(); ++p) {
    const bool sums = model.strategy_of(p) == collective::StrategyKind::native_sum;
    const uint64_t share = sums ? kShareOfSums : 1;
    const uint64_t count = model.parameters()[p].count();
    weights_[p] = {collective::payload_of(model, p).at_most / share, count / share};
    if (count <= kShortElements) elements += count;  // longer ones have no part in it
  }
  room_ = !joins_ ? 0 : std::min(elements, kShareOfSums * kMostElements + kShortElements);
  clear();
}

bool Joining::takes(const JoiningPart& part) const noexcept {
  return joins_ && !part.layout.parameters.empty() &&
         part.layout.elements <= std::min(kShortElements, room_);
}

bool Joining::goes_with(const JoiningPart& part) const noexcept {
  const uint64_t together = elements_ + part.layout.elements;
  return together <= room_ && (part_ == 0 || sizeof(float) * together <= part_) &&
         part.step == step_ && part.dtype == dtype_ &&
         std::ranges::none_of(part.layout.parameters, [&](uint32_t p) { return waits_[p]; });
}

bool Joining::add(const JoiningPart& part) noexcept {
  step_ = part.step;
  dtype_ = part.dtype;
  elements_ += part.layout.elements;
  ++count_;
  for (const uint32_t p : part.layout.parameters) {
    waits_[p] = true;
    bytes_ += weights_[p].bytes;
    weight_ += weights_[p].elements;
  }
  return bytes_ >= kMostBytes || weight_ >= kMostElements || count_ == kMostJoined;
}

void Joining::clear() noexcept {
  std::fill(waits_.begin(), waits_.end(), false);
  bytes_ = weight_ = elements_ = 0;
  count_ = 0;
}

}  // namespace laconic::session

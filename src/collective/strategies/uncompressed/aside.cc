// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/aside.h"

#include <algorithm>

namespace laconic::collective {

Aside::Aside(const RankState& state, const Layout& layout) : state_(&state), layout_(&layout) {
  for (uint32_t i = 0; i < layout.parameters.size(); ++i) {
    const RankParameter& p = state.parameter(layout.parameters[i]);
    if (p.codec->joint(p.memory)) joint_.push_back({i});
  }
}

void Aside::begin(const Input& input) noexcept {
  book_.begin();
  wish_ = 0;
  for (Joint& j : joint_) {
    const float* const gradient = input.gradient + layout_->offsets[j.index];
    const uint64_t count = state_->parameter(layout_->parameters[j.index]).count;
    j.present = input.failure == nullptr && state_->kernels().any_nonzero(gradient, count);
  }
}

void Aside::put(const Input& input, uint8_t* at) const noexcept {
  const SlotTurn turn = this->turn(input);
  const uint32_t rank = state_->rank();
  std::fill_n(at, lanes(input) * sizeof(float), uint8_t{0});
  for (uint32_t bit = 0; bit < kWishLanes; ++bit)
    store(at + sizeof(float) * bit, static_cast<float>(input.flush_wish >> bit & 1U));
  for (uint64_t k = 0; k < joint_.size(); ++k)
    store(at + sizeof(float) * (kWishLanes + k), joint_[k].present ? 1.0F : 0.0F);
  if (input.failure == nullptr && rank >= turn.first && rank - turn.first < turn.count) {
    const uint64_t slot = (rank - turn.first) * report_lanes(DType::f32) * sizeof(float);
    put_report(DType::f32, input.report->report, at + front() * sizeof(float) + slot);
  }
}

void Aside::hear(const Input& input, const uint8_t* at) noexcept {
  wish_ = 0;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit) {
    if (load<float>(at + sizeof(float) * bit) > 0.0F) wish_ |= 1U << bit;
  }
  for (uint64_t k = 0; k < joint_.size(); ++k)
    joint_[k].present = load<float>(at + sizeof(float) * (kWishLanes + k)) > 0.0F;
  if (input.report != nullptr)
    book_.hear_lanes(turn(input), DType::f32, at + front() * sizeof(float));
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/aside.h"

#include <algorithm>

namespace laconic::collective {

namespace {
constexpr uint64_t kReports = kWishLanes * sizeof(float);  // where they begin
}  // namespace

void Aside::put(const Input& input, uint8_t* at) const noexcept {
  const SlotTurn turn = this->turn(input);
  const uint32_t rank = state_->rank();
  std::fill_n(at, lanes(input) * sizeof(float), uint8_t{0});
  for (uint32_t bit = 0; bit < kWishLanes; ++bit)
    store(at + sizeof(float) * bit, static_cast<float>(input.flush_wish >> bit & 1U));
  if (input.failure == nullptr && rank >= turn.first && rank - turn.first < turn.count) {
    const uint64_t slot = (rank - turn.first) * report_lanes(DType::f32) * sizeof(float);
    put_report(DType::f32, input.report->report, at + kReports + slot);
  }
}

void Aside::hear(const Input& input, const uint8_t* at) noexcept {
  wish_ = 0;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit) {
    if (load<float>(at + sizeof(float) * bit) > 0.0F) wish_ |= 1U << bit;
  }
  if (input.report != nullptr) book_.hear_lanes(turn(input), DType::f32, at + kReports);
}

}  // namespace laconic::collective

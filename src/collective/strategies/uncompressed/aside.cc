// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/aside.h"

#include <algorithm>

namespace laconic::collective {

namespace {
constexpr uint64_t kReports = kWishLanes * sizeof(float);  // where they begin
}  // namespace

bool Aside::reserve() {
  book_.reserve(true, state_->world());
  return lanes_.reserve(lanes(slot_turn(state_->world(), 0)) * sizeof(float));
}

void Aside::emit(const Input& input, Step& step, Counters& counters) {
  const uint32_t world = state_->world(), rank = state_->rank();
  const SlotTurn turn = slot_turn(world, input.report->turn);
  uint8_t* const at = lanes_.bytes().data();
  std::fill_n(at, lanes(turn) * sizeof(float), uint8_t{0});
  for (uint32_t bit = 0; bit < kWishLanes; ++bit)
    store(at + sizeof(float) * bit, static_cast<float>(input.flush_wish >> bit & 1U));
  if (input.failure == nullptr && rank >= turn.first && rank - turn.first < turn.count) {
    const uint64_t slot = (rank - turn.first) * report_lanes(DType::f32) * sizeof(float);
    put_report(DType::f32, input.report->report, at + kReports + slot);
  }
  step = {.kind = StepKind::all_reduce,
          .dtype = DType::f32,
          .count = lanes(turn),
          .send = at,
          .recv = at};
  counters.wire_bytes += 2 * lanes(turn) * sizeof(float) * (world - 1) / world;
  ++counters.rounds;
}

void Aside::hear(const Input& input) noexcept {
  const uint8_t* const at = lanes_.bytes().data();
  wish_ = 0;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit) {
    if (load<float>(at + sizeof(float) * bit) > 0.0F) wish_ |= 1U << bit;
  }
  book_.hear_lanes(slot_turn(state_->world(), input.report->turn), DType::f32, at + kReports);
}

}  // namespace laconic::collective

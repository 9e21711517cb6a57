// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/riders.h"

#include <algorithm>

namespace laconic::collective {

float load_lane(DType type, const uint8_t* at) noexcept {
  if (type == DType::f32) return load<float>(at);
  if (type == DType::i32) return static_cast<float>(load<int32_t>(at));
  const auto half = load<uint16_t>(at);
  return type == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
}

void store_lane(DType type, float value, uint8_t* at) noexcept {
  if (type == DType::f32) return store(at, value);
  if (type == DType::i32) return store(at, static_cast<int32_t>(value));
  store(at, type == DType::f16 ? float_to_f16(value) : float_to_bf16(value));
}

Riders::Riders(const RankState& state, const Layout& layout) : Riders(state) {
  for (uint32_t i = 0; i < layout.parameters.size(); ++i) {
    const RankParameter& p = state.parameter(layout.parameters[i]);
    if (p.codec->joint(p.memory)) add_joint(i, layout.offsets[i], p.count);
  }
}

void Riders::begin(const Input& input) noexcept {
  book_.begin();
  heard_ = 0;
  asked_ = carries_flush_ ? input.flush_request : 0;
  const bool reports = input.report != nullptr && carries_reports_;
  turn_ = reports ? slot_turn(state_->world(), input.report->turn) : SlotTurn{};
  own_ = reports && input.failure == nullptr ? &input.report->report : nullptr;
  for (Joint& j : joint_) {
    j.present = input.failure == nullptr &&
                state_->kernels().any_nonzero(input.gradient + j.offset, j.count);
  }
}

void Riders::put(DType type, float bit, uint8_t* at) const noexcept {
  const uint64_t size = dtype_size(type);
  if (carries_flush_) {
    put_flush(type, bit, at);
    at += kWishLanes * size;
  }
  for (const Joint& j : joint_) {
    store_lane(type, j.present ? 1.0F : 0.0F, at);
    at += size;
  }
  put_reports(type, at);
}

void Riders::hear(DType type, const uint8_t* at) noexcept {
  const uint64_t size = dtype_size(type);
  if (carries_flush_) {
    hear_flush(type, at);
    at += kWishLanes * size;
  }
  for (Joint& j : joint_) {
    j.present = load_lane(type, at) > 0.0F;
    at += size;
  }
  hear_reports(type, at);
}

void Riders::put_flush(DType type, float bit, uint8_t* at) const noexcept {
  for (uint32_t i = 0; i < kWishLanes; ++i)
    store_lane(type, (asked_ >> i & 1U) != 0 ? bit : 0.0F, at + i * dtype_size(type));
}

/// The others' slots stay at zero: their sum is a gather.
void Riders::put_reports(DType type, uint8_t* at) const noexcept {
  const uint64_t bytes = report_lanes(type) * dtype_size(type);
  std::fill_n(at, turn_.count * bytes, uint8_t{0});
  const uint32_t mine = state_->rank() - turn_.first;
  if (own_ != nullptr && mine < turn_.count) put_report(type, *own_, at + mine * bytes);
}

void Riders::hear_flush(DType type, const uint8_t* at) noexcept {
  heard_ = 0;
  for (uint32_t i = 0; i < kWishLanes; ++i) {
    if (load_lane(type, at + i * dtype_size(type)) > 0.0F) heard_ |= 1U << i;
  }
}

}  // namespace laconic::collective

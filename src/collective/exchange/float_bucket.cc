// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/float_bucket.h"

#include <algorithm>

#include "collective/exchange/strategy_parts.h"
#include "pipeline/device_frames.h"

namespace laconic::collective {

using Copy = device::Staging::Piece;

bool FloatBucket::reserve() {
  const uint64_t elements = std::max<uint64_t>(layout_->elements, 1);
  if (device() == nullptr) return !half() || floats_.reserve(elements * sizeof(float));
  const auto raw = [&](uint32_t p) { return state_->parameter(p).raw; };
  pieces_.reserve(static_cast<size_t>(std::ranges::count_if(layout_->parameters, raw)));
  if (!floats_.reserve(elements * sizeof(float))) return false;
  if (!half()) return true;
  const device::GpuRef& gpu = device()->staging().gpu();
  return wide_.grow(gpu, device::Memory::Where::device, elements * sizeof(float)).ok() &&
         halves_.reserve(elements * dtype_size(dtype_));
}

void FloatBucket::place(void* buffer, Input& input) noexcept {
  const bool copies = half() || device() != nullptr;
  input.gradient = copies ? floats() : static_cast<float*>(buffer);
  input.buffer = device() == nullptr ? buffer
                 : half()            ? halves_.bytes().data()
                                     : floats_.bytes().data();
  input.there = device() != nullptr && !whole_ ? there(buffer) : nullptr;
}

/// Uncompressed parameters, as float32.
std::span<const Copy> FloatBucket::raw_pieces(void* buffer) {
  pieces_.clear();
  for (size_t i = 0; i < layout_->parameters.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    const uint64_t at = layout_->offsets[i];
    if (p.raw) pieces_.push_back({floats() + at, there(buffer) + at, p.count * sizeof(float)});
  }
  return pieces_;
}

Copy FloatBucket::all_of(void* buffer) {
  return {half() ? halves_.bytes().data() : floats_.bytes().data(), buffer,
          layout_->elements * dtype_size(dtype_)};
}

Result<void> FloatBucket::take(void* buffer) {
  Input input;
  place(buffer, input);
  input.dtype = dtype_;
  if (device() == nullptr) {
    widen(*state_, input, layout_->elements);
    return {};
  }
  const device::Staging& staging = device()->staging();
  if (whole_) {
    if (auto moved = residuals_to_host(*state_, *layout_); !moved) return moved;
    const Copy all = all_of(buffer);
    if (auto copied = staging.down({&all, 1}); !copied) return copied;
    widen(*state_, input, layout_->elements);
    return {};
  }
  if (half()) {
    auto widened = device()->widen(there(buffer), buffer, dtype_, layout_->elements);
    if (!widened) return widened;
  }
  return staging.down(raw_pieces(buffer));
}

Result<void> FloatBucket::give(void* buffer) {
  Input input;
  place(buffer, input);
  input.dtype = dtype_;
  if (device() == nullptr) {
    if (!whole_) narrow(*state_, input, layout_->elements);
    return {};
  }
  if (buffer == nullptr) return {};
  const device::Staging& staging = device()->staging();
  if (whole_) {
    const Copy all = all_of(buffer);
    return staging.up({&all, 1});
  }
  if (auto copied = staging.up(raw_pieces(buffer)); !copied || !half()) return copied;
  return device()->narrow(buffer, dtype_, there(buffer), layout_->elements);
}

Result<void> residuals_to_host(const RankState& state, const LayoutView& layout) {
  Result<void> first;
  const auto move = [&](const feedback::Memory& memory) {
    if (memory.home == nullptr) return;
    if (auto moved = memory.home->to_host(); !moved && first) first = std::move(moved);
  };
  for (const uint32_t p : layout.parameters) {
    const RankParameter& parameter = state.parameter(p);
    move(parameter.memory);
    for (const RankPiece& piece : parameter.pieces) move(piece.mean.memory);
  }
  return first;
}

uint32_t keep_bucket(const RankState& state, const LayoutView& layout, void* buffer, DType dtype) {
  const pipeline::DeviceBatches* const device = state.batches().device();
  if (device == nullptr) {
    keep_gradients(state, layout, buffer, dtype);
    return 0;
  }
  (void)residuals_to_host(state, layout);  // an array that is lost fails when it is used
  uint32_t lost = 0;
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const auto* const from = static_cast<const uint8_t*>(buffer);
    const bool kept =
        keep_gradient(state, layout.parameters[i], from + layout.offsets[i] * dtype_size(dtype),
                      dtype, [&](void* to, const void* at, uint64_t bytes) {
                        return device->staging().down(to, at, bytes).ok();
                      });
    if (!kept) ++lost;
  }
  return lost;
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/uncompressed.h"

#include <algorithm>
#include <cmath>

#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/uncompressed/share.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kNoCopy = ~uint64_t{0};

}  // namespace

Uncompressed::Uncompressed(RankState& state, const Layout& layout, StatusRound& status)
    : state_(&state), status_(&status), layout_(&layout), riders_(state, layout) {}

bool Uncompressed::reserve() {
  drained_.resize(layout_->parameters.size());
  copy_.at.resize(layout_->parameters.size(), kNoCopy);
  bool any = false, all = true;
  for (size_t i = 0; i < layout_->parameters.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    const bool opens = state_->model().dense(p.of);
    any = any || (opens && !p.pieces.empty());
    all = all && (opens || (p.pieces.empty() && p.memory.values == nullptr));
    if (p.memory.values == nullptr && !has_residual(p)) continue;
    copy_.at[i] = copy_.floats;
    copy_.floats += p.count;
  }
  whole_ = any && all;
  if (!whole_ && !riders_.joint()) return true;
  riders_.reserve();
  return (!whole_ || copy_.memory.reserve(copy_.floats * sizeof(float))) &&
         told_.reserve(riders_.most_lanes(DType::f32) * sizeof(float));
}

void Uncompressed::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::ready;
  tells_ = tells_ && input.report != nullptr;
  riders_.begin(input);
  trouble_.reset();
  std::fill(drained_.begin(), drained_.end(), uint32_t{0});
  if (input_.failure == nullptr && keeps_gradient() && !copy_gradient())
    trouble_ = Error{Errc::out_of_memory, "out of memory", {}};  // short: needs none itself
  if (trouble_) keep_gradients(*state_, *layout_, input_.gradient, DType::f32);
  if (input_.failure != nullptr || trouble_) return poison();
  if (releases()) add_residuals();
}

/// An all-reduce that fails leaves neither gradient nor sum in its buffer. The memory is taken now,
/// unless settings may come here: uncompressed exchanges of compressed parameters are rare, and it
/// is as large as they are.
bool Uncompressed::copy_gradient() {
  if (!copy_.memory.reserve(copy_.floats * sizeof(float))) return false;
  for (size_t i = 0; i < copy_.at.size(); ++i) {
    if (copy_.at[i] == kNoCopy) continue;
    const uint64_t count = state_->parameter(layout_->parameters[i]).count;
    std::copy_n(input_.gradient + layout_->offsets[i], count, copy_.of(i));
  }
  return true;
}

/// A flush's and a policy's: each ends in its time.
uint32_t Uncompressed::parts_of(size_t i) const noexcept {
  const uint32_t of_law = state_->way(layout_->parameters[i]).parts;
  if (mode_ != Mode::drain) return of_law;
  return of_law == 0 ? parts_ : std::min(parts_, of_law);
}

void Uncompressed::add_residuals() {
  bool any = false;
  for (size_t i = 0; i < copy_.at.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    const uint32_t parts = parts_of(i);
    if (copy_.at[i] == kNoCopy || !has_residual(p) || parts == 0) continue;
    float* const g = input_.gradient + layout_->offsets[i];
    if (!add_share(*state_, p, parts, copy_.of(i), g)) continue;
    drained_[i] = parts;
    any = true;
  }
  if (any) narrow(*state_, input_, layout_->elements);
}

/// Delivered: a residual loses what travelled of it, and keeps what 16 bits rounded off. Where the
/// sum is not finite, which it then is on every rank, nothing was delivered.
void Uncompressed::drop_residuals() {
  riders_.over_absent([&](uint32_t i) {
    const uint64_t at = layout_->offsets[i];
    const uint64_t count = state_->parameter(layout_->parameters[i]).count;
    const uint64_t size = dtype_size(input_.dtype);
    std::fill_n(input_.gradient + at, count, 0.0F);
    std::fill_n(static_cast<uint8_t*>(input_.buffer) + at * size, count * size, uint8_t{0});
    drained_[i] = 0;
  });
  for (size_t i = 0; i < drained_.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    const float* mean = input_.gradient + layout_->offsets[i];
    if (drained_[i] == 0 || !pipeline::scan(*p.codec, mean, p.count).all_finite) continue;
    drop_share(*state_, p, drained_[i], wide_ ? DType::f32 : input_.dtype, copy_.of(i));
    if (drained_[i] == 1 && input_.dtype != DType::f32) state_->note_rest(layout_->parameters[i]);
  }
}

/// A sum cannot carry a message: all ones, a NaN in every type, announce that there is one.
void Uncompressed::poison() {
  std::fill_n(static_cast<uint8_t*>(input_.buffer), layout_->elements * dtype_size(input_.dtype),
              uint8_t{0xFF});
  widen(*state_, input_, layout_->elements);
}

/// Some rank may have failed. The sum is the same on every rank, so all take the same turn.
bool Uncompressed::poisoned() {
  if (layout_->elements == 0) return false;
  if (!wide_) widen(*state_, input_, layout_->elements);
  return !std::isfinite(*input_.gradient);
}

void Uncompressed::drop_copy() {
  if (!whole_) copy_.memory = Arena();
}

Next Uncompressed::emit(std::span<Step> batch) {
  wide_ = input_.dtype != DType::f32 && !state_->model().options().caps.can_sum(input_.dtype);
  // The 16-bit bucket as it is now is sent.
  if (!wide_) widen(*state_, input_, layout_->elements);
  state_->kernels().scale(input_.gradient, 1.0F / static_cast<float>(state_->world()),
                          layout_->elements);
  if (!wide_) narrow(*state_, input_, layout_->elements);
  const DType dtype = wide_ ? DType::f32 : input_.dtype;
  auto* at =
      wide_ ? reinterpret_cast<uint8_t*>(input_.gradient) : static_cast<uint8_t*>(input_.buffer);
  batch[0] = {.kind = StepKind::all_reduce,
              .dtype = dtype,
              .count = layout_->elements,
              .send = at,
              .recv = at};
  phase_ = Phase::summed;
  if (!tells_ && !asks()) return {Verdict::steps, 1};
  uint8_t* const told = told_.bytes().data();
  riders_.put(DType::f32, 1.0F, told);
  const uint64_t lanes = riders_.lanes(DType::f32);
  batch[1] = {.kind = StepKind::all_reduce,
              .dtype = DType::f32,
              .count = lanes,
              .send = told,
              .recv = told};
  return {Verdict::steps, 2};
}

Result<Next> Uncompressed::next(std::span<Step> batch) {
  if (phase_ == Phase::ready) return emit(batch);
  if (phase_ == Phase::summed && (tells_ || asks())) riders_.hear(DType::f32, told_.bytes().data());
  if (phase_ == Phase::summed && poisoned()) {
    phase_ = Phase::status;
    status_->emit(input_, trouble_ ? &*trouble_ : input_.failure, batch[0]);
    return Next{Verdict::steps, 1};
  }
  if (phase_ == Phase::status) {
    if (auto heard = status_->receive(input_); !heard) {
      undo(pipeline::Undo::gradient_lost);
      return std::move(heard).error();
    }
  } else if (phase_ != Phase::summed) {
    return exchange_has_ended();
  }
  return Next{Verdict::delivered, 0};
}

void Uncompressed::settle() {
  phase_ = Phase::idle;
  if (releases()) drop_residuals();
  if (wide_) narrow(*state_, input_, layout_->elements);
  drop_copy();
}

void Uncompressed::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  if (!keeps_gradient() || trouble_ || input_.failure != nullptr) return;
  for (size_t i = 0; i < copy_.at.size(); ++i) {
    if (copy_.at[i] == kNoCopy || why == pipeline::Undo::gradient_travels) continue;
    keep_gradient(*state_, layout_->parameters[i], copy_.of(i));
  }
  drop_copy();
}

}  // namespace laconic::collective

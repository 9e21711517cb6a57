// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/uncompressed/uncompressed.h"

#include <algorithm>
#include <cmath>

#include "collective/exchange/strategy_parts.h"
#include "kernels/cast/cast.h"

namespace laconic::collective {
namespace {

constexpr uint64_t kNoCopy = ~uint64_t{0};

float rounded_to(DType dtype, float x) {
  if (dtype == DType::f16) return f16_to_float(float_to_f16(x));
  if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(x));
  return x;
}

}  // namespace

Uncompressed::Uncompressed(RankState& state, const Layout& layout, Counters& counters,
                           StatusRound& status)
    : state_(&state), counters_(&counters), status_(&status), layout_(&layout), aside_(state) {}

bool Uncompressed::reserve() {
  drained_.resize(layout_->parameters.size());
  copies_.resize(layout_->parameters.size(), kNoCopy);
  for (size_t i = 0; i < layout_->parameters.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    if (p.memory.values == nullptr) continue;
    copies_[i] = copied_;
    copied_ += p.count;
  }
  if (!state_->model().dense()) return true;
  return copy_.reserve(copied_ * sizeof(float)) && aside_.reserve();
}

void Uncompressed::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::ready;
  tells_ = tells_ && input.report != nullptr;
  aside_.begin();
  trouble_.reset();
  std::fill(drained_.begin(), drained_.end(), uint8_t{0});
  if (input_.failure == nullptr && keeps_gradient() && !copy_gradient())
    trouble_ = Error{Errc::out_of_memory, "no memory", {}};  // short: needs none itself
  if (trouble_) keep_gradients(*state_, *layout_, input_.gradient, DType::f32);
  if (input_.failure != nullptr || trouble_) return poison();
  if (mode_ == Mode::drain) add_residuals();
}

/// An all-reduce that fails leaves neither gradient nor sum in its buffer. The memory is taken now,
/// unless settings may come here: uncompressed exchanges of compressed parameters are rare, and it
/// is as large as they are.
bool Uncompressed::copy_gradient() {
  if (!copy_.reserve(copied_ * sizeof(float))) return false;
  auto* copies = reinterpret_cast<float*>(copy_.bytes().data());
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i] == kNoCopy) continue;
    const uint64_t count = state_->parameter(layout_->parameters[i]).count;
    std::copy_n(input_.gradient + layout_->offsets[i], count, copies + copies_[i]);
  }
  return true;
}

void Uncompressed::add_residuals() {
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i] == kNoCopy ||
        state_->parameter(layout_->parameters[i]).memory.residual() == nullptr)
      continue;
    drained_[i] = add_residual(i) ? 1 : 0;
  }
  narrow();
}

/// gradient += residual/parts. A parameter without a local gradient keeps its residual, since DDP
/// may discard the result; so does one whose sum would not be finite.
bool Uncompressed::add_residual(size_t i) {
  const RankParameter& p = state_->parameter(layout_->parameters[i]);
  const pipeline::UnitCodec& codec = *p.codec;
  float* g = input_.gradient + layout_->offsets[i];
  const kernels::Scan scan = pipeline::scan(codec, g, p.count);
  if (!scan.any_nonzero || !scan.all_finite) return false;
  for (const RankPiece& piece : p.pieces) take_owned_residual(piece);
  codec.kernels().axpy(g, part(), p.memory.values, p.count);
  if (pipeline::scan(codec, g, p.count).all_finite) return true;
  std::copy_n(reinterpret_cast<const float*>(copy_.bytes().data()) + copies_[i], p.count, g);
  return false;
}

/// An owner's residual belongs to the mean: it counts `world` times among the ranks' own. One that
/// would overflow stays where it is.
void Uncompressed::take_owned_residual(const RankPiece& piece) {
  if (piece.mean.memory.values == nullptr) return;
  const auto world = static_cast<float>(state_->world());
  const uint64_t count = piece.mean.unit.count;
  const auto sum = [&](uint64_t k) {
    return piece.send.memory.values[k] + world * piece.mean.memory.values[k];
  };
  for (uint64_t k = 0; k < count; ++k) {
    if (!std::isfinite(sum(k))) return;
  }
  for (uint64_t k = 0; k < count; ++k) piece.send.memory.values[k] = sum(k);
  std::fill_n(piece.mean.memory.values, count, 0.0F);
}

/// Delivered: a residual loses what travelled of it, and keeps what 16 bits rounded off. Where the
/// sum is not finite, which it then is on every rank, nothing was delivered.
void Uncompressed::drop_residuals() {
  for (size_t i = 0; i < drained_.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_->parameters[i]);
    const float* mean = input_.gradient + layout_->offsets[i];
    if (drained_[i] == 0 || !pipeline::scan(*p.codec, mean, p.count).all_finite) continue;
    drop_residual(i);
    if (parts_ == 1 && input_.dtype != DType::f32) state_->note_rest(layout_->parameters[i]);
  }
}

void Uncompressed::drop_residual(size_t i) {
  const RankParameter& p = state_->parameter(layout_->parameters[i]);
  const auto* g = reinterpret_cast<const float*>(copy_.bytes().data()) + copies_[i];
  const DType travelled = wide_ ? DType::f32 : input_.dtype;
  const float part = this->part();
  float* const residual = p.memory.values;
  for (uint64_t k = 0; k < p.count; ++k) {
    const float share = part * residual[k];
    const float out = g[k] + share;
    const float rest = residual[k] - share;
    residual[k] = travelled == DType::f32 ? rest : rest + (out - rounded_to(travelled, out));
  }
  // Everything goes out, and momentum is 0 where something was sent.
  if (p.memory.momentum != nullptr) std::fill_n(p.memory.momentum, p.count, 0.0F);
}

/// A sum cannot carry a message: all ones, a NaN in every type, announce that there is one.
void Uncompressed::poison() {
  std::fill_n(static_cast<uint8_t*>(input_.buffer), layout_->elements * dtype_size(input_.dtype),
              uint8_t{0xFF});
  widen();
}

/// Some rank may have failed. The sum is the same on every rank, so all take the same turn.
bool Uncompressed::poisoned() {
  if (layout_->elements == 0) return false;
  if (!wide_) widen();
  return !std::isfinite(*input_.gradient);
}

void Uncompressed::widen() {
  if (input_.dtype == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state_->isa());
  kernels::widen(casts, input_.dtype, input_.gradient, input_.buffer, layout_->elements);
}

void Uncompressed::narrow() {
  if (input_.dtype == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state_->isa());
  kernels::narrow(casts, input_.dtype, input_.buffer, input_.gradient, layout_->elements);
}

void Uncompressed::drop_copy() {
  if (!state_->model().dense()) copy_ = Arena();
}

Next Uncompressed::emit(std::span<Step> batch) {
  const uint64_t world = state_->world();
  wide_ = input_.dtype != DType::f32 && !state_->model().options().caps.can_sum(input_.dtype);
  if (!wide_) widen();  // what a 16-bit bucket holds by now is what travels
  state_->kernels().scale(input_.gradient, 1.0F / static_cast<float>(world), layout_->elements);
  if (!wide_) narrow();
  const DType dtype = wide_ ? DType::f32 : input_.dtype;
  auto* at =
      wide_ ? reinterpret_cast<uint8_t*>(input_.gradient) : static_cast<uint8_t*>(input_.buffer);
  batch[0] = {.kind = StepKind::all_reduce,
              .dtype = dtype,
              .count = layout_->elements,
              .send = at,
              .recv = at};
  counters_->wire_bytes += 2 * layout_->elements * dtype_size(dtype) * (world - 1) / world;
  ++counters_->rounds;
  phase_ = Phase::summed;
  if (!tells_) return {Verdict::steps, 1};
  aside_.emit(input_, batch[1], *counters_);
  return {Verdict::steps, 2};
}

Result<Next> Uncompressed::next(std::span<Step> batch) {
  if (phase_ == Phase::ready) return emit(batch);
  if (phase_ == Phase::summed && tells_) aside_.hear(input_);
  if (phase_ == Phase::summed && poisoned()) {
    phase_ = Phase::status;
    status_->emit(input_, trouble_ ? &*trouble_ : input_.failure, batch[0], *counters_);
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

void Uncompressed::finish() {
  phase_ = Phase::idle;
  if (mode_ == Mode::drain) drop_residuals();
  if (wide_) narrow();
  drop_copy();
}

void Uncompressed::undo(pipeline::Undo) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  if (!keeps_gradient() || trouble_ || input_.failure != nullptr) return;
  const auto* copies = reinterpret_cast<const float*>(copy_.bytes().data());
  for (size_t i = 0; i < copies_.size(); ++i) {
    if (copies_[i] == kNoCopy) continue;
    keep_gradient(*state_, layout_->parameters[i], copies + copies_[i]);
  }
  drop_copy();
}

}  // namespace laconic::collective

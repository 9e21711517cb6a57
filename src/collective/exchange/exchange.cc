// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/exchange.h"

#include <algorithm>
#include <cmath>

#include "kernels/cast/cast.h"

namespace laconic::collective {
namespace {

std::unique_ptr<Strategy> make_strategy(RankState& state, const Layout& layout,
                                        Counters& counters) {
  switch (state.model().choice().strategy) {
    case StrategyKind::gather_all:
      return make_gather_all(state, layout, counters);
    case StrategyKind::two_shot:
      return make_two_shot(state, layout, counters);
    case StrategyKind::native_sum:
    case StrategyKind::automatic:
      break;
  }
  return make_native_sum(state, layout, counters);
}

}  // namespace

Exchange::Exchange(RankState& state, Layout layout, Counters& counters)
    : state_(&state),
      counters_(&counters),
      layout_(std::move(layout)),
      strategy_(make_strategy(state, layout_, counters)),
      status_(state) {}

Exchange::~Exchange() = default;

float* Exchange::gradient() noexcept {
  return bucket_.dtype == DType::f32 ? static_cast<float*>(bucket_.buffer)
                                     : reinterpret_cast<float*>(wide_.bytes().data());
}

void Exchange::begin(const Bucket& bucket, uint32_t sequence) {
  bucket_ = bucket;
  sequence_ = sequence;
  failure_.reset();
  fell_back_ = false;
  phase_ = Phase::begun;
  const bool widens = bucket.dtype != DType::f32;
  out_of_memory_ =
      (widens && !wide_.reserve(layout_.elements * sizeof(float))) || !status_.reserve();
}

void Exchange::fail(Error error) { failure_ = std::move(error); }

void Exchange::start() {
  const bool local = failure_.has_value();
  if (!local) widen();
  if (!bucket_.flush && !bucket_.raw) {
    phase_ = Phase::strategy;
    strategy_->begin(input());
    return;
  }
  phase_ = Phase::raw;
  if (local) {
    poison();
  } else if (bucket_.flush) {
    add_residuals();
  }
}

Input Exchange::input() noexcept {
  return {gradient(), bucket_.step, sequence_, bucket_.index, failure_ ? &*failure_ : nullptr};
}

/// An engine's sum cannot carry a sentence: all ones, a NaN in every type, says that there is one.
void Exchange::poison() {
  std::fill_n(static_cast<uint8_t*>(bucket_.buffer), layout_.elements * dtype_size(bucket_.dtype),
              uint8_t{0xFF});
  widen();
}

/// Some rank may have failed. The sum is the same on every rank, so all take the same turn.
bool Exchange::poisoned() {
  if (layout_.elements == 0) return false;
  if (!raw_wide_) widen();
  return !std::isfinite(*gradient());
}

Result<uint32_t> Exchange::after_raw(transport::Step& step) {
  if (!fell_back_ && poisoned()) {
    phase_ = Phase::status;
    status_.emit(input(), step, *counters_);
    return uint32_t{1};
  }
  phase_ = Phase::idle;
  finish_raw();
  return uint32_t{0};
}

Result<uint32_t> Exchange::after_status() {
  phase_ = Phase::idle;
  if (auto heard = status_.receive(input()); !heard) return std::move(heard).error();
  finish_raw();
  return uint32_t{0};
}

Result<uint32_t> Exchange::next(std::span<transport::Step> batch) {
  if (phase_ == Phase::idle)
    return Error{Errc::exchange_order, "next() after the end of an exchange", {}};
  if (out_of_memory_) {
    phase_ = Phase::idle;
    return Error{Errc::out_of_memory, "no memory to widen a bucket", "use smaller buckets"};
  }
  if (phase_ == Phase::begun) {
    start();
    if (phase_ == Phase::raw) return emit_raw(batch[0]).steps;
  }
  if (phase_ == Phase::raw) return after_raw(batch[0]);
  if (phase_ == Phase::status) return after_status();
  auto result = strategy_->next(batch);
  if (!result) {
    phase_ = Phase::idle;
    return std::move(result).error();
  }
  if (result->verdict == Verdict::steps) return result->steps;
  if (result->verdict == Verdict::take_raw) {
    fell_back_ = true;
    phase_ = Phase::raw;
    return emit_raw(batch[0]).steps;
  }
  narrow();
  phase_ = Phase::idle;
  return uint32_t{0};
}

void Exchange::abort() {
  if (phase_ == Phase::strategy) strategy_->put_back();
  phase_ = Phase::idle;  // a flush keeps its sums in the residuals until it is delivered
}

void Exchange::widen() {
  if (bucket_.dtype == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state_->codec().isa());
  kernels::widen(casts, bucket_.dtype, gradient(), bucket_.buffer, layout_.elements);
}

void Exchange::narrow() {
  const auto& casts = kernels::cast_kernels(state_->codec().isa());
  if (bucket_.dtype == DType::bf16)
    casts.narrow_bf16(bucket_.buffer, 1.0F, gradient(), layout_.elements);
  if (bucket_.dtype == DType::f16)
    casts.narrow_f16(bucket_.buffer, 1.0F, gradient(), layout_.elements, false);
}

/// Flush: what goes out is gradient + residual + world · owner's residual (the owner's belongs to
/// the mean). It stays in the residual until delivery. A parameter without a local gradient keeps
/// its residual: DDP may discard the result.
void Exchange::add_residuals() {
  const pipeline::UnitCodec& codec = state_->codec();
  flushed_.assign(layout_.parameters.size(), 0);
  for (size_t i = 0; i < layout_.parameters.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_.parameters[i]);
    float* g = gradient() + layout_.offsets[i];
    if (p.residual == nullptr) continue;
    const kernels::Scan scan = pipeline::scan(codec, g, p.count);
    if (!scan.any_nonzero || !scan.all_finite) continue;
    flushed_[i] = 1;
    pipeline::add_to(codec, p.residual, g, p.count);
    for (const RankPiece& piece : p.pieces) {
      if (piece.mean.residual == nullptr) continue;
      codec.kernels().axpy(piece.send.residual, static_cast<float>(state_->world()),
                           piece.mean.residual, piece.mean.unit.count);
      std::fill_n(piece.mean.residual, piece.mean.unit.count, 0.0F);
    }
    std::copy_n(p.residual, p.count, g);
  }
  narrow();
}

/// Delivered: a residual loses exactly what travelled (all of it in float32, all but the rounding
/// in 16 bits). Where the sum is not finite, on every rank alike, nothing was delivered.
void Exchange::drop_residuals() {
  const DType travelled = raw_wide_ ? DType::f32 : bucket_.dtype;
  for (size_t i = 0; i < layout_.parameters.size(); ++i) {
    const RankParameter& p = state_->parameter(layout_.parameters[i]);
    if (flushed_[i] == 0) continue;
    if (!pipeline::scan(state_->codec(), gradient() + layout_.offsets[i], p.count).all_finite)
      continue;
    const std::span<float> residual(p.residual, p.count);
    for (float& e : residual) {
      const float sent = travelled == DType::f32   ? e
                         : travelled == DType::f16 ? f16_to_float(float_to_f16(e))
                                                   : bf16_to_float(float_to_bf16(e));
      e -= sent;
    }
  }
}

Next Exchange::emit_raw(transport::Step& step) {
  const uint64_t world = state_->world();
  raw_wide_ = bucket_.dtype != DType::f32 && !state_->model().options().caps.can_sum(bucket_.dtype);
  const float mean = 1.0F / static_cast<float>(world);
  if (bucket_.dtype == DType::f32 || raw_wide_) {
    state_->codec().kernels().scale(gradient(), mean, layout_.elements);
  } else {
    widen();
    state_->codec().kernels().scale(gradient(), mean, layout_.elements);
    narrow();
  }
  const DType dtype = raw_wide_ ? DType::f32 : bucket_.dtype;
  auto* at =
      raw_wide_ ? reinterpret_cast<uint8_t*>(gradient()) : static_cast<uint8_t*>(bucket_.buffer);
  step = {transport::StepKind::all_reduce, dtype, false, layout_.elements, at, at, {}, {}, {}, {}};
  counters_->wire_bytes += 2 * layout_.elements * dtype_size(dtype) * (world - 1) / world;
  ++counters_->rounds;
  return {Verdict::steps, 1};
}

void Exchange::finish_raw() {
  if (bucket_.flush && !fell_back_) drop_residuals();
  if (raw_wide_) narrow();
}

}  // namespace laconic::collective

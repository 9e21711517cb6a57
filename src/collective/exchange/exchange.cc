// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/exchange.h"

#include <algorithm>

#include "base/hash.h"
#include "collective/exchange/strategy_parts.h"
#include "kernels/cast/cast.h"

namespace laconic::collective {
namespace {

Result<std::unique_ptr<Strategy>> make_strategy(RankState& state, const Layout& layout,
                                                Counters& counters, StatusRound& status) {
  switch (state.model().choice().strategy) {
    case StrategyKind::gather_all:
      return make_gather_all(state, layout, counters);
    case StrategyKind::two_shot:
      return make_two_shot(state, layout, counters);
    case StrategyKind::native_sum:
    case StrategyKind::server_sum:
    case StrategyKind::automatic:
      break;
  }
  return make_native_sum(state, layout, counters, status);
}

/// See Step::tag.
uint32_t tag_of(uint32_t sequence, uint32_t batch, uint32_t index) {
  return (sequence & 0xFFFFFU) << 8U | (batch & 0x3FU) << 2U | index;
}
static_assert(kMaxBatch <= 4);

/// Ranks of which only some report would send lanes that do not add up: their bundles differ.
constexpr uint64_t kReports = 0x5245504F52545321U;

uint64_t hash_of(const Layout& layout, DType dtype) {
  const auto bytes = [](const auto& list) {
    return Bytes(reinterpret_cast<const uint8_t*>(list.data()), list.size() * sizeof(list[0]));
  };
  const uint64_t names = hash64(bytes(layout.parameters), static_cast<uint64_t>(dtype));
  return hash64(bytes(layout.offsets), names ^ layout.elements);
}

}  // namespace

Exchange::Exchange(RankState& state, Layout layout, DType dtype, Counters& counters)
    : state_(&state),
      counters_(&counters),
      layout_(std::move(layout)),
      dtype_(dtype),
      layout_hash_(hash_of(layout_, dtype) ^ (state.model().options().reports ? kReports : 0)),
      status_(state),
      uncompressed_(state, layout_, counters, status_) {}

Result<std::unique_ptr<Exchange>> Exchange::create(RankState& state, Layout layout, DType dtype,
                                                   Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, std::move(layout), dtype, counters));
  if (auto ok = exchange->check_lanes(); !ok) return std::move(ok).error();
  if (auto ok = exchange->reserve(); !ok) return std::move(ok).error();
  auto strategy = make_strategy(state, exchange->layout_, counters, exchange->status_);
  if (!strategy) return std::move(strategy).error();
  exchange->strategy_ = *std::move(strategy);
  return exchange;
}

Result<std::unique_ptr<Exchange>> Exchange::create_spare(RankState& state, Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, {}, DType::f32, counters));
  if (!exchange->status_.reserve()) return no_exchange_memory();
  return exchange;
}

/// A bundle says the length of its lane segment in 32 bits.
Result<void> Exchange::check_lanes() const {
  if (sums_lanes(state_->model().choice().strategy)) return {};
  uint64_t lanes = 0;
  for (const uint32_t p : layout_.parameters) {
    if (state_->parameter(p).raw) lanes += state_->parameter(p).count;
  }
  if (lanes <= kMaxSlotBytes / sizeof(float)) return {};
  return Error{
      Errc::shape_unsupported,
      "bucket: expected at most 2^30 - 4 uncompressed elements, found " + std::to_string(lanes),
      "use smaller buckets or strategy native_sum"};
}

Result<void> Exchange::reserve() {
  const bool widens = dtype_ != DType::f32;
  const uint64_t bytes = std::max<uint64_t>(layout_.elements, 1) * sizeof(float);
  if ((widens && !wide_.reserve(bytes)) || !status_.reserve() || !uncompressed_.reserve())
    return no_exchange_memory();
  for (const uint32_t p : layout_.parameters) {
    const RankParameter& parameter = state_->parameter(p);
    drainable_ = drainable_ || !parameter.pieces.empty() || parameter.memory.values != nullptr;
  }
  return {};
}

float* Exchange::gradient() noexcept {
  return dtype_ == DType::f32 ? static_cast<float*>(bucket_.buffer)
                              : reinterpret_cast<float*>(wide_.bytes().data());
}

Input Exchange::input() noexcept {
  return {.gradient = gradient(),
          .buffer = bucket_.buffer,
          .dtype = dtype_,
          .step = bucket_.step,
          .sequence = sequence_,
          .layout = layout_hash_,
          .bucket = bucket_.index,
          .flush_wish = flush_.wish,
          .report = report_ ? &*report_ : nullptr,
          .failure = failure_ ? &*failure_ : nullptr};
}

uint64_t Exchange::held_bytes() const noexcept {
  return held(layout_.parameters, layout_.offsets, status_, uncompressed_, wide_) +
         (strategy_ ? strategy_->held_bytes() : 0);
}

void Exchange::begin(const Bucket& bucket, uint32_t sequence, const FlushTurn& flush,
                     const OwnReport* report) {
  bucket_ = bucket;
  sequence_ = sequence;
  flush_ = flush;
  report_.reset();
  if (report != nullptr && state_->model().options().reports) report_ = *report;
  reports_heard_ = {};
  failure_.reset();
  batch_ = 0;
  flush_heard_ = 0;
  fell_back_ = false;
  keeps_ = true;
  phase_ = Phase::begun;
}

void Exchange::fail(Error error, bool keep_gradient) {
  failure_ = std::move(error);
  keeps_ = keep_gradient;
}

Result<uint32_t> Exchange::next(std::span<Step> batch) {
  auto steps = advance(batch);
  if (!steps) {
    phase_ = Phase::idle;
    return steps;
  }
  for (uint32_t i = 0; i < *steps; ++i) batch[i].tag = tag_of(sequence_, batch_, i);
  ++batch_;
  return steps;
}

Result<uint32_t> Exchange::advance(std::span<Step> batch) {
  switch (phase_) {
    case Phase::idle:
      return exchange_has_ended();
    case Phase::begun:
    case Phase::enrolling:
      if (!enrolled_) return enroll(batch);
      start();
      break;
    case Phase::strategy:
      break;
  }
  return step_strategy(batch);
}

/// Every rank tells whether it is ready for this layout, and by which state; the same exchange then
/// uses it.
Result<uint32_t> Exchange::enroll(std::span<Step> batch) {
  Input asked = input();
  asked.layout ^= state_->shared_state(layout_);
  if (phase_ == Phase::begun) {
    phase_ = Phase::enrolling;
    status_.emit(asked, failure_ ? &*failure_ : nullptr, batch[0], *counters_);
    return uint32_t{1};
  }
  if (auto heard = status_.receive(asked); !heard) {
    // Every rank has heard of it, this one's own failure included: the others stop here. Of ranks
    // that are not all at the same exchange, every one sees another.
    if (heard.error().code == Errc::peer_failed || heard.error().code == Errc::ranks_disagree ||
        failure_) {
      abort();
      return std::move(heard).error();
    }
    // Damage on the way to this rank: the others go on, and hear of it from the strategy.
    fail(std::move(heard).error());
  }
  enrolled_ = true;
  start();
  return step_strategy(batch);
}

/// A failure of this rank takes the gradient with it: nothing of it will be encoded.
void Exchange::start() {
  phase_ = Phase::strategy;
  const bool drains = flush_.parts != 0 && drainable_;
  if (failure_) keep();
  widen();
  running_ = strategy_.get();
  if (bucket_.raw || drains) {
    uncompressed_.set_mode(bucket_.raw ? Uncompressed::Mode::plain : Uncompressed::Mode::drain,
                           flush_.parts);
    running_ = &uncompressed_;
  }
  running_->begin(input());
}

Result<uint32_t> Exchange::step_strategy(std::span<Step> batch) {
  auto result = running_->next(batch);
  flush_heard_ |= running_->flush_heard();
  if (const HeardReports heard = running_->reports_heard(); result && !heard.reports.empty())
    reports_heard_ = heard;
  if (!result) return std::move(result).error();
  if (result->verdict == Verdict::steps) return result->steps;
  if (result->verdict == Verdict::done) {
    finish();
    // Under a quorum the others may have ended it without this rank, and without hearing of it.
    if (failure_) return *failure_;
    return uint32_t{0};
  }
  fall_back();
  return step_strategy(batch);
}

void Exchange::fall_back() {
  fell_back_ = true;
  uncompressed_.set_mode(Uncompressed::Mode::fallback);
  running_ = &uncompressed_;
  running_->begin(input());
}

void Exchange::finish() {
  phase_ = Phase::idle;
  if (running_ != &uncompressed_) narrow();  // that one has put its sum where it belongs
}

void Exchange::abort() {
  if (phase_ == Phase::strategy) running_->abort();
  if (phase_ == Phase::begun || phase_ == Phase::enrolling) keep();
  phase_ = Phase::idle;
}

void Exchange::keep() {
  if (strategy_ && keeps_ && !bucket_.raw) keep_gradients(*state_, layout_, bucket_.buffer, dtype_);
}

void Exchange::widen() {
  if (dtype_ == DType::f32 || layout_.elements == 0) return;
  const auto& casts = kernels::cast_kernels(state_->codec().isa());
  kernels::widen(casts, dtype_, gradient(), bucket_.buffer, layout_.elements);
}

void Exchange::narrow() {
  if (dtype_ == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state_->codec().isa());
  kernels::narrow(casts, dtype_, bucket_.buffer, gradient(), layout_.elements);
}

}  // namespace laconic::collective

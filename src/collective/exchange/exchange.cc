// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/exchange.h"

#include <algorithm>
#include <numeric>

#include "base/hash.h"
#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/strategy_parts.h"
#include "kernels/cast/cast.h"
#include "wire/datagram.h"

namespace laconic::collective {
namespace {

Result<std::unique_ptr<Strategy>> make_strategy(RankState& state, const Layout& layout,
                                                StrategyKind kind, Counters& counters,
                                                StatusRound& status) {
  switch (kind) {
    case StrategyKind::gather_all:
      return make_gather_all(state, layout, counters);
    case StrategyKind::two_shot:
      return make_two_shot(state, layout, counters);
    case StrategyKind::native_sum:
    case StrategyKind::server_sum:
    case StrategyKind::automatic:
      break;
  }
  return make_sums(state, layout, kind, counters, status);
}

/// See Step::tag.
uint32_t tag_of(uint32_t sequence, uint32_t batch, uint32_t index) {
  return (sequence & 0xFFFFFU) << 8U | (batch & 0x1FU) << 3U | index;
}
static_assert(kMaxBatch <= 8);

/// What a rank sends to others.
uint64_t wire_bytes(const Step& step, uint64_t world) {
  const auto& sends = step.send_counts;
  uint64_t bytes = 0;
  switch (step.kind) {
    case StepKind::all_reduce:
      return 2 * step.count * dtype_size(step.dtype) * (world - 1) / world;  // around a ring
    case StepKind::all_gather:
      return sends[0] * (world - 1);
    case StepKind::all_to_all:
      return std::accumulate(sends.begin(), sends.end(), bytes);  // nothing to itself
    case StepKind::messages:
      for (const Message& m : step.messages) bytes += m.send_bytes;
      return bytes;
    case StepKind::aggregate:
      for (const Contribution& c : step.contributions)
        bytes += wire::kUpHeaderBytes + c.payload.size();
      return bytes;
  }
  return 0;
}

/// Ranks of which only some report would send lanes that do not add up: their bundles differ.
constexpr uint64_t kReports = 0x5245504F52545321U;

uint64_t hash_of(const Layout& layout, DType dtype) {
  const uint64_t names =
      hash64(std::span<const uint32_t>(layout.parameters), static_cast<uint64_t>(dtype));
  return hash64(std::span<const uint64_t>(layout.offsets), names ^ layout.elements);
}

}  // namespace

Exchange::Exchange(RankState& state, Layout layout, DType dtype, Counters& counters)
    : state_(&state),
      counters_(&counters),
      layout_(std::move(layout)),
      dtype_(dtype),
      layout_hash_(hash_of(layout_, dtype) ^ (state.model().options().reports ? kReports : 0)),
      status_(state),
      uncompressed_(state, layout_, status_) {}

Result<std::unique_ptr<Exchange>> Exchange::create(RankState& state, Layout layout, DType dtype,
                                                   Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, std::move(layout), dtype, counters));
  if (state.model().alone()) return exchange;
  if (auto ok = exchange->check_lanes(); !ok) return std::move(ok).error();
  if (auto ok = exchange->reserve(); !ok) return std::move(ok).error();
  const Legs legs(state, exchange->layout_);
  const auto add = [&](Result<std::unique_ptr<Strategy>> strategy) -> Result<void> {
    if (!strategy) return std::move(strategy).error();
    exchange->legs_.push_back({*std::move(strategy)});
    return {};
  };
  for (const StrategyKind kind : legs.kinds()) {
    auto made = add(make_strategy(state, exchange->layout_, kind, counters, exchange->status_));
    if (!made) return std::move(made).error();
  }
  if (!exchange->may_be_dense_in_part()) return exchange;
  if (auto made = add(make_dense_leg(state, exchange->layout_)); !made)
    return std::move(made).error();
  return exchange;
}

/// A law may turn a class to float32 beside another that stays compressed.
bool Exchange::may_be_dense_in_part() const {
  std::optional<uint32_t> first;
  bool opens = false, several = false;
  for (const uint32_t p : layout_.parameters) {
    const RankParameter& parameter = state_->parameter(p);
    if (parameter.pieces.empty()) continue;
    several = several || (first && *first != parameter.of);
    first = parameter.of;
    opens = opens || state_->model().dense(parameter.of);
  }
  return opens && several;
}

Result<std::unique_ptr<Exchange>> Exchange::create_spare(RankState& state, Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, {}, DType::f32, counters));
  if (!exchange->status_.reserve()) return no_exchange_memory();
  return exchange;
}

/// A bundle says the length of its lane segment in 32 bits.
Result<void> Exchange::check_lanes() const {
  const Legs legs(*state_, layout_);
  if (sums_lanes(legs.raw())) return {};
  uint64_t lanes = 0;
  for (const uint32_t p : layout_.parameters) {
    const RankParameter& parameter = state_->parameter(p);
    if (parameter.raw && legs.of(parameter) == legs.raw()) lanes += parameter.count;
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
  uint64_t bytes = held(layout_.parameters, layout_.offsets, status_, uncompressed_, wide_, legs_);
  for (const Leg& leg : legs_) bytes += leg.strategy->held_bytes();
  return bytes;
}

bool Exchange::replan() {
  bool ok = true;
  for (Leg& leg : legs_) ok = leg.strategy->replan() && ok;
  return ok;
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
  trouble_.reset();
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
  for (uint32_t i = 0; i < *steps; ++i) {
    batch[i].tag = tag_of(sequence_, batch_, i);
    counters_->wire_bytes += wire_bytes(batch[i], state_->world());
  }
  counters_->rounds += *steps;
  ++batch_;
  return steps;
}

Result<uint32_t> Exchange::advance(std::span<Step> batch) {
  switch (phase_) {
    case Phase::idle:
      return exchange_has_ended();
    case Phase::begun:
      if (state_->model().alone()) return pass_through();
      [[fallthrough]];
    case Phase::enrolling:
      if (!enrolled_) return enroll(batch);
      start();
      break;
    case Phase::strategy:
      break;
  }
  return step_strategy(batch);
}

/// The mean of one rank's gradient is in the buffer.
Result<uint32_t> Exchange::pass_through() {
  phase_ = Phase::idle;
  if (failure_) return *failure_;
  return uint32_t{0};
}

/// Every rank tells whether it is ready for this layout, and by which state; the same exchange then
/// uses it.
Result<uint32_t> Exchange::enroll(std::span<Step> batch) {
  Input asked = input();
  asked.layout ^= state_->shared_state(layout_);
  if (phase_ == Phase::begun) {
    phase_ = Phase::enrolling;
    status_.emit(asked, failure_ ? &*failure_ : nullptr, batch[0]);
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
  if (bucket_.raw) return start_uncompressed(Uncompressed::Mode::plain);
  if (drains) return start_uncompressed(Uncompressed::Mode::drain);
  if (dense_part(*state_, layout_).all) return start_uncompressed(Uncompressed::Mode::dense);
  running_uncompressed_ = false;
  Input given = input();
  for (Leg& leg : legs_) {
    leg.state = leg.strategy->idle() ? Leg::State::idle : Leg::State::runs;
    if (leg.state == Leg::State::idle) continue;
    leg.strategy->begin(given);
    given.report = nullptr;  // once is enough
  }
}

void Exchange::start_uncompressed(Uncompressed::Mode mode) {
  running_uncompressed_ = true;
  const bool settled = mode == Uncompressed::Mode::drain || mode == Uncompressed::Mode::dense;
  uncompressed_.set_mode(mode, flush_.parts, settled && dense_part(*state_, layout_).all);
  uncompressed_.begin(input());
}

Result<uint32_t> Exchange::step_strategy(std::span<Step> batch) {
  if (!running_uncompressed_) return step_legs(batch);
  auto result = uncompressed_.next(batch);
  flush_heard_ |= uncompressed_.flush_heard();
  if (uncompressed_.reports_heard().reports.size() != 0)
    reports_heard_ = uncompressed_.reports_heard();
  if (!result) return std::move(result).error();
  if (result->verdict == Verdict::steps) return result->steps;
  uncompressed_.finish();
  phase_ = Phase::idle;
  if (failure_) return *failure_;
  return uint32_t{0};
}

/// All legs go to their ends, whatever one of them meets: the other ranks may not have met it, and
/// hear of it from those that are not done.
Result<uint32_t> Exchange::step_legs(std::span<Step> batch) {
  uint32_t steps = 0;
  for (Leg& leg : legs_) {
    if (leg.state != Leg::State::runs) continue;
    auto result = leg.strategy->next(batch.subspan(steps));
    flush_heard_ |= leg.strategy->flush_heard();
    if (const HeardReports heard = leg.strategy->reports_heard();
        result && reports_heard_.reports.empty())
      reports_heard_ = heard;
    if (!result) {
      leg.state = Leg::State::failed;
      if (trouble_) continue;
      trouble_ = std::move(result).error();
      for (Leg& other : legs_) {
        if (other.state == Leg::State::runs) other.strategy->fail(*trouble_);
      }
    } else if (result->verdict == Verdict::steps) {
      steps += result->steps;
    } else {
      const bool raw = result->verdict == Verdict::take_raw;
      leg.state = raw ? Leg::State::raw : Leg::State::delivered;
    }
  }
  return steps != 0 ? steps : end_legs(batch);
}

/// No leg of the bucket counts as delivered unless all are.
Result<uint32_t> Exchange::end_legs(std::span<Step> batch) {
  if (trouble_) {
    undo_legs(pipeline::Undo::gradient_lost);
    return *std::move(trouble_);
  }
  if (std::ranges::any_of(legs_, [](const Leg& leg) { return leg.state == Leg::State::raw; })) {
    undo_legs(pipeline::Undo::gradient_travels);
    fell_back_ = true;
    start_uncompressed(Uncompressed::Mode::fallback);
    return step_strategy(batch);
  }
  for (Leg& leg : legs_) {
    if (leg.state != Leg::State::idle) leg.strategy->finish();
  }
  phase_ = Phase::idle;
  narrow();
  // Under a quorum the others may have ended it without this rank, and without hearing of it.
  if (failure_) return *failure_;
  return uint32_t{0};
}

void Exchange::undo_legs(pipeline::Undo why) {
  for (Leg& leg : legs_) leg.strategy->undo(why);
}

void Exchange::abort() {
  if (phase_ == Phase::strategy && running_uncompressed_)
    uncompressed_.undo(pipeline::Undo::gradient_lost);
  else if (phase_ == Phase::strategy)
    undo_legs(pipeline::Undo::gradient_lost);
  if (phase_ == Phase::begun || phase_ == Phase::enrolling) keep();
  phase_ = Phase::idle;
}

void Exchange::keep() {
  if (!legs_.empty() && keeps_ && !bucket_.raw)
    keep_gradients(*state_, layout_, bucket_.buffer, dtype_);
}

void Exchange::widen() {
  if (dtype_ == DType::f32 || layout_.elements == 0) return;
  const auto& casts = kernels::cast_kernels(state_->isa());
  kernels::widen(casts, dtype_, gradient(), bucket_.buffer, layout_.elements);
}

void Exchange::narrow() {
  if (dtype_ == DType::f32) return;
  const auto& casts = kernels::cast_kernels(state_->isa());
  kernels::narrow(casts, dtype_, bucket_.buffer, gradient(), layout_.elements);
}

}  // namespace laconic::collective

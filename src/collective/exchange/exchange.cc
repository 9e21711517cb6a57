// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/exchange.h"

#include <algorithm>
#include <numeric>

#include "aggregation/protocol/datagram.h"
#include "base/concat.h"
#include "base/hash.h"
#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {
namespace {

Result<std::unique_ptr<Strategy>> make_strategy(RankState& state, const Layout& layout,
                                                StrategyKind kind, Counters& counters,
                                                StatusRound& status) {
  switch (kind) {
    case StrategyKind::gather_all:
      return make_gather_all(state, layout, counters);
    case StrategyKind::two_shot:
      return state.model().options().owner_turns ? make_push_pull(state, layout, counters)
                                                 : make_two_shot(state, layout, counters);
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

/// Bytes that a rank sends to others.
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
        bytes += aggregation::protocol::kUpHeaderBytes + c.payload.size();
      return bytes;
  }
  return 0;
}

/// Of `bytes` that a rank sends, those that leave its host, times the ranks that send as many.
uint64_t port_bytes(const Step& step, uint64_t bytes, const Options& options) {
  const uint64_t world = options.world, behind = std::max<uint64_t>(options.ranks_per_host, 1);
  if (behind >= world) return 0;
  switch (step.kind) {
    case StepKind::all_reduce:  // the ring passes the port once
      return bytes;
    case StepKind::aggregate:  // whose server is elsewhere
      return bytes * behind;
    case StepKind::all_gather:
    case StepKind::all_to_all:
    case StepKind::messages:
      break;
  }
  return bytes * behind * (world - behind) / (world - 1);
}

/// Ranks of which only some report would send lanes that do not add up: their bundles differ.
constexpr uint64_t kReports = 0x5245504F52545321U;

uint64_t hash_of(const Layout& layout, DType dtype) {
  const uint64_t names =
      hash64(std::span<const uint32_t>(layout.parameters), static_cast<uint64_t>(dtype));
  return hash64(std::span<const uint64_t>(layout.offsets), names ^ layout.elements);
}

/// A flush sends such a bucket uncompressed.
bool has_memory(const RankState& state, const Layout& layout) {
  return std::ranges::any_of(layout.parameters, [&](uint32_t p) {
    const RankParameter& parameter = state.parameter(p);
    return !parameter.pieces.empty() || parameter.memory.values != nullptr;
  });
}

/// True if a control policy may send some classes as float32 while others stay compressed.
bool may_be_dense_in_part(const RankState& state, const Layout& layout) {
  std::optional<uint32_t> first;
  bool opens = false, several = false;
  for (const uint32_t p : layout.parameters) {
    const RankParameter& parameter = state.parameter(p);
    if (parameter.pieces.empty()) continue;
    several = several || (first && *first != parameter.of);
    first = parameter.of;
    opens = opens || state.model().dense(parameter.of);
  }
  return opens && several;
}

/// A bundle says the length of its lane segment in 32 bits.
Result<void> check_lanes(const RankState& state, const Layout& layout) {
  const Legs legs(state, layout);
  if (sums_lanes(legs.raw())) return {};
  uint64_t lanes = 0;
  for (const uint32_t p : layout.parameters) {
    const RankParameter& parameter = state.parameter(p);
    if (parameter.raw && legs.of(parameter) == legs.raw()) lanes += parameter.count;
  }
  if (lanes <= kMaxSlotBytes / sizeof(float)) return {};
  return Error{
      Errc::shape_unsupported,
      "bucket: expected at most 2^30 - 4 uncompressed elements, found " + std::to_string(lanes),
      "use smaller buckets or strategy native_sum"};
}

}  // namespace

Exchange::Exchange(RankState& state, Layout layout, DType dtype, Counters& counters)
    : state_(&state),
      counters_(&counters),
      layout_(std::move(layout)),
      dtype_(dtype),
      layout_hash_(hash_of(layout_, dtype) ^ (state.model().options().reports ? kReports : 0)),
      status_(state),
      uncompressed_(state, layout_, status_),
      floats_(state, layout_, dtype) {}

Result<std::unique_ptr<Exchange>> Exchange::create(RankState& state, Layout layout, DType dtype,
                                                   Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, std::move(layout), dtype, counters));
  if (state.model().alone()) return exchange;
  const Layout& of = exchange->layout_;
  if (auto ok = check_lanes(state, of); !ok) return std::move(ok).error();
  if (!exchange->floats_.reserve() || !exchange->status_.reserve() ||
      !exchange->uncompressed_.reserve())
    return no_exchange_memory();
  const auto add = [&](Result<std::unique_ptr<Strategy>> strategy) -> Result<void> {
    if (!strategy) return std::move(strategy).error();
    exchange->legs_.add(*std::move(strategy));
    return {};
  };
  const Legs legs(state, of);
  for (const StrategyKind kind : legs.kinds()) {
    if (auto made = add(make_strategy(state, of, kind, counters, exchange->status_)); !made)
      return std::move(made).error();
  }
  if (!may_be_dense_in_part(state, of)) return exchange;
  if (auto made = add(make_dense_leg(state, of)); !made) return std::move(made).error();
  return exchange;
}

Result<std::unique_ptr<Exchange>> Exchange::create_spare(RankState& state, Counters& counters) {
  std::unique_ptr<Exchange> exchange(new Exchange(state, {}, DType::f32, counters));
  if (!exchange->status_.reserve()) return no_exchange_memory();
  return exchange;
}

/// The message of a failure counts the gradients that are lost.
void Exchange::Given::keep(const RankState& state, const Layout& layout) {
  if (!keeps || bucket.raw) return;
  const uint32_t lost = keep_bucket(state, layout, bucket.buffer, bucket.dtype);
  if (lost == 0 || !failure) return;
  failure->message = concat(
      {failure->message, "; the gradients of ", std::to_string(lost), " parameters are lost"});
}

Input Exchange::input() noexcept {
  Input input{.dtype = dtype_,
              .step = given_.bucket.step,
              .sequence = given_.sequence,
              .layout = layout_hash_,
              .bucket = given_.bucket.index,
              .flush_request = given_.flush.request,
              .report = given_.report ? &*given_.report : nullptr,
              .failure = given_.failure ? &*given_.failure : nullptr};
  floats_.place(given_.bucket.buffer, input);
  return input;
}

void Exchange::prepare(const Bucket& bucket, uint32_t sequence, const FlushTurn& flush,
                       const OwnReport* report) {
  given_ = {bucket, sequence, flush, {}, {}};
  if (report != nullptr && state_->model().options().reports) given_.report = *report;
  heard_ = {};
  batch_ = 0;
  stage_ = Stage::prepared;
}

void Exchange::fail(Error error, bool keep_gradient) {
  given_.failure = std::move(error);
  given_.keeps = keep_gradient;
}

Result<uint32_t> Exchange::next(std::span<Step> batch) {
  auto steps = advance(batch);
  if (!steps || *steps == 0) {
    if (!steps || !parked()) stage_ = Stage::idle;
    return steps;
  }
  for (uint32_t i = 0; i < *steps; ++i) {
    batch[i].tag = tag_of(given_.sequence, batch_, i);
    const uint64_t bytes = wire_bytes(batch[i], state_->world());
    counters_->wire_bytes += bytes;
    counters_->port_bytes += port_bytes(batch[i], bytes, state_->model().options());
  }
  counters_->rounds += *steps;
  ++batch_;
  return steps;
}

Result<uint32_t> Exchange::advance(std::span<Step> batch) {
  switch (stage_) {
    case Stage::idle:
    case Stage::parked:
      return exchange_has_ended();
    case Stage::prepared:
      if (state_->model().alone()) return given_.end();  // the mean of one rank's gradient is there
      [[fallthrough]];
    case Stage::enrolling:
      if (!enrolled_) return enroll(batch);
      start();
      break;
    case Stage::legs:
    case Stage::uncompressed:
      break;
  }
  return step(batch);
}

/// Every rank reports whether it is ready for this layout, with a hash of its state; the same
/// exchange then uses the layout.
Result<uint32_t> Exchange::enroll(std::span<Step> batch) {
  Input asked = input();
  asked.layout ^= state_->shared_state(layout_);
  if (stage_ == Stage::prepared) {
    stage_ = Stage::enrolling;
    status_.emit(asked, asked.failure, batch[0]);
    return uint32_t{1};
  }
  if (auto heard = status_.receive(asked); !heard) {
    // Every rank has received the failure, also if it is this rank's own: all stop here. If ranks
    // are at different exchanges, each of them sees a different one.
    if (heard.error().code == Errc::peer_failed || heard.error().code == Errc::ranks_disagree ||
        asked.failure != nullptr) {
      abort();
      return std::move(heard).error();
    }
    // Damaged on the way to this rank only: the others continue, and the strategy reports it to
    // them.
    fail(std::move(heard).error());
  }
  enrolled_ = true;
  start();
  return step(batch);
}

/// A failure of this rank takes the gradient with it: nothing of it will be encoded.
void Exchange::start() {
  using Mode = Uncompressed::Mode;
  if (given_.failure) given_.keep(*state_, layout_);
  if (given_.bucket.raw) return start_uncompressed(Mode::plain);
  if (given_.flush.parts != 0 && has_memory(*state_, layout_))
    return start_uncompressed(Mode::drain);
  if (dense_part(*state_, layout_).all) return start_uncompressed(Mode::dense);
  stage_ = Stage::legs;
  take(false);
  legs_.begin(input());
}

/// This rank fails if it cannot read its gradients.
void Exchange::take(bool whole) {
  floats_.set_whole(whole);
  if (given_.failure) return;
  auto taken = floats_.take(given_.bucket.buffer);
  if (taken) return;
  given_.failure = std::move(taken).error();
  given_.keep(*state_, layout_);
}

void Exchange::start_uncompressed(Uncompressed::Mode mode) {
  using Mode = Uncompressed::Mode;
  stage_ = Stage::uncompressed;
  take(true);
  const bool settled = mode == Mode::drain || mode == Mode::dense;
  uncompressed_.set_mode(mode, given_.flush.parts, settled && dense_part(*state_, layout_).all);
  uncompressed_.begin(input());
}

Result<uint32_t> Exchange::step(std::span<Step> batch) {
  const bool planned = stage_ == Stage::legs;
  Strategy& strategy = planned ? static_cast<Strategy&>(legs_) : uncompressed_;
  auto result = strategy.next(batch);
  heard_.flush = std::max(heard_.flush, strategy.flush_heard());
  if (const auto reports = strategy.reports_heard(); !reports.reports.empty())
    heard_.reports = reports;
  if (!result) return std::move(result).error();
  if (result->verdict == Verdict::steps) return result->steps;
  if (result->verdict == Verdict::take_raw) {
    strategy.undo(pipeline::Undo::gradient_travels);
    heard_.fell_back = true;
    start_uncompressed(Uncompressed::Mode::fallback);
    return step(batch);
  }
  if (result->verdict == Verdict::owner_turn) {
    stage_ = Stage::parked;
    return uint32_t{0};
  }
  if (!planned && turn() != nullptr) {
    given_.drained = true;
    legs_.adopt(input());
    stage_ = Stage::parked;
    return uint32_t{0};
  }
  auto finished = strategy.finish();
  if (finished) finished = floats_.give(given_.bucket.buffer);
  if (!finished) {
    heard_.only_here = true;
    return std::move(finished).error();
  }
  // Under a quorum the others may have completed it without this rank, and without knowing of its
  // failure.
  return given_.end();
}

/// Uncompressed pushes count as delivered only now: a skipped step leaves residuals unchanged.
void Exchange::resume(bool skips, const BundleFailure* failure) {
  if (given_.drained)
    skips ? uncompressed_.undo(pipeline::Undo::gradient_travels) : uncompressed_.settle();
  given_.drained = false;
  floats_.set_whole(false);
  turn()->resume(skips, failure);
  stage_ = Stage::legs;
}

void Exchange::abort() {
  if (stage_ == Stage::legs || parked()) legs_.undo(pipeline::Undo::gradient_lost);
  if (stage_ == Stage::uncompressed || given_.drained)
    uncompressed_.undo(pipeline::Undo::gradient_lost);
  if (stage_ == Stage::prepared || stage_ == Stage::enrolling) given_.keep(*state_, layout_);
  stage_ = Stage::idle;
}

}  // namespace laconic::collective

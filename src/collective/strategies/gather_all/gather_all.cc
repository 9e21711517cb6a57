// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// gather_all: every rank sends its bundle to every rank, in one all-gather.
//
// A unit is a parameter, or a range of one. A payload is the bytes that a codec makes of a unit; a
// bundle is all payloads of one rank for the bucket, after one header. Parameters that no codec
// compresses are in the bundle as float32, its lane segment. Every rank decodes all n bundles and
// adds them in rank order, so all ranks compute the same mean. Of n ranks each sends (n - 1) * S
// bytes for a bundle of S bytes.
//
// Where a codec's lengths vary, the capacity of a bundle is predicted. One that does not fit is
// only a header with its length, and the round is repeated for it. A registered codec may fail
// while it decodes: one more round reports to every rank whether all could decode, and until then
// gradients and residuals do not change.
#include "aggregate/mean.h"
#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/plan/capacity.h"
#include "collective/strategies/gather_all/decoding.h"

namespace laconic::collective {
namespace {

/// Sizes of a step, by rank.
struct Sizes {
  std::vector<uint64_t> send_counts, send_offsets, recv_counts, recv_offsets;
};

class GatherAll final : public Strategy {
 public:
  GatherAll(RankState& state, const Layout& layout, Counters& counters);
  /// False: no memory.
  [[nodiscard]] bool reserve();
  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override;
  Result<void> finish() override;
  void undo(pipeline::Undo why) override;
  [[nodiscard]] bool replan() override;
  [[nodiscard]] bool idle() const noexcept override { return plan_.idle(); }
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return flush_heard_; }
  [[nodiscard]] HeardReports reports_heard() const noexcept override { return reports_.heard(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return held(plan_, *batch_, bounds_, received_, send_, recv_, views_, cursors_, rows_, reports_,
                sizes_.send_counts, sizes_.send_offsets, sizes_.recv_counts, sizes_.recv_offsets,
                decoding_);
  }

 private:
  enum class Phase : uint8_t { idle, send, received, told };
  static constexpr uint8_t kMaxRounds = 2;  // what outgrew its capacity travels once more

  [[nodiscard]] BundleId id(uint32_t rank) const {
    return state_->bundle_id(BundleKind::contribution, rank, input_, round_);
  }
  void encode();
  Next emit(Step& step);
  Result<void> parse_all(bool* overflow, bool* non_finite);
  Result<Next> receive(std::span<Step> batch);
  Result<void> check_all();
  Result<void> decode(pipeline::UnitFloats means);
  void mean_of_lanes();
  void plan_sizes();

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  std::unique_ptr<pipeline::FrameBatch> batch_;
  Capacity capacity_;
  BundleShape shape_;
  uint64_t bound_ = 0;
  std::vector<uint32_t> bounds_;
  Arena send_, recv_;
  std::optional<BundleWriter> writer_;
  std::vector<BundleView> views_;
  std::vector<SlotCursor> cursors_;
  std::vector<pipeline::Received> received_;
  std::vector<const void*> rows_;
  ReportBook reports_;
  Sizes sizes_;
  Decoding decoding_;
  Input input_;
  Phase phase_ = Phase::idle;
  uint8_t round_ = 0;
  uint64_t granted_ = 0;
  uint64_t needed_ = 0;  // by the largest bundle
  uint32_t flush_heard_ = 0;
};

GatherAll::GatherAll(RankState& state, const Layout& layout, Counters& counters)
    : state_(&state),
      counters_(&counters),
      plan_(state, layout, StrategyKind::gather_all),
      batch_(state.batches().frames(state.world())),
      decoding_(state) {
  plan_sizes();
  capacity_ = Capacity(bound_, plan_.exact);
}

void GatherAll::plan_sizes() {
  shape_ = {static_cast<uint32_t>(plan_.units.size()), 0,
            static_cast<uint32_t>(plan_.lanes * sizeof(float))};
  plan_.fill(*batch_);
  decoding_.plan(plan_.units);
  bounds_.clear();
  bound_ = bundle_front_bytes(shape_);
  for (const BucketUnit& u : plan_.units) {
    bounds_.push_back(static_cast<uint32_t>(u.piece->send.plan.round[0].bytes));
    bound_ += bundle_payload_bytes(bounds_.back());
  }
  bound_ = std::max(bound_, kMinCapacity);
}

bool GatherAll::replan() {
  plan_.refill();
  plan_sizes();
  capacity_.rebound(bound_, plan_.exact);
  return reserve();
}

bool GatherAll::reserve() {
  const uint32_t world = state_->world();
  views_.resize(world);
  cursors_.resize(world);
  received_.resize(world);
  rows_.resize(world);
  reports_.reserve(state_->model().options().reports, world);
  for (auto* v :
       {&sizes_.send_counts, &sizes_.send_offsets, &sizes_.recv_counts, &sizes_.recv_offsets})
    v->resize(world);
  return batch_->reserve() && send_.reserve(bound_) && decoding_.reserve() &&
         recv_.reserve(world * round_up(bound_, 64));
}

void GatherAll::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::send;
  round_ = 0;
  flush_heard_ = 0;
  reports_.begin();
  decoding_.begin();
  granted_ = capacity_.bytes();
  batch_->begin(state_->place(input_.step, 0));
  if (input_.failure == nullptr) encode();
}

void GatherAll::encode() {
  writer_.emplace(send_.bytes(), shape_);
  writer_->set_flush(input_.flush_request);
  writer_->set_report(bundle_report(input_.report));
  plan_.over_lanes(0, plan_.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
    std::memcpy(writer_->lanes().data() + lane * sizeof(float), input_.gradient + at,
                count * sizeof(float));
  });
  BundleSink sink(*writer_, *counters_);
  auto encoded = batch_->encode(batch_->all(), plan_.in(input_), sink);
  if (encoded) return;
  keep_all(*batch_, batch_->all(), plan_.in(input_));
  decoding_.fail(std::move(encoded).error());
  input_.failure = decoding_.failure();
}

/// Sent is what the bundle takes where the engine allows it, else all that is granted.
Next GatherAll::emit(Step& step) {
  const BundleId own = id(state_->rank());
  const uint64_t bytes =
      input_.failure != nullptr
          ? write_failure_bundle(own, own_failure(*state_, input_, *input_.failure), send_.bytes())
          : writer_->finish(own, granted_).bytes;
  const uint64_t sending = state_->short_sends() ? bytes : granted_;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    sizes_.send_counts[r] = sending;
    sizes_.recv_counts[r] = granted_;
    sizes_.recv_offsets[r] = r * granted_;
  }
  step = {.kind = StepKind::all_gather,
          .short_sends = state_->short_sends(),
          .send = send_.bytes().data(),
          .recv = recv_.bytes().data(),
          .send_counts = sizes_.send_counts,
          .send_offsets = sizes_.send_offsets,
          .recv_counts = sizes_.recv_counts,
          .recv_offsets = sizes_.recv_offsets};
  phase_ = Phase::received;
  return {Verdict::steps, 1};
}

Result<void> GatherAll::parse_all(bool* overflow, bool* non_finite) {
  uint64_t needed = 0;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const Bytes bytes(recv_.bytes().data() + r * granted_, granted_);
    auto view = parse_bundle(bytes, {id(r), shape_, bounds_});
    if (!view && input_.failure != nullptr) continue;  // it will only receive its own failure
    if (!view) return std::move(view).error();
    if (view->failed) return to_error(view->failure);
    *overflow = *overflow || view->overflow;
    *non_finite = *non_finite || view->non_finite;
    flush_heard_ = std::max(flush_heard_, view->flush);
    reports_.hear(r, view->report, input_.report);
    needed = std::max(needed, view->bytes);
    views_[r] = *view;
  }
  needed_ = needed;
  if (!decoding_.may_fail()) capacity_.saw(needed);  // else when every rank says that it has
  if (*overflow) granted_ = round_up(needed, 64);
  return {};
}

Result<Next> GatherAll::receive(std::span<Step> batch) {
  bool overflow = false;
  bool non_finite = false;
  auto parsed = parse_all(&overflow, &non_finite);
  const bool all_know =
      !decoding_.may_fail() || (!parsed && parsed.error().code == Errc::peer_failed);
  if (!parsed && all_know) return std::move(parsed).error();
  if (parsed && overflow) {
    if (++round_ == kMaxRounds) return too_many_rounds();
    ++counters_->overflow_repeats;
    return emit(batch[0]);
  }
  if (parsed && non_finite) return Next{Verdict::take_raw, 0};
  if (!parsed) {  // damaged on the way here: the others decode, and get the report later
    decoding_.fail(std::move(parsed).error());
  } else if (auto r = check_all(); !r) {
    return std::move(r).error();
  }
  if (!decoding_.may_fail()) return Next{Verdict::delivered, 0};
  if (parsed) {
    if (auto decoded = decode(decoding_.means()); !decoded)
      decoding_.fail(std::move(decoded).error());
  }
  phase_ = Phase::told;
  return decoding_.tell(input_, batch[0]);
}

Result<Next> GatherAll::next(std::span<Step> batch) {
  if (phase_ == Phase::send) return emit(batch[0]);
  if (phase_ == Phase::told) {
    if (auto heard = decoding_.hear(input_); !heard) {
      undo(pipeline::Undo::gradient_lost);
      return std::move(heard).error();
    }
    capacity_.saw(needed_);
    return Next{Verdict::delivered, 0};
  }
  if (phase_ != Phase::received) return exchange_has_ended();
  auto result = receive(batch);
  if (!result) undo(pipeline::Undo::gradient_lost);
  return result;
}

/// All payloads are checked before the first float is written: an error leaves the gradients as
/// they were.
Result<void> GatherAll::check_all() {
  for (uint32_t r = 0; r < state_->world(); ++r)
    received_[r] = {batch_->all(), r, views_[r].slots()};
  return batch_->check(received_);
}

Result<void> GatherAll::decode(pipeline::UnitFloats means) {
  for (uint32_t r = 0; r < state_->world(); ++r) cursors_[r] = views_[r].slots();
  return batch_->mean(batch_->all(), cursors_, means);
}

Result<void> GatherAll::finish() {
  phase_ = Phase::idle;
  const pipeline::UnitFloats means = plan_.in(input_);
  if (!decoding_.may_fail()) {
    if (auto decoded = decode(means); !decoded) return decoded;
  }
  for (uint32_t i = 0; decoding_.may_fail() && i < plan_.units.size(); ++i) {
    const uint64_t count = plan_.units[i].piece->send.unit.count;
    std::copy_n(decoding_.means().of(i), count, means.of(i));
  }
  batch_->commit(batch_->all(), state_->world(), means);
  mean_of_lanes();
  return {};
}

void GatherAll::mean_of_lanes() {
  plan_.over_lanes(0, plan_.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
    for (uint32_t r = 0; r < state_->world(); ++r)
      rows_[r] = views_[r].lanes.data() + lane * sizeof(float);
    aggregate::mean_of_lanes(state_->isa(), rows_, input_.gradient + at, count);
  });
}

/// The report of a failure uses the memory of the payloads.
void GatherAll::fail(const Error& failure) {
  if (phase_ == Phase::idle) return;
  batch_->undo(batch_->all(), plan_.in(input_), pipeline::Undo::gradient_lost);
  input_.failure = &failure;
}

void GatherAll::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  batch_->undo(batch_->all(), plan_.in(input_), why);
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_gather_all(RankState& state, const Layout& layout,
                                                  Counters& counters) {
  auto strategy = std::make_unique<GatherAll>(state, layout, counters);
  if (!strategy->reserve()) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(strategy));
}

}  // namespace laconic::collective

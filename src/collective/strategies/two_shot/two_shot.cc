// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot: the mean is taken by owners, each for its ranges, and comes back encoded again.
//
// A unit is a range of a parameter, and its owner is the rank that takes its mean. A granule is the
// number of elements that a codec encodes together; every parameter of at least n granules is cut
// into n ranges, where n is the number of ranks. A bundle is all payloads of one rank for one
// receiver, after one header. On the way up every rank sends each owner the bundle of its ranges
// (one all-to-all). The owner decodes, adds in rank order and encodes the mean with a residual of
// its own. On the way down it sends that to all ranks (one all-gather), which decode the same
// bytes. Two rounds; a rank sends 2(n - 1)/n * S bytes for payloads of S bytes, whatever the number
// of ranks.
//
// No round carries only sizes. Where lengths are predicted, an owner's bundle repeats the largest
// length that it received, and a payload that exceeded its capacity is sent again.
#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/strategy.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/two_shot/way_down.h"
#include "collective/strategies/two_shot/way_up.h"

namespace laconic::collective {
namespace {

class TwoShot final : public Strategy {
 public:
  TwoShot(RankState& state, const Layout& layout, Counters& counters)
      : rank_(state.rank()),
        counters_(&counters),
        plan_(state, layout, StrategyKind::two_shot),
        shares_(state, plan_),
        up_(state, plan_, shares_, counters),
        down_(state, plan_, shares_, counters) {}
  TwoShot(const TwoShot&) = delete;  // its parts point at each other
  TwoShot& operator=(const TwoShot&) = delete;

  /// False: no memory.
  [[nodiscard]] bool reserve() { return up_.reserve() && down_.reserve(); }

  void begin(const Input& input) override {
    phase_ = Phase::up;
    round_ = 0;
    bucket_ = input.bucket;
    told_.clear();
    if (input.failure != nullptr) told_.note(rank_, input.bucket, *input.failure);
    note(up_.begin(input));
    down_.begin(input);
  }
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override {
    if (phase_ == Phase::idle) return;
    take_back(pipeline::Undo::gradient_lost);
    told_.note(rank_, bucket_, failure);
  }
  Result<void> finish() override {
    phase_ = Phase::idle;
    return down_.finish(up_);
  }
  void undo(pipeline::Undo why) override;
  [[nodiscard]] bool idle() const noexcept override { return plan_.idle(); }
  [[nodiscard]] bool replan() override {
    plan_.refill();
    shares_.assign(plan_);
    up_.replan();
    down_.replan();
    return reserve();
  }
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return down_.flush(); }
  [[nodiscard]] HeardReports reports_heard() const noexcept override { return down_.reports(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return held(plan_, shares_, up_, down_);
  }

 private:
  enum class Phase : uint8_t { idle, up, up_sent, down_sent };
  /// The first contributions may outgrow their capacities, then the means made of them.
  static constexpr uint8_t kMaxRounds = 3;

  Next emit_up(Step& step) {
    up_.emit(round_, told_, step);
    phase_ = Phase::up_sent;
    return {Verdict::steps, 1};
  }
  Next emit_down(Step& step) {
    down_.emit(round_, told_, step);
    phase_ = Phase::down_sent;
    return {Verdict::steps, 1};
  }
  void note(const Result<void>& done) {
    if (!done) told_.note(rank_, bucket_, done.error());
  }
  Next receive_up(Step& step);
  Result<Next> receive_down(Step& step);
  void take_back(pipeline::Undo why) {
    for (uint32_t o = 0; o < shares_.of.size(); ++o) up_.undo(o, why);
    down_.undo();
  }

  uint32_t rank_;
  uint32_t bucket_ = 0;
  Counters* counters_;
  BucketPlan plan_;
  Shares shares_;
  WayUp up_;
  WayDown down_;
  Told told_;
  Phase phase_ = Phase::idle;
  uint8_t round_ = 0;
};

Result<Next> TwoShot::next(std::span<Step> batch) {
  if (phase_ == Phase::up) return emit_up(batch[0]);
  if (phase_ == Phase::up_sent) return receive_up(batch[0]);
  if (phase_ != Phase::down_sent) return exchange_has_ended();
  auto result = receive_down(batch[0]);
  if (!result) undo(pipeline::Undo::gradient_lost);
  return result;
}

Next TwoShot::receive_up(Step& step) {
  const bool complete = up_.receive(told_);
  if (!complete && !told_) up_.stash();
  if (!told_ && !down_.encoded()) {
    if (complete)
      note(down_.encode(up_));
    else
      down_.put_incomplete(up_);
  }
  return emit_down(step);
}

Result<Next> TwoShot::receive_down(Step& step) {
  auto heard = down_.receive(up_);
  if (!heard) return std::move(heard).error();
  if (heard->non_finite) return Next{Verdict::take_raw, 0};
  if (heard->all_delivered) {
    if (auto ok = down_.check(); !ok) return std::move(ok).error();
    return Next{Verdict::delivered, 0};
  }
  if (++round_ == kMaxRounds) return too_many_rounds();
  ++counters_->overflow_repeats;
  down_.stash();
  return heard->up_again ? emit_up(step) : emit_down(step);
}

/// Undoes what this rank did as a sender and as an owner.
void TwoShot::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  take_back(why);
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_two_shot(RankState& state, const Layout& layout,
                                                Counters& counters) {
  auto strategy = std::make_unique<TwoShot>(state, layout, counters);
  if (!strategy->reserve()) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(strategy));
}

}  // namespace laconic::collective

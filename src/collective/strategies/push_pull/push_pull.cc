// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// push_pull: an optimizer steps between two_shot's way up and its way down (3LC, MLSys 2019).
//
// An owner is the rank that takes the mean of a range of a parameter. It holds a master, the
// float32 value of that range; every rank holds a replica, the parameter itself. Push: every rank
// sends each owner its gradients (one all-to-all, way_up.h). Turn: the owner moves its masters by
// the mean; meanwhile the exchange is parked, and the engine has nothing to do for it. Pull: the
// owner encodes master - replica and sends it to all (one all-gather), and every rank adds the same
// bytes to its replica. What a pull does not deliver remains in that difference and needs no
// residual.
//
// Two rounds. Nothing is predicted: capacities are bounds, so no round is ever repeated. Every rank
// takes part in the pull, whatever failed in the push: the pull carries failures that others may
// not know.
#include <algorithm>

#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/push_pull/pull.h"

namespace laconic::collective {
namespace {

class PushPull final : public Strategy, public OwnerTurn {
 public:
  PushPull(RankState& state, const Layout& layout, Counters& counters)
      : state_(&state),
        counters_(&counters),
        plan_(state, layout, StrategyKind::two_shot),
        shares_(state, plan_),
        own_(state, plan_),
        up_(state, plan_, shares_, counters),
        pull_({&state, &plan_, &shares_, &own_}) {}
  PushPull(const PushPull&) = delete;  // its parts point at each other
  PushPull& operator=(const PushPull&) = delete;

  /// False: no memory.
  [[nodiscard]] bool reserve() { return own_.reserve() && up_.reserve() && pull_.reserve(); }

  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  /// The only leg: there are no failures elsewhere.
  void fail(const Error&) override {}
  Result<void> finish() override {
    phase_ = Phase::idle;
    return pull_.finish(up_);
  }
  void undo(pipeline::Undo why) override {
    if (phase_ == Phase::idle) return;
    phase_ = Phase::idle;
    for (uint32_t o = 0; o < state_->world(); ++o) up_.undo(o, why);
    own_.undo(input_.gradient, why);
  }
  /// No policy moves its settings.
  [[nodiscard]] bool replan() override { return true; }
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return pull_.flush(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return held(plan_, shares_, own_, up_, pull_);
  }

  [[nodiscard]] OwnerTurn* owner_turn() noexcept override { return this; }
  [[nodiscard]] bool non_finite() const noexcept override { return non_finite_; }
  [[nodiscard]] const BundleFailure* failure() const noexcept override { return told_.failure(); }
  void lend(std::vector<OwnedRange>& ranges) override {
    if (!told_ && !non_finite_) pull_.lend(ranges);
  }
  [[nodiscard]] double sum_of_squares() override {
    return told_ || non_finite_ ? 0.0 : pull_.sum_of_squares();
  }
  void adopt(const Input& input) override;
  void resume(bool skips, const BundleFailure* failure) override;
  [[nodiscard]] bool skipped() const noexcept override { return pull_.skipped(); }

 private:
  enum class Phase : uint8_t { idle, push, pushed, parked, pull, pulled };
  void note(const Result<void>& done) {
    if (!done) told_.note(state_->rank(), input_.bucket, done.error());
  }
  [[nodiscard]] bool is_finite(bool all) const;
  Next park();
  Result<Next> end();

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  Shares shares_;
  OwnShare own_;
  WayUp up_;
  Pull pull_;
  Told told_;
  Input input_;
  Phase phase_ = Phase::idle;
  bool non_finite_ = false;
};

void PushPull::begin(const Input& input) {
  phase_ = Phase::push;
  input_ = input;
  non_finite_ = false;
  told_.clear();
  if (input.failure != nullptr) told_.note(state_->rank(), input.bucket, *input.failure);
  const uint64_t before = counters_->non_finite_units;
  own_.begin();
  note(up_.begin(input, true, &own_));
  pull_.begin(input);
  // No owner may have its turn before it knows of what any other owner gets.
  if (!told_ && (before != counters_->non_finite_units || !is_finite(false))) up_.mark_non_finite();
}

/// All that is in the buffer, or what encode does not check: lanes, and the units of casts without
/// feedback, which carry NaN and infinity.
bool PushPull::is_finite(bool all) const {
  const auto finite = [&](const pipeline::UnitCodec& codec, uint64_t offset, uint64_t count) {
    return pipeline::scan(codec, input_.gradient + offset, count).all_finite;
  };
  const auto lane = [&](const BucketRaw& r) {
    return finite(*state_->parameter(r.parameter).codec, r.offset, r.count);
  };
  const auto unit = [&](uint32_t i) {
    const RankPiece& piece = *plan_.units[i].piece;
    return (!all && piece.send.memory.values != nullptr) ||
           finite(*piece.codec, plan_.at[i], piece.send.unit.count);
  };
  for (uint32_t i = 0; i < plan_.units.size(); ++i)
    if (!unit(i)) return false;
  return std::ranges::all_of(plan_.raw, lane);
}

Result<Next> PushPull::next(std::span<Step> batch) {
  switch (phase_) {
    case Phase::push:
      up_.emit(0, told_, batch[0]);
      phase_ = Phase::pushed;
      return Next{Verdict::steps, 1};
    case Phase::pushed:
      return park();
    case Phase::pull:
      pull_.emit(told_, batch[0]);
      phase_ = Phase::pulled;
      return Next{Verdict::steps, 1};
    case Phase::pulled:
      return end();
    case Phase::idle:
    case Phase::parked:
      break;
  }
  return exchange_has_ended();
}

Next PushPull::park() {
  if (!up_.receive(told_) && !told_) {
    const Error beyond{Errc::bound_exceeded, "a rank sent more than its bound", {}};
    told_.note(state_->rank(), input_.bucket, beyond);
  }
  non_finite_ = !told_ && up_.received().non_finite;
  if (!told_ && !non_finite_) note(pull_.take_means(up_));
  phase_ = Phase::parked;
  return {Verdict::owner_turn, 0};
}

void PushPull::adopt(const Input& input) {
  input_ = input;
  told_.clear();
  own_.begin();
  note(up_.begin(input, false));
  pull_.begin(input);
  pull_.take_means();
  non_finite_ = !is_finite(true);
  phase_ = Phase::parked;
}

void PushPull::resume(bool skips, const BundleFailure* failure) {
  if (failure != nullptr) told_.note(*failure);
  if (!told_) skips ? pull_.encode_nothing() : pull_.encode(told_);
  phase_ = Phase::pull;
}

/// Updates that an owner sent count as sent, even if other ranks fail.
Result<Next> PushPull::end() {
  auto received = pull_.receive();
  if (received) return Next{Verdict::delivered, 0};
  (void)finish();
  return std::move(received).error();
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_push_pull(RankState& state, const Layout& layout,
                                                 Counters& counters) {
  auto strategy = std::make_unique<PushPull>(state, layout, counters);
  if (!strategy->reserve()) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(strategy));
}

}  // namespace laconic::collective

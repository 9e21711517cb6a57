// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/sums/sums.h"

#include <algorithm>
#include <optional>

#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {
namespace {

using Parts = std::vector<std::unique_ptr<SumPart>>;

static_assert(kMaxFlushSteps >> kWishLanes == 0);

class Sums final : public Strategy {
 public:
  Sums(RankState& state, Parts parts, StatusRound* status)
      : parts_(std::move(parts)), own_status_(state), status_(status) {
    for (const auto& part : parts_) guarded_ = guarded_ || part->guarded();
  }
  Sums(const Sums&) = delete;  // it points at its status
  Sums& operator=(const Sums&) = delete;

  [[nodiscard]] bool reserve() {
    if (status_ == nullptr) status_ = &own_status_;
    if (status_ == &own_status_ && !own_status_.reserve()) return false;
    return std::ranges::all_of(parts_, [](auto& part) { return part->reserve(); });
  }
  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override;
  Result<void> finish() override {
    phase_ = Phase::idle;
    Result<void> first;
    for (auto& part : parts_) {
      if (auto done = part->finish(); !done && first) first = std::move(done);
    }
    return first;
  }
  void undo(pipeline::Undo why) override {
    if (std::exchange(phase_, Phase::idle) != Phase::idle) take_back(why);
  }
  [[nodiscard]] bool replan() override {
    for (auto& part : parts_) part->replan();
    return reserve();
  }
  [[nodiscard]] bool idle() const noexcept override {
    return !parts_.empty() && std::ranges::all_of(parts_, [](auto& part) { return part->idle(); });
  }
  [[nodiscard]] uint32_t flush_heard() const noexcept override {
    return parts_.empty() ? 0 : parts_.back()->riders().flush();
  }
  [[nodiscard]] HeardReports reports_heard() const noexcept override {
    return parts_.empty() ? HeardReports{} : parts_.back()->riders().reports();
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    uint64_t bytes = held(parts_, own_status_);
    for (const auto& part : parts_) bytes += part->held_bytes();
    return bytes;
  }

 private:
  enum class Phase : uint8_t { idle, ready, summed, status };

  void fill();
  bool encode();
  Next emit(std::span<Step> batch);
  Next after_sum(std::span<Step> batch);
  Result<Next> after_status(std::span<Step> batch);
  Next advance(std::span<Step> batch);
  void take_back(pipeline::Undo why);

  Parts parts_;             // the last one carries what rides along
  StatusRound own_status_;  // where others may be in theirs
  StatusRound* status_;
  Input input_;
  std::optional<Error> trouble_;  // of encode, here
  SumRound round_;
  Phase phase_ = Phase::idle;
  bool guarded_ = false;
};

void Sums::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::ready;
  round_ = {0, true};
  for (auto& part : parts_) round_.last = part->begin(input) && round_.last;
  fill();
}

void Sums::fill() {
  if (input_.failure == nullptr && encode()) return;
  for (auto& part : parts_) part->poison(round_);
}

/// False: this rank has failed, and memory has the gradients of all parts.
bool Sums::encode() {
  Result<void> first;
  for (auto& part : parts_) {
    if (auto encoded = part->encode(round_); !encoded && first) first = std::move(encoded);
  }
  if (first) return true;
  take_back(pipeline::Undo::gradient_lost);
  input_.failure = &trouble_.emplace(std::move(first).error());
  return false;
}

Result<Next> Sums::next(std::span<Step> batch) {
  switch (phase_) {
    case Phase::idle:
      return exchange_has_ended();
    case Phase::ready:
      return emit(batch);
    case Phase::summed:
      return after_sum(batch);
    case Phase::status:
      break;
  }
  auto result = after_status(batch);
  if (!result) undo(pipeline::Undo::gradient_lost);
  return result;
}

Next Sums::emit(std::span<Step> batch) {
  uint32_t steps = 0;
  for (auto& part : parts_) steps += part->emit(round_, batch.subspan(steps));
  phase_ = Phase::summed;
  return {Verdict::steps, steps};
}

/// Sums are the same bits on every rank, so all take the same turn here.
Next Sums::after_sum(std::span<Step> batch) {
  bool good = true;
  for (auto& part : parts_) good = part->hear(round_) && good;
  if (good) return advance(batch);
  status_->emit(input_, input_.failure, batch[0]);
  phase_ = Phase::status;
  return {Verdict::steps, 1};
}

Result<Next> Sums::after_status(std::span<Step> batch) {
  if (auto heard = status_->receive(input_); !heard) return std::move(heard).error();
  if (!guarded_) return advance(batch);  // casts carry NaN and infinity as they are
  for (auto& part : parts_) {
    if (round_.last) part->learn();
  }
  return Next{Verdict::take_raw, 0};
}

Next Sums::advance(std::span<Step> batch) {
  uint32_t rounds = 1;
  for (auto& part : parts_) {
    if (input_.failure == nullptr) part->accept(round_);
    rounds = std::max(rounds, part->rounds());
  }
  if (round_.last) return {Verdict::delivered, 0};
  ++round_.number;
  round_.last = round_.number + 1 == rounds;
  fill();
  return emit(batch);
}

void Sums::fail(const Error& failure) {
  if (phase_ == Phase::idle || input_.failure != nullptr) return;
  take_back(pipeline::Undo::gradient_lost);
  input_.failure = &failure;
}

void Sums::take_back(pipeline::Undo why) {
  if (input_.failure != nullptr) return;  // it has sent nothing, or has it back
  for (auto& part : parts_) part->undo(why);
}

}  // namespace

Result<std::unique_ptr<Strategy>> sum_of(RankState& state, Parts parts, StatusRound* status) {
  auto strategy = std::make_unique<Sums>(state, std::move(parts), status);
  if (!strategy->reserve()) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(strategy));
}

Result<std::unique_ptr<Strategy>> make_sums(RankState& state, const Layout& layout,
                                            StrategyKind kind, Counters& counters,
                                            StatusRound& status) {
  const bool by_server = kind == StrategyKind::server_sum;
  const bool codes = by_server ? !layout.parameters.empty()
                               : std::ranges::any_of(layout.parameters, [&](uint32_t p) {
                                   const RankParameter& parameter = state.parameter(p);
                                   return parameter.strategy == kind && has_codes(parameter);
                                 });
  Parts parts;
  if (!by_server) parts.push_back(make_float_lanes(state, layout, counters, codes));
  if (codes) parts.push_back(make_code_lanes(state, layout, kind, counters));
  return sum_of(state, std::move(parts), &status);
}

}  // namespace laconic::collective

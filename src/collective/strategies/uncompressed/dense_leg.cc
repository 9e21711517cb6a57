// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Of a bucket in which laws have turned some classes to float32, and not all: these as lanes of
// float32 in one all-reduce, in the same batch as what the other legs compress. Lanes are copies,
// so that the gradient is there until its mean is.
//     parameters, divided by the number of ranks | wish | reports
#include <algorithm>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/uncompressed/aside.h"
#include "collective/strategies/uncompressed/share.h"

namespace laconic::collective {
namespace {

class DenseLeg final : public Strategy {
 public:
  DenseLeg(RankState& state, const Layout& layout, Counters& counters)
      : state_(&state),
        counters_(&counters),
        status_(state),
        layout_(&layout),
        raw_(Legs(state, layout).raw()),
        aside_(state, layout) {}
  /// False: no memory.
  [[nodiscard]] bool reserve();
  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override;
  void finish() override;
  void undo(pipeline::Undo why) override;
  [[nodiscard]] bool replan() override {
    fill([&](const RankParameter&, uint32_t p) { return state_->way(p).dense; },
         raw_rides_along(*state_, *layout_, raw_));
    return true;
  }
  [[nodiscard]] bool idle() const noexcept override { return idle_; }
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return aside_.wish(); }
  [[nodiscard]] HeardReports reports_heard() const noexcept override { return aside_.reports(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return held(status_, parts_, memory_) + aside_.held_bytes();
  }

 private:
  enum class Phase : uint8_t { idle, ready, summed, status };
  /// A parameter: at `offset` of the bucket, at `lane` of the lanes.
  struct Part {
    uint32_t parameter = 0;
    uint64_t offset = 0;
    uint64_t lane = 0;
    uint32_t released = 0;  // its residual went with it, in so many parts; 0: it did not
  };

  template <class Dense>
  void fill(Dense&& dense, bool raw);
  void encode();
  void poison();
  Next emit(Step& step);
  [[nodiscard]] bool finite();
  void keep();
  [[nodiscard]] float* lanes() noexcept { return reinterpret_cast<float*>(memory_.bytes().data()); }

  RankState* state_;
  Counters* counters_;
  StatusRound status_;  // others may be in theirs
  const Layout* layout_;
  StrategyKind raw_;
  Aside aside_;
  std::vector<Part> parts_;
  uint64_t lanes_ = 0;  // of parameters
  Arena memory_;
  Input input_;
  Phase phase_ = Phase::idle;
  bool idle_ = true;
};

/// dense(parameter, its number): it travels so. `raw`: so do uncompressed parameters.
template <class Dense>
void DenseLeg::fill(Dense&& dense, bool raw) {
  parts_.clear();
  lanes_ = 0;
  idle_ = true;
  for (size_t i = 0; i < layout_->parameters.size(); ++i) {
    const uint32_t p = layout_->parameters[i];
    const RankParameter& parameter = state_->parameter(p);
    const bool rides = parameter.raw && raw && parameter.strategy != StrategyKind::server_sum;
    const bool turned = !parameter.raw && dense(parameter, p);
    if (!rides && !turned) continue;
    parts_.push_back({p, layout_->offsets[i], lanes_, 0});
    lanes_ += parameter.count;
    idle_ = idle_ && !turned;
  }
}

/// For the most that settings may bring here.
bool DenseLeg::reserve() {
  const collective::Model& model = state_->model();
  fill([&](const RankParameter& parameter, uint32_t) { return model.dense(parameter.of); },
       !sums_lanes(raw_));
  aside_.reserve();
  return status_.reserve() && memory_.reserve((lanes_ + aside_.lanes_at_most()) * sizeof(float));
}

void DenseLeg::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::ready;
  aside_.begin(input);
  input_.failure != nullptr ? poison() : encode();
}

void DenseLeg::encode() {
  for (Part& part : parts_) {
    const RankParameter& p = state_->parameter(part.parameter);
    const float* const gradient = input_.gradient + part.offset;
    float* const out = lanes() + part.lane;
    std::copy_n(gradient, p.count, out);
    const uint32_t parts = p.raw ? 0 : state_->way(part.parameter).parts;
    const bool releases = parts != 0 && p.memory.residual() != nullptr;
    part.released = releases && add_share(*state_, p, parts, gradient, out) ? parts : 0;
  }
  state_->kernels().scale(lanes(), 1.0F / static_cast<float>(state_->world()), lanes_);
  aside_.put(input_, reinterpret_cast<uint8_t*>(lanes() + lanes_));
}

/// A sum cannot carry a message: all ones, a NaN, announce that there is one.
void DenseLeg::poison() {
  const uint64_t bytes = (lanes_ + aside_.lanes(input_)) * sizeof(float);
  std::fill_n(memory_.bytes().data(), bytes, uint8_t{0xFF});
}

Next DenseLeg::emit(Step& step) {
  const uint64_t world = state_->world(), count = lanes_ + aside_.lanes(input_);
  uint8_t* const at = memory_.bytes().data();
  step = {
      .kind = StepKind::all_reduce, .dtype = DType::f32, .count = count, .send = at, .recv = at};
  counters_->wire_bytes += 2 * count * sizeof(float) * (world - 1) / world;
  ++counters_->rounds;
  phase_ = Phase::summed;
  return {Verdict::steps, 1};
}

bool DenseLeg::finite() {
  const pipeline::UnitCodec& any = *state_->parameter(parts_.front().parameter).codec;
  return pipeline::scan(any, lanes(), lanes_).all_finite;
}

/// Sums are the same bits on every rank, so all take the same turn here.
Result<Next> DenseLeg::next(std::span<Step> batch) {
  if (phase_ == Phase::ready) return emit(batch[0]);
  if (phase_ == Phase::summed) {
    aside_.hear(input_, reinterpret_cast<const uint8_t*>(lanes() + lanes_));
    if (finite()) return Next{Verdict::delivered, 0};
    phase_ = Phase::status;
    status_.emit(input_, input_.failure, batch[0], *counters_);
    return Next{Verdict::steps, 1};
  }
  if (phase_ != Phase::status) return exchange_has_ended();
  if (auto heard = status_.receive(input_); !heard) {
    undo(pipeline::Undo::gradient_lost);
    return std::move(heard).error();
  }
  return Next{Verdict::take_raw, 0};
}

void DenseLeg::finish() {
  phase_ = Phase::idle;
  aside_.over_absent([&](uint32_t i) {
    const auto part = std::ranges::find(parts_, layout_->parameters[i], &Part::parameter);
    if (part == parts_.end()) return;
    std::fill_n(lanes() + part->lane, state_->parameter(part->parameter).count, 0.0F);
    part->released = 0;
  });
  for (const Part& part : parts_) {
    const RankParameter& p = state_->parameter(part.parameter);
    float* const gradient = input_.gradient + part.offset;
    if (part.released != 0) drop_share(p, part.released, DType::f32, gradient);
    std::copy_n(lanes() + part.lane, p.count, gradient);
  }
}

void DenseLeg::keep() {
  if (input_.failure != nullptr) return;  // it has sent nothing, or has it back
  for (const Part& part : parts_)
    keep_gradient(*state_, part.parameter, input_.gradient + part.offset);
}

void DenseLeg::fail(const Error& failure) {
  if (phase_ == Phase::idle || input_.failure != nullptr) return;
  keep();
  input_.failure = &failure;
  if (phase_ == Phase::ready) poison();
}

void DenseLeg::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  if (why == pipeline::Undo::gradient_lost) keep();
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_dense_leg(RankState& state, const Layout& layout,
                                                 Counters& counters) {
  auto leg = std::make_unique<DenseLeg>(state, layout, counters);
  if (!leg->reserve()) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(leg));
}

}  // namespace laconic::collective

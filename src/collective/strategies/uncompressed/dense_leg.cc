// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Float32 for some parameters of a bucket whose others are compressed.
//
// A class is the parameters of one rule; a leg is what travels of a bucket by one strategy. A
// control policy may have chosen float32 for some classes and not for others: those are this leg.
// It is one all-reduce of float32, in the same batch as the steps of the other legs. Its elements,
// called lanes, are copies, so that the gradient stays until its mean has arrived. In their order:
//     parameters, divided by the number of ranks | flush request | reports
#include <algorithm>

#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/sums/sums.h"
#include "collective/strategies/uncompressed/share.h"

namespace laconic::collective {
namespace {

class DenseLanes final : public SumPart {
 public:
  DenseLanes(RankState& state, const Layout& layout)
      : SumPart(Riders(state, layout)),
        state_(&state),
        layout_(&layout),
        raw_(Legs(state, layout).raw()) {
    // The most that settings may bring here.
    fill([&](const RankParameter& p, uint32_t) { return state.model().dense(p.of); },
         !sums_lanes(raw_));
  }
  [[nodiscard]] bool reserve() override {
    riders_.reserve();
    return memory_.reserve((lanes_ + riders_.most_lanes(DType::f32)) * sizeof(float));
  }
  void replan() override {
    fill([&](const RankParameter&, uint32_t p) { return state_->way(p).dense; },
         raw_rides_along(*state_, *layout_, raw_));
  }
  [[nodiscard]] bool idle() const noexcept override { return idle_; }
  [[nodiscard]] uint64_t held_bytes() const noexcept override {
    return sizeof *this + held(parts_, memory_, riders_);
  }
  bool begin(const Input& input) override {
    gradient_ = input.gradient;
    riders_.begin(input);
    return true;
  }
  Result<void> encode(const SumRound&) override;
  void poison(const SumRound&) override;
  uint32_t emit(const SumRound&, std::span<Step> batch) override;
  bool hear(const SumRound&) override;
  Result<void> finish() override;
  void undo(pipeline::Undo why) override;

 private:
  /// A parameter: at `offset` of the bucket, at `lane` of the lanes.
  struct DenseParameter {
    uint32_t parameter = 0;
    uint64_t offset = 0;
    uint64_t lane = 0;
    uint32_t released = 0;  // its residual was sent with it, in this number of parts; 0: it was not
  };

  template <class Dense>
  void fill(Dense&& dense, bool raw);
  [[nodiscard]] float* lanes() noexcept { return reinterpret_cast<float*>(memory_.bytes().data()); }
  [[nodiscard]] uint8_t* riding() noexcept { return reinterpret_cast<uint8_t*>(lanes() + lanes_); }
  [[nodiscard]] uint64_t all_lanes() const noexcept { return lanes_ + riders_.lanes(DType::f32); }

  RankState* state_;
  const Layout* layout_;
  StrategyKind raw_;
  std::vector<DenseParameter> parts_;
  uint64_t lanes_ = 0;  // of parameters
  Arena memory_;
  float* gradient_ = nullptr;
  bool idle_ = true;
};

/// dense(parameter, its number): it travels so. `raw`: so do uncompressed parameters.
template <class Dense>
void DenseLanes::fill(Dense&& dense, bool raw) {
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

Result<void> DenseLanes::encode(const SumRound&) {
  for (DenseParameter& part : parts_) {
    const RankParameter& p = state_->parameter(part.parameter);
    const float* const gradient = gradient_ + part.offset;
    float* const out = lanes() + part.lane;
    std::copy_n(gradient, p.count, out);
    const uint32_t parts = p.raw ? 0 : state_->way(part.parameter).parts;
    const bool releases = parts != 0 && has_residual(p);
    part.released = releases && add_share(*state_, p, parts, gradient, out) ? parts : 0;
  }
  state_->kernels().scale(lanes(), 1.0F / static_cast<float>(state_->world()), lanes_);
  riders_.put(DType::f32, 1.0F, riding());
  return {};
}

/// A sum cannot carry a message: all ones, a NaN, announce that there is one.
void DenseLanes::poison(const SumRound&) {
  std::fill_n(memory_.bytes().data(), all_lanes() * sizeof(float), uint8_t{0xFF});
}

uint32_t DenseLanes::emit(const SumRound&, std::span<Step> batch) {
  uint8_t* const at = memory_.bytes().data();
  batch[0] = {.kind = StepKind::all_reduce,
              .dtype = DType::f32,
              .count = all_lanes(),
              .send = at,
              .recv = at};
  return 1;
}

bool DenseLanes::hear(const SumRound&) {
  riders_.hear(DType::f32, riding());
  const pipeline::UnitCodec& any = *state_->parameter(parts_.front().parameter).codec;
  return pipeline::scan(any, lanes(), lanes_).all_finite;
}

Result<void> DenseLanes::finish() {
  riders_.over_absent([&](uint32_t i) {
    const auto part = std::ranges::find(parts_, layout_->parameters[i], &DenseParameter::parameter);
    if (part == parts_.end()) return;
    std::fill_n(lanes() + part->lane, state_->parameter(part->parameter).count, 0.0F);
    part->released = 0;
  });
  for (const DenseParameter& part : parts_) {
    const RankParameter& p = state_->parameter(part.parameter);
    float* const gradient = gradient_ + part.offset;
    if (part.released != 0) drop_share(*state_, p, part.released, DType::f32, gradient);
    std::copy_n(lanes() + part.lane, p.count, gradient);
  }
  return {};
}

void DenseLanes::undo(pipeline::Undo why) {
  if (why != pipeline::Undo::gradient_lost) return;
  for (const DenseParameter& part : parts_)
    keep_gradient(*state_, part.parameter, gradient_ + part.offset);
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_dense_leg(RankState& state, const Layout& layout) {
  std::vector<std::unique_ptr<SumPart>> parts;
  parts.push_back(std::make_unique<DenseLanes>(state, layout));
  return sum_of(state, std::move(parts), nullptr);
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// native_sum: the engine's own all-reduce adds what ranks send, and nothing is decoded on the way.
//
// A lane is an element of a payload that can be added to that of another rank: here a float32, half
// or bfloat16. A round is what can be sent before another sum is known: most codecs need one,
// PowerSGD two (P, then Q). Riders are lanes after the others: the flush request, the ranks'
// reports and, with aggregate feedback, which parameters have a gradient.
//
// One all-reduce per round and lane type. Parameters that no codec compresses travel in the first
// round, divided by the number of ranks. The lanes of an all-reduce, in this order:
//     parameters | units | in the first round: riders
#include <algorithm>
#include <array>
#include <cmath>

#include "collective/strategies/sums/sums.h"

namespace laconic::collective {
namespace {

using pipeline::Outcome;

constexpr std::array<DType, 3> kTypes{DType::f32, DType::f16, DType::bf16};

/// All lanes of one type in one round.
struct LaneSum {
  DType type = DType::f32;
  uint64_t lanes = 0;
  uint8_t* begin = nullptr;
  Arena memory;
  [[nodiscard]] uint64_t bytes() const noexcept { return lanes * dtype_size(type); }
  [[nodiscard]] bool reserve() {
    const bool ok = memory.reserve(bytes());
    begin = memory.bytes().data();
    return ok;
  }
};

/// Some of them.
struct LaneSlice {
  LaneSum* sum = nullptr;
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;
  [[nodiscard]] MutBytes lanes() const { return {sum->begin + offset, bytes}; }
  [[nodiscard]] float* floats() const { return reinterpret_cast<float*>(sum->begin + offset); }
};

bool all_finite(const LaneSlice& slice, const pipeline::UnitCodec& codec) {
  const DType type = slice.sum->type;
  if (type == DType::f32)
    return pipeline::scan(codec, slice.floats(), slice.bytes / sizeof(float)).all_finite;
  const MutBytes lanes = slice.lanes();
  for (uint64_t k = 0; k < lanes.size(); k += 2) {
    if (!std::isfinite(load_lane(type, lanes.data() + k))) return false;
  }
  return true;
}

class FloatLanes final : public UnitPart {
 public:
  FloatLanes(RankState& state, const Layout& layout, Counters& counters, bool beside_codes);
  FloatLanes(const FloatLanes&) = delete;  // slices point at sums
  FloatLanes& operator=(const FloatLanes&) = delete;

  [[nodiscard]] bool reserve() override;
  void replan() override {
    units_.replan();
    plan();
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept override;
  bool begin(const Input& input) override;
  Result<void> encode(const SumRound& round) override;
  void poison(const SumRound& round) override;
  uint32_t emit(const SumRound& round, std::span<Step> batch) override;
  bool hear(const SumRound& round) override;
  void accept(const SumRound& round) override;
  Result<void> finish() override;

 private:
  void plan();
  LaneSlice append(uint32_t round, DType type, uint64_t lanes);
  [[nodiscard]] std::span<LaneSum> sums(uint32_t round) {
    return std::span(sums_).subspan(round * kTypes.size(), kTypes.size());
  }
  void encode_parameters();
  class Lanes;
  /// Step::scale takes the mean.
  [[nodiscard]] bool engine_scales() const {
    return in_place_ && parameters_.bytes >= state_->model().options().caps.scales_from;
  }
  [[nodiscard]] float mean() const { return 1.0F / static_cast<float>(state_->world()); }

  RankState* state_;
  Counters* counters_;
  std::array<LaneSum, kMaxRounds * kTypes.size()> sums_;   // by round and type
  std::vector<std::array<LaneSlice, kMaxRounds>> slices_;  // by unit
  LaneSlice parameters_;
  LaneSlice riding_;  // after all other elements: without it a sum ends earlier
  bool beside_codes_;
  bool contiguous_ = false;  // uncompressed parameters only, back to back
  bool in_place_ = false;    // the bucket itself is summed, unless other elements follow
};

FloatLanes::FloatLanes(RankState& state, const Layout& layout, Counters& counters,
                       bool beside_codes)
    : UnitPart(state, {state, layout, StrategyKind::native_sum, counters,
                       [](const RankParameter& p) { return !has_codes(p); }}),
      state_(&state),
      counters_(&counters),
      beside_codes_(beside_codes) {
  for (size_t i = 0; i < sums_.size(); ++i) sums_[i].type = kTypes[i % kTypes.size()];
  plan();
  // Casts (16-bit lanes) without feedback carry NaN and infinity as they are. Of anything else the
  // lanes of a gradient that is not finite mean nothing.
  guarded_ = state.model().feedback() || beside_codes;
  for (const auto& slices : slices_) guarded_ = guarded_ || slices[0].sum->type == DType::f32;
  const BucketPlan& plan = units_.plan();
  contiguous_ = plan.units.empty() && !beside_codes && plan.lanes == layout.elements &&
                std::ranges::all_of(plan.raw, [](auto& r) { return r.offset == r.lane; });
}

LaneSlice FloatLanes::append(uint32_t round, DType type, uint64_t lanes) {
  LaneSum& sum = *std::ranges::find(sums(round), type, &LaneSum::type);
  const LaneSlice slice{&sum, sum.bytes(), lanes * dtype_size(type)};
  sum.lanes += lanes;
  return slice;
}

void FloatLanes::plan() {
  for (LaneSum& sum : sums_) sum.lanes = 0;
  parameters_ = append(0, DType::f32, units_.plan().lanes);
  slices_.resize(units_.size());
  const bool flushes = state_->model().feedback() && units_.size() != 0;
  riders_.carry(flushes && !beside_codes_, !beside_codes_);
  for (uint32_t i = 0; i < units_.size(); ++i) {
    const pipeline::UnitSlot& slot = units_.slot(i);
    for (uint32_t r = 0; r < slot.plan.rounds; ++r) {
      const RoundPlan& round = slot.plan.round[r];
      slices_[i][r] = append(r, round.lane, round.bytes / dtype_size(round.lane));
    }
    if (units_.codec(i).joint(slot.memory))
      riders_.add_joint(i, units_.plan().at[i], slot.unit.count);
  }
  // After the elements that are summed anyway: as float32 if memory is joint.
  riding_ = {};
  const auto first = std::ranges::find_if(sums(0), [](auto& sum) { return sum.lanes != 0; });
  if (first != sums(0).end()) riding_ = append(0, first->type, riders_.most_lanes(first->type));
}

bool FloatLanes::reserve() {
  bool ok = UnitPart::reserve();
  if (contiguous_ && riding_.bytes == 0) return ok;
  for (LaneSum& sum : sums_) ok = ok && sum.reserve();
  return ok;
}

uint64_t FloatLanes::held_bytes() const noexcept {
  uint64_t bytes = sizeof *this + held(units_, riders_, slices_);
  for (const LaneSum& sum : sums_) bytes += held(sum.memory);
  return bytes;
}

bool FloatLanes::begin(const Input& input) {
  units_.begin(input);
  riders_.begin(input);
  if (LaneSum* const sum = riding_.sum; sum != nullptr)
    sum->lanes = riding_.offset / dtype_size(sum->type) + riders_.lanes(sum->type);
  in_place_ = contiguous_ && riders_.slots() == 0;
  LaneSum& first = sums_[0];
  first.begin =
      in_place_ ? reinterpret_cast<uint8_t*>(input.gradient) : first.memory.bytes().data();
  return units_.rounds() == 1;
}

/// Payloads of a round go where they are summed, and sums come from there.
class FloatLanes::Lanes final : public pipeline::PayloadSink, public pipeline::SumSource {
 public:
  Lanes(FloatLanes& part, uint32_t round) : part_(&part), round_(round) {}
  MutBytes room(uint32_t i) override { return part_->slices_[i][round_].lanes(); }
  Bytes put(uint32_t i, const pipeline::UnitEncoded& encoded) override {
    const MutBytes out = room(i);
    SumUnits& units = part_->units_;
    units.count(i, round_, encoded);
    if (encoded.outcome == Outcome::payload)
      return round_ == units.last(i) ? units.keep(i, out) : Bytes{};
    const uint8_t nothing = encoded.outcome == Outcome::zero ? 0 : 0xFF;
    std::ranges::fill(out, nothing);
    return {};
  }
  Term sum(uint32_t i) override {
    return {.payload = part_->slices_[i][part_->units_.last(i)].lanes()};
  }

 private:
  FloatLanes* part_;
  uint32_t round_;
};

Result<void> FloatLanes::encode(const SumRound& round) {
  if (round.number == 0) encode_parameters();
  Lanes lanes(*this, round.number);
  if (auto encoded = units_.encode(round.number, lanes); !encoded) return encoded;
  if (round.number == 0 && riding_.bytes != 0 && !in_place_)
    riders_.put(riding_.sum->type, mean(), riding_.lanes().data());
  return {};
}

void FloatLanes::encode_parameters() {
  const auto& kernels = state_->kernels();
  const BucketPlan& plan = units_.plan();
  float* const gradient = units_.input().gradient;
  if (in_place_) {
    if (!engine_scales()) kernels.scale(gradient, mean(), plan.lanes);
    return;
  }
  auto* const lanes = parameters_.floats();
  plan.over_lanes(0, plan.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
    kernels.mul(lanes + lane, mean(), gradient + at, count);
  });
}

/// All ones is a NaN in every lane type.
void FloatLanes::poison(const SumRound& round) {
  for (LaneSum& sum : sums(round.number)) std::fill_n(sum.begin, sum.bytes(), uint8_t{0xFF});
}

uint32_t FloatLanes::emit(const SumRound& round, std::span<Step> batch) {
  uint32_t steps = 0;
  for (LaneSum& sum : sums(round.number)) {
    if (sum.lanes == 0) continue;
    batch[steps++] = {.kind = StepKind::all_reduce,
                      .dtype = sum.type,
                      .count = sum.lanes,
                      .scale = engine_scales() ? mean() : 1.0F,
                      .send = sum.begin,
                      .recv = sum.begin};
  }
  return steps;
}

bool FloatLanes::hear(const SumRound& round) {
  if (round.number == 0 && riding_.bytes != 0 && !in_place_)
    riders_.hear(riding_.sum->type, riding_.lanes().data());
  for (const LaneSum& sum : sums(round.number)) {
    if (sum.lanes != 0 && !std::isfinite(load_lane(sum.type, sum.begin))) return false;
  }
  for (uint32_t i = 0; guarded_ && i < units_.size(); ++i) {
    if (round.number > units_.last(i)) continue;
    if (!all_finite(slices_[i][round.number], units_.codec(i))) return false;
  }
  return true;
}

void FloatLanes::accept(const SumRound& round) {
  if (round.number == 0) {  // where no rank has a gradient, DDP may discard the mean
    riders_.over_absent([&](uint32_t i) {
      if (units_.undo(i, pipeline::Undo::gradient_travels)) ++counters_->zero_units;
      std::ranges::fill(slices_[i][0].lanes(), uint8_t{0});
    });
  }
  for (uint32_t i = 0; i < units_.size(); ++i) {
    if (round.number < units_.last(i))
      units_.accept(i, round.number, slices_[i][round.number].lanes());
  }
}

Result<void> FloatLanes::finish() {
  if (in_place_) return {};
  const BucketPlan& plan = units_.plan();
  const float* const lanes = parameters_.floats();
  plan.over_lanes(0, plan.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
    std::copy_n(lanes + lane, count, units_.input().gradient + at);
  });
  Lanes sums(*this, 0);
  return units_.finish(sums);
}

}  // namespace

std::unique_ptr<SumPart> make_float_lanes(RankState& state, const Layout& layout,
                                          Counters& counters, bool beside_codes) {
  return std::make_unique<FloatLanes>(state, layout, counters, beside_codes);
}

}  // namespace laconic::collective

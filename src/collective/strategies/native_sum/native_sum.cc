// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// native_sum: payloads that are lanes are summed by the engine's own all-reduce, one per round and
// lane type; uncompressed parameters ride in the first, or (server_sum) beside the codes. Several
// rounds depend on one another (PowerSGD: P, then Q). What has to be agreed on first (agree_max) is
// gathered and reduced here; codes travel by a CodeCarrier: as lanes of int32, or (server_sum) to
// an aggregator.
//
// Trouble has to show in the numbers: a rank whose unit is not finite, or that failed, sends NaN,
// or what the carrier has for it. Every rank sees it in the sum, and only then asks what happened
// (StatusRound).
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/native_sum/code_carrier.h"
#include "collective/strategies/server_sum/values.h"

namespace laconic::collective {
namespace {

constexpr std::array<DType, 3> kLaneTypes{DType::f32, DType::f16, DType::bf16};
/// Behind the types: float32 of which the largest of all ranks is taken.
constexpr uint8_t kAgreed = 3;
constexpr uint8_t kGroups = 4;
/// Codes, which lie with their carrier.
constexpr uint8_t kCodes = 4;

/// All lanes of one type in one round.
struct LaneGroup {
  DType type = DType::f32;
  uint64_t lanes = 0;
  Arena memory;
  [[nodiscard]] uint64_t bytes() const noexcept { return lanes * dtype_size(type); }
  [[nodiscard]] MutBytes span() noexcept { return memory.bytes().first(bytes()); }
};

/// Where a unit's lanes of one round lie.
struct LaneSlice {
  uint8_t group = 0;
  uint64_t offset = 0;  // bytes
  uint64_t bytes = 0;
};

float lane_value(DType type, const uint8_t* p) {
  if (type == DType::f32) return load<float>(p);
  const auto h = load<uint16_t>(p);
  return type == DType::f16 ? f16_to_float(h) : bf16_to_float(h);
}

bool finite_lane(DType type, const uint8_t* p) { return std::isfinite(lane_value(type, p)); }

static_assert(kMaxFlushSteps >> kWishLanes == 0);

class NativeSum final : public Strategy {
 public:
  NativeSum(RankState& state, const Layout& layout, StrategyKind kind, Counters& counters,
            StatusRound& status);
  /// False: no memory.
  [[nodiscard]] bool reserve(const Layout& layout);
  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override;
  void finish() override;
  void undo(pipeline::Undo why) override;
  [[nodiscard]] bool replan() override;
  [[nodiscard]] bool idle() const noexcept override { return plan_.idle(); }
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return flush_heard_; }
  [[nodiscard]] HeardReports reports_heard() const noexcept override { return reports_.heard(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept override;

 private:
  enum class Phase : uint8_t { idle, ready, summed, status };

  void choose_carrier(const Layout& layout, StrategyKind kind);
  void plan_lanes();
  void plan_wish();
  void plan_present();
  void plan_reports();
  [[nodiscard]] bool reserve_lanes();
  [[nodiscard]] bool reserve_agreement();
  LaneGroup& group(uint32_t round, uint8_t index) { return groups_[round * kGroups + index]; }
  /// Does the unit send codes in that round?
  [[nodiscard]] bool codes_now(uint64_t unit, uint32_t round) const {
    return has_codes(unit) && round == last_round(unit);
  }
  [[nodiscard]] bool has_codes(uint64_t unit) const {
    return carrier_ != nullptr && codec_of(unit).spec().codec().table != nullptr;
  }
  [[nodiscard]] const pipeline::UnitCodec& codec_of(uint64_t unit) const {
    return *plan_.units[unit].piece->codec;
  }
  MutBytes lanes_of(uint32_t unit, uint32_t round);
  MutBytes copy_of(uint32_t unit);
  MutBytes room_of(uint32_t unit, uint32_t round) {
    return codes_now(unit, round) ? copy_of(unit) : lanes_of(unit, round);
  }
  std::span<float> asked_ranges() {
    return {reinterpret_cast<float*>(group(0, kAgreed).memory.bytes().data()), values_->size()};
  }
  void start();
  void take(uint32_t unit, uint32_t round, const pipeline::UnitEncoded& encoded);
  void send_nothing(uint32_t unit, uint32_t round);
  [[nodiscard]] Place place(uint32_t unit, uint32_t round) const;
  void encode_first();
  void encode_first_unit(uint32_t i);
  void encode_later();
  void encode_later_unit(uint32_t i);
  void put_wish();
  void hear_wish();
  void put_present();
  void leave_absent();
  void start_reports();
  void put_reports();
  void hear_reports();
  void poison();
  Next emit(std::span<Step> batch);
  Step sum_of(LaneGroup& g);
  Step gathering(LaneGroup& g);
  /// The largest of all ranks' into the group's memory. False: one is not finite.
  bool reduce_agreed(LaneGroup& g);
  Next emit_status(Step& step);
  bool trouble();
  Result<Next> after_sum(std::span<Step> batch);
  Result<Next> after_status(std::span<Step> batch);
  Result<Next> advance(std::span<Step> batch);
  void finish_coded(uint32_t unit);
  /// In the round at hand?
  [[nodiscard]] bool codes_travel() const {
    return carrier_ != nullptr && (folded_ || round_ + 1 == rounds_);
  }
  [[nodiscard]] bool keeps_sent(uint32_t unit) const {
    const pipeline::UnitCodec& codec = codec_of(unit);
    return codec.spec().feedback() && codec.contract().feedback == Feedback::own;
  }
  void keep_sent(uint32_t unit, uint32_t round);
  [[nodiscard]] uint32_t last_round(uint64_t unit) const {
    return plan_.units[unit].piece->send.plan.rounds - 1;
  }
  void take_back(pipeline::Undo why);
  void take_back_unit(uint32_t unit, pipeline::Undo why);
  /// A lane for each joint unit.
  float* present() {
    return reinterpret_cast<float*>(group(0, 0).memory.bytes().data() + present_);
  }

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  WorkMemory memory_;
  uint32_t rounds_ = 1;
  std::array<LaneGroup, kMaxRounds * kGroups> groups_;
  std::unique_ptr<CodeCarrier> carrier_;  // null: no codec sends codes
  std::vector<uint32_t> carrier_unit_;    // by unit: its number there, if it has codes
  uint32_t carrier_units_ = 0;
  bool planned_ = false;          // units are with the carrier,
  bool reports_planned_ = false;  // and so are reports
  std::optional<Values> values_;  // uncompressed parameters, where the carrier takes them
  Arena gathered_;                // one rank's after another
  std::vector<uint64_t> counts_, send_offsets_, recv_offsets_;
  std::vector<uint32_t> first_;  // round of each unit
  std::vector<std::array<LaneSlice, kMaxRounds>> slices_;
  std::vector<pipeline::Outcome> outcomes_;
  std::vector<Bytes> sent_;  // copies of this rank's lanes: the sum overwrites them
  std::vector<uint64_t> sent_offsets_;
  Arena sent_memory_;
  StatusRound* status_;
  Input input_;
  Phase phase_ = Phase::idle;
  uint32_t round_ = 0;
  uint32_t flush_heard_ = 0;
  ReportBook reports_;
  LaneSlice report_;  // of all slots, in round 0; no bytes: the carrier takes them, or nobody
  bool reports_now_ = false;  // in the exchange at hand
  SlotTurn turn_;
  bool wishes_ = false;          // there is a residual to flush: the wish has lanes
  LaneSlice wish_;               // in round 0, unless the carrier takes it
  std::vector<uint32_t> joint_;  // units (UnitCodec::joint): has any rank a gradient?
  uint64_t present_ = 0;         // where round 0 has float32 for it
  bool folded_ = false;          // nobody needs round 0: rounds 0 and 1 travel together
  bool contiguous_ = false;      // uncompressed parameters only, back to back
  bool in_place_ = false;        // so that the bucket is the lanes, unless others lie behind them
  bool engine_scales_ = false;   // in place: Step::scale
  bool guarded_ = false;         // a sum that is not finite must not reach mean, residual or state
  bool keep_sent_ = false;       // of some unit
};

NativeSum::NativeSum(RankState& state, const Layout& layout, StrategyKind kind, Counters& counters,
                     StatusRound& status)
    : state_(&state), counters_(&counters), plan_(state, layout, kind), status_(&status) {
  choose_carrier(layout, kind);
  for (uint32_t r = 0; r < kMaxRounds; ++r) {
    for (uint8_t t = 0; t < kLaneTypes.size(); ++t) group(r, t).type = kLaneTypes[t];
  }
  plan_lanes();
  plan_wish();
  plan_present();
  plan_reports();
  // Casts (16-bit lanes) without feedback carry NaN and infinity as they are. Of anything else the
  // lanes of a gradient that is not finite mean nothing.
  guarded_ = state.model().feedback() || carrier_ != nullptr ||
             std::any_of(slices_.begin(), slices_.end(),
                         [](const auto& s) { return s[0].group == 0 || s[0].group >= kAgreed; });
  for (uint32_t i = 0; i < plan_.units.size(); ++i) keep_sent_ = keep_sent_ || keeps_sent(i);
}

void NativeSum::choose_carrier(const Layout& layout, StrategyKind kind) {
  const bool codes = std::ranges::any_of(plan_.units, [](const BucketUnit& u) {
    return u.piece->codec->spec().codec().table != nullptr;
  });
  if (kind == StrategyKind::server_sum) {
    if (!layout.parameters.empty()) carrier_ = make_granules(*state_, *counters_);
  } else if (codes) {
    carrier_ = make_integer_lanes(*state_);
  }
  if (carrier_ == nullptr || carrier_->values() == nullptr || plan_.raw.empty()) return;
  values_.emplace(*state_, plan_, *carrier_->values(), *counters_);
}

/// What a carrier carries does not move.
bool NativeSum::replan() {
  plan_.refill();
  for (LaneGroup& g : groups_) g.lanes = 0;
  memory_.restart();
  rounds_ = 1;
  wish_ = report_ = {};
  plan_lanes();
  plan_wish();
  plan_present();
  plan_reports();
  return reserve_lanes();
}

void NativeSum::plan_lanes() {
  if (values_) {
    rounds_ = 2;
    group(0, kAgreed).lanes = values_->size();
  } else {
    group(0, 0).lanes = plan_.lanes;
  }
  slices_.resize(plan_.units.size());
  carrier_unit_.resize(plan_.units.size());
  uint32_t coded = 0;
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    const Plan& plan = plan_.units[i].piece->send.plan;
    memory_.plan(plan);
    rounds_ = std::max(rounds_, plan.rounds);
    for (uint32_t r = 0; r < plan.rounds; ++r) {
      const RoundPlan& round = plan.round[r];
      const auto type = std::find(kLaneTypes.begin(), kLaneTypes.end(), round.lane);
      auto index = static_cast<uint8_t>(type - kLaneTypes.begin());
      if (round.kind == RoundKind::agree_max) index = kAgreed;
      if (codes_now(i, r)) {
        slices_[i][r] = {kCodes, 0, round.bytes};
        carrier_unit_[i] = coded++;
        if (planned_) continue;
        carrier_units_ = coded;
        carrier_->add_unit(plan_.units[i].piece->send);
        continue;
      }
      LaneGroup& g = group(r, index);
      slices_[i][r] = {index, g.bytes(), round.bytes};
      g.lanes += round.bytes / dtype_size(g.type);
    }
  }
  first_.resize(plan_.units.size());
  planned_ = true;
}

/// The wish rides behind the first lanes that are summed anyway.
void NativeSum::plan_wish() {
  wishes_ = state_->model().feedback() && (!plan_.units.empty() || values_);
  if (!wishes_ || carrier_ != nullptr) return;
  while (group(0, wish_.group).lanes == 0) ++wish_.group;
  LaneGroup& g = group(0, wish_.group);
  wish_.offset = g.bytes();
  wish_.bytes = kWishLanes * dtype_size(g.type);
  g.lanes += kWishLanes;
}

void NativeSum::plan_present() {
  joint_.clear();
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    if (codec_of(i).joint(plan_.units[i].piece->send.memory)) joint_.push_back(i);
  }
  present_ = group(0, 0).bytes();
  group(0, 0).lanes += joint_.size();
}

/// Behind everything else, so that an exchange without them only ends earlier.
void NativeSum::plan_reports() {
  const auto& options = state_->model().options();
  if (!options.reports) return;
  if (carrier_ != nullptr && reports_planned_) return;
  reports_planned_ = true;
  if (carrier_ != nullptr) return carrier_->add_reports(std::min(options.world, kReportSlots));
  while (report_.group < kAgreed && group(0, report_.group).lanes == 0) ++report_.group;
  if (report_.group == kAgreed) return;
  const LaneGroup& g = group(0, report_.group);
  report_.offset = g.bytes();
  report_.bytes = std::min(options.world, kReportSlots) * report_lanes(g.type) * dtype_size(g.type);
}

/// Are there reports in this exchange, and whose?
void NativeSum::start_reports() {
  reports_.begin();
  reports_now_ = input_.report != nullptr && (carrier_ != nullptr || report_.bytes != 0);
  turn_ = reports_now_ ? slot_turn(state_->world(), input_.report->turn) : SlotTurn{};
  in_place_ = contiguous_ && !reports_now_;
  engine_scales_ =
      in_place_ && plan_.lanes * sizeof(float) >= state_->model().options().caps.scales_from;
  if (report_.bytes == 0) return;
  LaneGroup& g = group(0, report_.group);
  g.lanes = report_.offset / dtype_size(g.type) + turn_.count * report_lanes(g.type);
}

void NativeSum::put_reports() {
  const DType type = carrier_ != nullptr ? DType::i32 : group(0, report_.group).type;
  const uint64_t size = report_lanes(type) * dtype_size(type);
  const MutBytes slots = carrier_ != nullptr
                             ? carrier_->report_room()
                             : group(0, report_.group).span().subspan(report_.offset);
  std::fill(slots.begin(), slots.end(), uint8_t{0});
  const uint32_t mine = state_->rank() - turn_.first;
  if (mine < turn_.count) put_report(type, input_.report->report, slots.data() + mine * size);
}

void NativeSum::hear_reports() {
  const DType type = carrier_ != nullptr ? DType::i32 : group(0, report_.group).type;
  const Bytes slots = carrier_ != nullptr
                          ? carrier_->reports()
                          : Bytes(group(0, report_.group).span()).subspan(report_.offset);
  reports_.hear_lanes(turn_, type, slots.data());
}

bool NativeSum::reserve(const Layout& layout) {
  contiguous_ = plan_.units.empty() && carrier_ == nullptr && plan_.lanes == layout.elements;
  for (const BucketRaw& r : plan_.raw) contiguous_ = contiguous_ && r.offset == r.lane;
  return reserve_lanes();
}

bool NativeSum::reserve_lanes() {
  bool ok = memory_.reserve() && reserve_agreement();
  if (!contiguous_ || report_.bytes != 0) {
    for (LaneGroup& g : groups_) {
      const uint64_t slots = &g == &group(0, report_.group) ? report_.bytes : 0;
      ok = ok && g.memory.reserve(std::max<uint64_t>(g.bytes() + slots, 1));
    }
  }
  reports_.reserve(state_->model().options().reports, state_->world());
  uint64_t copies = 0;
  sent_offsets_.clear();
  for (const auto& s : slices_) {
    sent_offsets_.push_back(copies);
    copies += round_up(s[last_round(sent_offsets_.size() - 1)].bytes, 64);
  }
  if (carrier_ != nullptr) ok = ok && carrier_->reserve();
  if (keep_sent_ || carrier_ != nullptr)
    ok = ok && sent_memory_.reserve(std::max<uint64_t>(copies, 1));
  outcomes_.resize(plan_.units.size());
  sent_.resize(plan_.units.size());
  return ok;
}

bool NativeSum::reserve_agreement() {
  const uint32_t world = state_->world();
  uint64_t most = 0;
  for (uint32_t r = 0; r < rounds_; ++r) most = std::max(most, group(r, kAgreed).bytes());
  if (most == 0) return true;
  counts_.resize(world);
  send_offsets_.assign(world, 0);
  recv_offsets_.resize(world);
  return gathered_.reserve(world * most);
}

uint64_t NativeSum::held_bytes() const noexcept {
  uint64_t lanes = 0;
  for (const LaneGroup& g : groups_) lanes += held(g.memory);
  if (carrier_ != nullptr) lanes += carrier_->held_bytes();
  if (values_) lanes += values_->held_bytes();
  return lanes + held(plan_, memory_, slices_, outcomes_, sent_, sent_offsets_, sent_memory_,
                      gathered_, counts_, send_offsets_, recv_offsets_, first_, carrier_unit_,
                      joint_, reports_);
}

MutBytes NativeSum::copy_of(uint32_t unit) {
  return sent_memory_.bytes().subspan(sent_offsets_[unit], slices_[unit][last_round(unit)].bytes);
}

MutBytes NativeSum::lanes_of(uint32_t unit, uint32_t round) {
  const LaneSlice& s = slices_[unit][round];
  return group(round, s.group).memory.bytes().subspan(s.offset, s.bytes);
}

/// 16-bit sums take the mean before they add, so that finite gradients cannot overflow
/// (pytorch/pytorch#57410).
Place NativeSum::place(uint32_t unit, uint32_t round) const {
  Place p = state_->place(input_.step, 0);
  const uint8_t lanes = slices_[unit][round].group;
  if (lanes != 0 && lanes < kAgreed) p.prescale = 1.0F / static_cast<float>(p.world);
  return p;
}

void NativeSum::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::ready;
  round_ = 0;
  flush_heard_ = 0;
  start_reports();
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  std::fill(outcomes_.begin(), outcomes_.end(), pipeline::Outcome::zero);
  start();
  if (input_.failure != nullptr) {
    poison();
  } else {
    encode_first();
    if (reports_now_) put_reports();
  }
}

/// Which rounds there will be: of the codec state, which is the same on all ranks.
void NativeSum::start() {
  folded_ = carrier_ != nullptr && rounds_ == 2;
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    Work work = memory_.work(i, codec_of(i));
    first_[i] = codec_of(i).start(plan_.units[i].piece->send, work);
    folded_ = folded_ && first_[i] == last_round(i);
  }
  if (carrier_ != nullptr) carrier_->begin(input_.step << 32U ^ input_.sequence, turn_.count);
  if (values_) folded_ = values_->start() && folded_;
}

/// All ones is a NaN in every lane type.
void NativeSum::poison() {
  if (in_place_)
    std::fill_n(reinterpret_cast<uint8_t*>(input_.gradient), group(0, 0).bytes(), uint8_t{0xFF});
  for (uint8_t t = 0; t < kGroups && !in_place_; ++t) {
    const MutBytes lanes = group(round_, t).span();
    std::fill(lanes.begin(), lanes.end(), uint8_t{0xFF});
  }
  if (carrier_ == nullptr) return;
  for (uint32_t i = 0; i < carrier_units_; ++i) carrier_->put_nothing(i);
  carrier_->report_trouble();
}

void NativeSum::encode_first() {
  const auto& kernels = state_->kernels();
  const float mean = 1.0F / static_cast<float>(state_->world());
  if (in_place_) {
    if (!engine_scales_) kernels.scale(input_.gradient, mean, plan_.lanes);
    return;
  }
  if (values_) {
    if (!values_->encode(input_.gradient, asked_ranges())) carrier_->report_trouble();
  } else {
    auto* lanes = reinterpret_cast<float*>(group(0, 0).memory.bytes().data());
    plan_.over_lanes(0, plan_.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
      kernels.mul(lanes + lane, mean, input_.gradient + at, count);
    });
  }
  for (uint32_t i = 0; i < plan_.units.size(); ++i) encode_first_unit(i);
  if (wishes_) put_wish();
  put_present();
}

void NativeSum::put_wish() {
  if (carrier_ != nullptr) return carrier_->put_wish(input_.flush_wish);
  LaneGroup& g = group(0, wish_.group);
  uint8_t* at = g.memory.bytes().data() + wish_.offset;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit) {
    const bool set = (input_.flush_wish >> bit & 1U) != 0;
    const float lane = set ? 1.0F / static_cast<float>(state_->world()) : 0.0F;
    if (g.type == DType::f32) {
      store(at + 4 * bit, lane);
    } else {
      store(at + 2 * bit, g.type == DType::f16 ? float_to_f16(lane) : float_to_bf16(lane));
    }
  }
}

/// A rank that failed has sent NaN: then no rank hears a wish.
void NativeSum::hear_wish() {
  if (carrier_ != nullptr) {
    flush_heard_ = carrier_->wish();
    return;
  }
  LaneGroup& g = group(0, wish_.group);
  const uint8_t* at = g.memory.bytes().data() + wish_.offset;
  for (uint32_t bit = 0; bit < kWishLanes; ++bit) {
    if (lane_value(g.type, at + bit * dtype_size(g.type)) > 0.0F) flush_heard_ |= 1U << bit;
  }
}

void NativeSum::put_present() {
  for (uint32_t k = 0; k < joint_.size(); ++k) {
    const BucketUnit& u = plan_.units[joint_[k]];
    const float* const gradient = input_.gradient + u.offset;
    present()[k] = state_->kernels().any_nonzero(gradient, u.piece->send.unit.count) ? 1.0F : 0.0F;
  }
}

/// Where no rank has a gradient, DDP may discard the mean: nothing counts as sent.
void NativeSum::leave_absent() {
  for (uint32_t k = 0; k < joint_.size(); ++k) {
    const uint32_t i = joint_[k];
    if (present()[k] > 0.0F) continue;
    if (outcomes_[i] == pipeline::Outcome::payload) ++counters_->zero_units;
    take_back_unit(i, pipeline::Undo::gradient_travels);
    send_nothing(i, 0);
  }
}

void NativeSum::encode_first_unit(uint32_t i) {
  const BucketUnit& u = plan_.units[i];
  const uint32_t first = first_[i];
  Work work = memory_.work(i, codec_of(i));
  const pipeline::UnitEncoded encoded = codec_of(i).encode(
      u.piece->send, place(i, first), input_.gradient + u.offset, work, room_of(i, first), first);
  outcomes_[i] = encoded.outcome;
  if (first != 0 && slices_[i][0].group == kAgreed) send_nothing(i, 0);
  if (encoded.residual_reset) ++counters_->residual_resets;
  if (encoded.outcome == pipeline::Outcome::zero) ++counters_->zero_units;
  take(i, first, encoded);
}

/// What a unit's encode gave goes into its lanes of that round.
void NativeSum::take(uint32_t i, uint32_t round, const pipeline::UnitEncoded& encoded) {
  if (encoded.outcome == pipeline::Outcome::zero) return send_nothing(i, round);
  if (encoded.outcome == pipeline::Outcome::non_finite) {
    ++counters_->non_finite_units;
    if (codes_now(i, round)) {
      send_nothing(i, round);
      return carrier_->report_trouble();
    }
    const MutBytes out = lanes_of(i, round);
    std::fill(out.begin(), out.end(), uint8_t{0xFF});
    return;
  }
  if (!codes_now(i, round)) return keep_sent(i, round);
  Work work = memory_.work(i, codec_of(i));
  sent_[i] = copy_of(i);
  carrier_->put(carrier_unit_[i], codec_of(i).spec(), sent_[i], work);
}

void NativeSum::send_nothing(uint32_t i, uint32_t round) {
  if (codes_now(i, round)) return carrier_->put_nothing(carrier_unit_[i]);
  const MutBytes out = lanes_of(i, round);
  std::fill(out.begin(), out.end(), uint8_t{0});
}

/// The engine adds in place; own feedback decodes its own payload of the last round.
void NativeSum::keep_sent(uint32_t i, uint32_t round) {
  if (!keeps_sent(i) || round != last_round(i)) return;
  const MutBytes out = lanes_of(i, round);
  const MutBytes copy = copy_of(i);
  std::copy(out.begin(), out.end(), copy.begin());
  sent_[i] = copy;
}

void NativeSum::encode_later() {
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    if (round_ < plan_.units[i].piece->send.plan.rounds) encode_later_unit(i);
  }
}

void NativeSum::encode_later_unit(uint32_t i) {
  const BucketUnit& u = plan_.units[i];
  if (round_ <= first_[i]) return;  // it began later
  if (outcomes_[i] != pipeline::Outcome::payload) return send_nothing(i, round_);
  Work work = memory_.work(i, codec_of(i));
  take(i, round_,
       codec_of(i).encode_round(u.piece->send, place(i, round_), round_, input_.gradient + u.offset,
                                work, room_of(i, round_)));
}

Step NativeSum::sum_of(LaneGroup& g) {
  uint8_t* at = in_place_ ? reinterpret_cast<uint8_t*>(input_.gradient) : g.memory.bytes().data();
  counters_->wire_bytes += 2 * g.bytes() * (state_->world() - 1) / state_->world();
  return {.kind = StepKind::all_reduce,
          .dtype = g.type,
          .count = g.lanes,
          .scale = engine_scales_ ? 1.0F / static_cast<float>(state_->world()) : 1.0F,
          .send = at,
          .recv = at};
}

Step NativeSum::gathering(LaneGroup& g) {
  std::fill(counts_.begin(), counts_.end(), g.bytes());
  for (uint64_t r = 0; r < recv_offsets_.size(); ++r) recv_offsets_[r] = r * g.bytes();
  counters_->wire_bytes += g.bytes() * (state_->world() - 1);
  return {.kind = StepKind::all_gather,
          .send = g.memory.bytes().data(),
          .recv = gathered_.bytes().data(),
          .send_counts = counts_,
          .send_offsets = send_offsets_,
          .recv_counts = counts_,
          .recv_offsets = recv_offsets_};
}

Next NativeSum::emit(std::span<Step> batch) {
  uint32_t steps = 0;
  for (uint8_t t = 0; t < kGroups; ++t) {
    LaneGroup& g = group(round_, t);
    if (g.lanes == 0 || (t == kAgreed && folded_)) continue;
    batch[steps++] = t == kAgreed ? gathering(g) : sum_of(g);
  }
  if (codes_travel()) {
    batch[steps++] = carrier_->step();
    counters_->wire_bytes += carrier_->wire_bytes();
  }
  counters_->rounds += steps;
  phase_ = Phase::summed;
  return {Verdict::steps, steps};
}

Result<Next> NativeSum::next(std::span<Step> batch) {
  if (phase_ == Phase::ready) return emit(batch);
  if (phase_ == Phase::idle) return exchange_has_ended();
  auto result = phase_ == Phase::summed ? after_sum(batch) : after_status(batch);
  if (!result) undo(pipeline::Undo::gradient_lost);
  return result;
}

bool NativeSum::reduce_agreed(LaneGroup& g) {
  uint8_t* most = g.memory.bytes().data();
  bool finite = true;
  for (uint64_t k = 0; k < g.lanes; ++k) {
    float largest = 0;
    for (uint64_t r = 0; r < state_->world(); ++r) {
      const float x = load<float>(gathered_.bytes().data() + r * g.bytes() + 4 * k);
      finite = finite && std::isfinite(x);
      largest = std::max(largest, x);
    }
    store(most + 4 * k, largest);
  }
  return finite;
}

/// Sums are the same bits on every rank, so all take the same turn here.
bool NativeSum::trouble() {
  bool bad = codes_travel() && carrier_->trouble();
  for (uint8_t t = 0; t < kGroups; ++t) {
    LaneGroup& g = group(round_, t);
    if (g.lanes == 0 || (t == kAgreed && folded_)) continue;
    const uint8_t* first =
        in_place_ ? reinterpret_cast<uint8_t*>(input_.gradient) : g.memory.bytes().data();
    bad = bad || (t == kAgreed ? !reduce_agreed(g) : !finite_lane(g.type, first));
  }
  for (uint32_t i = 0; guarded_ && i < plan_.units.size() && !bad; ++i) {
    if (round_ >= plan_.units[i].piece->send.plan.rounds) continue;
    const uint8_t lanes_group = slices_[i][round_].group;
    if (lanes_group >= kAgreed) continue;
    const DType type = kLaneTypes[lanes_group];
    const MutBytes lanes = lanes_of(i, round_);
    if (type == DType::f32) {
      const auto* values = reinterpret_cast<const float*>(lanes.data());
      bad = !pipeline::scan(codec_of(i), values, lanes.size() / sizeof(float)).all_finite;
    } else {
      for (uint64_t k = 0; k < lanes.size() && !bad; k += 2)
        bad = !finite_lane(type, lanes.data() + k);
    }
  }
  return bad;
}

Result<Next> NativeSum::after_sum(std::span<Step> batch) {
  if (wishes_ && (carrier_ != nullptr ? codes_travel() : round_ == 0)) hear_wish();
  if (reports_now_ && (carrier_ != nullptr ? codes_travel() : round_ == 0)) hear_reports();
  if (trouble()) return emit_status(batch[0]);
  return advance(batch);
}

Result<Next> NativeSum::advance(std::span<Step> batch) {
  const Place p = state_->place(input_.step, 0);
  const bool failed = input_.failure != nullptr;
  if (round_ == 0 && !failed) leave_absent();
  for (uint32_t i = 0; i < plan_.units.size() && !failed; ++i) {
    const pipeline::UnitSlot& slot = plan_.units[i].piece->send;
    if (round_ < first_[i] || round_ + 1 >= slot.plan.rounds) continue;
    Work work = memory_.work(i, codec_of(i));
    codec_of(i).accept(slot, p, round_, lanes_of(i, round_), state_->world(), work);
  }
  if (values_ && round_ == 0 && !folded_ && !failed &&
      !values_->encode_rest(input_.gradient, asked_ranges()))
    carrier_->report_trouble();
  if (folded_) round_ = 1;
  if (++round_ < rounds_) {
    failed ? poison() : encode_later();
    return emit(batch);
  }
  return Next{Verdict::delivered, 0};
}

Next NativeSum::emit_status(Step& step) {
  status_->emit(input_, input_.failure, step, *counters_);
  phase_ = Phase::status;
  return {Verdict::steps, 1};
}

Result<Next> NativeSum::after_status(std::span<Step> batch) {
  if (auto heard = status_->receive(input_); !heard) return std::move(heard).error();
  if (!guarded_) return advance(batch);  // casts carry NaN and infinity as they are
  if (values_ && codes_travel()) values_->learn();
  return Next{Verdict::take_raw, 0};
}

void NativeSum::finish() {
  phase_ = Phase::idle;
  if (in_place_) return;
  if (values_) {
    values_->finish(input_.gradient);
  } else {
    const auto* lanes = reinterpret_cast<const float*>(group(0, 0).memory.bytes().data());
    plan_.over_lanes(0, plan_.lanes, [&](uint64_t at, uint64_t lane, uint64_t count) {
      std::copy_n(lanes + lane, count, input_.gradient + at);
    });
  }
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    if (has_codes(i)) {
      finish_coded(i);
      continue;
    }
    const pipeline::UnitCodec& codec = codec_of(i);
    const BucketUnit& u = plan_.units[i];
    const uint32_t last = last_round(i);
    const Place p = place(i, last);
    const MutBytes merged = lanes_of(i, last);
    Work work = memory_.work(i, codec);
    const Term sum{merged, p.prescale == 1.0F ? 1.0F / static_cast<float>(state_->world()) : 1.0F};
    float* out = input_.gradient + u.offset;
    codec.decode(u.piece->send.unit, p, {&sum, 1}, work, {out, false});
    codec.commit(u.piece->send, p, sent_[i], merged, state_->world(), out, work);
  }
}

void NativeSum::finish_coded(uint32_t i) {
  const pipeline::UnitCodec& codec = codec_of(i);
  const BucketUnit& u = plan_.units[i];
  const Place p = place(i, last_round(i));
  Work work = memory_.work(i, codec);
  const Term sum = carrier_->sum(carrier_unit_[i], work);
  float* out = input_.gradient + u.offset;
  codec.decode(u.piece->send.unit, p, {&sum, 1}, work, {out, false});
  if (const auto left_out = carrier_->left_out(carrier_unit_[i]); !left_out.empty())
    codec.put_back(u.piece->send, p, sent_[i], left_out, work);
  codec.commit(u.piece->send, p, sent_[i], sum.payload, state_->world(), out, work);
}

void NativeSum::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  take_back(why);
}

void NativeSum::fail(const Error& failure) {
  if (phase_ == Phase::idle || input_.failure != nullptr) return;
  take_back(pipeline::Undo::gradient_lost);
  input_.failure = &failure;
}

void NativeSum::take_back(pipeline::Undo why) {
  if (input_.failure != nullptr) return;  // it has sent nothing, or has it back
  if (values_) values_->undo(why, input_.gradient);
  for (uint32_t i = 0; i < plan_.units.size(); ++i) take_back_unit(i, why);
}

void NativeSum::take_back_unit(uint32_t i, pipeline::Undo why) {
  if (outcomes_[i] != pipeline::Outcome::payload) return;
  const BucketUnit& u = plan_.units[i];
  Work work = memory_.work(i, codec_of(i));
  codec_of(i).undo(u.piece->send, place(i, last_round(i)), sent_[i], input_.gradient + u.offset,
                   why, work);
  outcomes_[i] = pipeline::Outcome::zero;
}

}  // namespace

Result<std::unique_ptr<Strategy>> make_native_sum(RankState& state, const Layout& layout,
                                                  StrategyKind kind, Counters& counters,
                                                  StatusRound& status) {
  auto strategy = std::make_unique<NativeSum>(state, layout, kind, counters, status);
  if (!strategy->reserve(layout)) return no_exchange_memory();
  return std::unique_ptr<Strategy>(std::move(strategy));
}

}  // namespace laconic::collective

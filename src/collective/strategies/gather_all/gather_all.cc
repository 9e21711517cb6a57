// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// gather_all: every rank's bundle to every rank, decode-and-add in rank order. One round; (n − 1)·S
// bytes a rank. Uncompressed parameters ride in the bundle's lane segment.
#include <array>

#include "aggregate/mean.h"
#include "collective/exchange/strategy.h"
#include "collective/plan/bucket_plan.h"
#include "collective/plan/capacity.h"

namespace laconic::collective {
namespace {

class GatherAll final : public Strategy {
 public:
  GatherAll(RankState& state, const Layout& layout, Counters& counters);
  void begin(const Input& input) override;
  Result<Next> next(std::span<transport::Step> batch) override;
  void put_back() override { undo(pipeline::Undo::gradient_lost); }

 private:
  enum class Phase : uint8_t { idle, send, received };

  [[nodiscard]] BundleId id(uint32_t rank) const;
  void encode();
  uint64_t seal();
  Next emit(transport::Step& step);
  Result<void> parse_all(bool* overflow, bool* non_finite);
  Result<Next> receive(std::span<transport::Step> batch);
  Result<void> check_and_decode();
  void undo(pipeline::Undo why);

  RankState* state_;
  Counters* counters_;
  BucketPlan plan_;
  WorkMemory memory_;
  Capacity capacity_;
  BundleShape shape_;
  std::vector<uint32_t> bounds_;
  std::vector<Bytes> sent_;  // own payloads, by unit; empty: nothing was sent
  Arena send_, recv_;
  std::optional<BundleWriter> writer_;
  std::vector<BundleView> views_;
  std::vector<SlotCursor> cursors_;
  std::vector<Slot> slots_;
  std::vector<Term> terms_;
  std::vector<const void*> lanes_;
  std::vector<float> lane_mean_;
  std::vector<uint64_t> send_counts_, send_offsets_, recv_counts_, recv_offsets_;
  Input input_;
  Phase phase_ = Phase::idle;
  uint8_t round_ = 0;
  uint64_t granted_ = 0;
  bool out_of_memory_ = false;
};

GatherAll::GatherAll(RankState& state, const Layout& layout, Counters& counters)
    : state_(&state), counters_(&counters), plan_(state, layout) {
  const uint32_t world = state.world();
  shape_ = {static_cast<uint32_t>(plan_.units.size()), 0,
            static_cast<uint32_t>(plan_.lanes * sizeof(float))};
  uint64_t bound = bundle_front_bytes(shape_);
  for (const BucketUnit& u : plan_.units) {
    memory_.plan(u.piece->send.plan);
    bounds_.push_back(static_cast<uint32_t>(u.piece->send.plan.round[0].bytes));
    bound += bundle_payload_bytes(bounds_.back());
  }
  capacity_ = Capacity(bound, state.codec().contract().exact_size || state.short_sends());
  sent_.resize(plan_.units.size());
  views_.resize(world);
  cursors_.resize(world);
  slots_.resize(world);
  terms_.resize(world);
  lanes_.resize(world);
  lane_mean_.resize(plan_.lanes);
  for (auto* v : {&send_counts_, &send_offsets_, &recv_counts_, &recv_offsets_}) v->resize(world);
  bound = std::max(bound, kMinCapacity);
  out_of_memory_ =
      !memory_.reserve() || !send_.reserve(bound) || !recv_.reserve(world * round_up(bound, 64));
}

BundleId GatherAll::id(uint32_t rank) const {
  return {BundleKind::contribution,
          round_,
          static_cast<uint16_t>(rank),
          static_cast<uint16_t>(state_->world()),
          input_.step,
          input_.sequence,
          state_->model().agreement()};
}

void GatherAll::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::send;
  round_ = 0;
  granted_ = capacity_.bytes();
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  if (input_.failure == nullptr) encode();
}

void GatherAll::encode() {
  writer_.emplace(send_.bytes(), shape_);
  plan_.pack_lanes(input_.gradient, reinterpret_cast<float*>(writer_->lanes().data()));
  const Place place = state_->place(input_.step, 0);
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const BucketUnit& u = plan_.units[i];
    Work work = memory_.work(i, state_->codec());
    const MutBytes room = writer_->room();
    const auto encoded =
        state_->codec().encode(u.piece->send, place, input_.gradient + u.offset, work, room);
    switch (encoded.outcome) {
      case pipeline::Outcome::payload:
        sent_[i] = Bytes(room.data(), encoded.bytes);
        writer_->put(static_cast<uint32_t>(encoded.bytes));
        break;
      case pipeline::Outcome::zero:
        writer_->put_zero(), ++counters_->zero_units;
        break;
      case pipeline::Outcome::non_finite:
        writer_->put_non_finite(), ++counters_->non_finite_units;
        break;
    }
  }
}

/// Gives the bytes to send: what the bundle takes where the engine allows it, else all that is
/// granted.
uint64_t GatherAll::seal() {
  uint64_t bytes = 0;
  if (input_.failure != nullptr) {
    const BundleFailure failure{input_.failure->code, state_->rank(), input_.bucket,
                                BundleFailure::kNoParameter, input_.failure->message};
    bytes = write_failure_bundle(id(state_->rank()), failure, send_.bytes());
  } else {
    bytes = writer_->finish(id(state_->rank()), granted_).bytes;
  }
  return state_->short_sends() ? bytes : granted_;
}

Next GatherAll::emit(transport::Step& step) {
  const uint64_t sending = seal();
  for (uint32_t r = 0; r < state_->world(); ++r) {
    send_counts_[r] = sending;
    recv_counts_[r] = granted_;
    send_offsets_[r] = 0;
    recv_offsets_[r] = r * granted_;
  }
  step = {transport::StepKind::all_gather,
          DType::u8,
          true,
          0,
          send_.bytes().data(),
          recv_.bytes().data(),
          send_counts_,
          send_offsets_,
          recv_counts_,
          recv_offsets_};
  step.short_sends = state_->short_sends();
  counters_->wire_bytes += (state_->world() - 1) * sending;
  ++counters_->rounds;
  phase_ = Phase::received;
  return {Verdict::steps, 1};
}

Result<void> GatherAll::parse_all(bool* overflow, bool* non_finite) {
  uint64_t needed = 0;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const Bytes bytes(recv_.bytes().data() + r * granted_, granted_);
    auto view = parse_bundle(bytes, {id(r), shape_, bounds_});
    if (!view) return std::move(view).error();
    if (view->failed) return to_error(view->failure);
    *overflow = *overflow || view->overflow;
    *non_finite = *non_finite || view->non_finite;
    needed = std::max(needed, view->bytes);
    views_[r] = *view;
  }
  capacity_.saw(needed);
  if (*overflow) granted_ = round_up(needed, 64);
  return {};
}

Result<Next> GatherAll::receive(std::span<transport::Step> batch) {
  bool overflow = false;
  bool non_finite = false;
  if (auto r = parse_all(&overflow, &non_finite); !r) return std::move(r).error();
  if (overflow) {
    ++counters_->overflow_repeats;
    ++round_;
    return emit(batch[0]);
  }
  if (non_finite) {
    undo(pipeline::Undo::gradient_travels);
    return Next{Verdict::take_raw, 0};
  }
  if (auto r = check_and_decode(); !r) return std::move(r).error();
  phase_ = Phase::idle;
  return Next{Verdict::done, 0};
}

Result<Next> GatherAll::next(std::span<transport::Step> batch) {
  if (out_of_memory_)
    return Error{Errc::out_of_memory, "no memory for the exchange buffers", "use smaller buckets"};
  if (phase_ == Phase::send) return emit(batch[0]);
  if (phase_ != Phase::received)
    return Error{Errc::exchange_order, "next() after the end of an exchange", {}};
  auto result = receive(batch);
  if (!result) put_back();
  return result;
}

Result<void> GatherAll::check_and_decode() {
  const pipeline::UnitCodec& codec = state_->codec();
  const Place place = state_->place(input_.step, 0);
  // All payloads are checked before the first float is written: an error leaves the gradients as
  // they were.
  for (uint32_t r = 0; r < state_->world(); ++r) {
    SlotCursor cursor = views_[r].slots();
    for (const BucketUnit& u : plan_.units) {
      const std::string& name = state_->model().parameters()[u.parameter].name;
      if (auto ok = aggregate::check_slot(codec.spec(), u.piece->send.unit, cursor.next(), r, name);
          !ok)
        return ok;
    }
    cursors_[r] = views_[r].slots();
    lanes_[r] = views_[r].lanes.data();
  }
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    const BucketUnit& u = plan_.units[i];
    for (uint32_t r = 0; r < state_->world(); ++r) slots_[r] = cursors_[r].next();
    Work work = memory_.work(i, codec);
    aggregate::mean_of_unit(codec.spec(), u.piece->send.unit, place, slots_, terms_, work,
                            input_.gradient + u.offset);
    codec.commit(u.piece->send, place, sent_[i], {}, state_->world(), input_.gradient + u.offset,
                 work);
  }
  aggregate::mean_of_lanes(codec.isa(), lanes_, lane_mean_.data(), plan_.lanes);
  plan_.unpack_lanes(lane_mean_.data(), input_.gradient);
  return {};
}

void GatherAll::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  const Place place = state_->place(input_.step, 0);
  for (size_t i = 0; i < plan_.units.size(); ++i) {
    if (sent_[i].empty()) continue;
    const BucketUnit& u = plan_.units[i];
    Work work = memory_.work(i, state_->codec());
    state_->codec().undo(u.piece->send, place, sent_[i], input_.gradient + u.offset, why, work);
  }
}

}  // namespace

std::unique_ptr<Strategy> make_gather_all(RankState& state, const Layout& layout,
                                          Counters& counters) {
  return std::make_unique<GatherAll>(state, layout, counters);
}

}  // namespace laconic::collective

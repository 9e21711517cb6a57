// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/two_shot/two_shot.h"

#include <algorithm>

namespace laconic::collective {

TwoShot::TwoShot(RankState& state, const Layout& layout, Counters& counters)
    : state_(&state),
      counters_(&counters),
      world_(state.world()),
      rank_(state.rank()),
      plan_(state, layout) {
  plan_shares();
  reserve();
}

void TwoShot::plan_shares() {
  shares_ = std::vector<Share>(world_);
  mean_offset_.resize(plan_.units.size());
  uint64_t means = 0;
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    const RankPiece& piece = *plan_.units[i].piece;
    Share& share = shares_[piece.owner];
    share.units.push_back(i);
    share.bounds.push_back(static_cast<uint32_t>(piece.send.plan.round[0].bytes));
    memory_.plan(piece.send.plan);
    mean_memory_.plan(piece.owner == rank_ ? piece.mean.plan : Plan{});
    mean_offset_[i] = means;
    if (piece.owner == rank_) means += round_up(piece.send.unit.count, 16);
  }
  means_.resize(means);
  lane_segment_.resize(plan_.lanes);
  const bool exact = state_->codec().contract().exact_size || state_->short_sends();
  up_.resize(uint64_t{world_} * world_);
  down_.resize(world_);
  for (uint32_t o = 0; o < world_; ++o) {
    Share& share = shares_[o];
    share.lane_begin = plan_.lanes * o / world_;
    share.lane_count = plan_.lanes * (o + 1) / world_ - share.lane_begin;
    share.up = {static_cast<uint32_t>(share.units.size()), 0,
                static_cast<uint32_t>(share.lane_count * sizeof(float))};
    share.down = {share.up.slots, world_, share.up.lane_bytes};
    uint64_t payloads = 0;
    for (const uint32_t bound : share.bounds) payloads += bundle_payload_bytes(bound);
    share.up_bound = std::max(bundle_front_bytes(share.up) + payloads, kMinCapacity);
    share.down_bound = std::max(bundle_front_bytes(share.down) + payloads, kMinCapacity);
    for (uint32_t r = 0; r < world_; ++r) up_capacity(r, o) = Capacity(share.up_bound, exact);
    down_[o] = Capacity(share.down_bound, exact);
  }
}

void TwoShot::reserve() {
  bool ok = memory_.reserve() && mean_memory_.reserve();
  uint64_t all_up = 0, all_down = 0;
  for (Share& share : shares_) {
    ok = ok && share.out.reserve(share.up_bound);
    share.down_offset = all_down;
    all_up += round_up(share.up_bound, 64);
    all_down += round_up(share.down_bound, 64);
  }
  ok = ok && up_send_.reserve(all_up) &&
       up_recv_.reserve(world_ * round_up(shares_[rank_].up_bound, 64));
  ok = ok && down_send_.reserve(shares_[rank_].down_bound) && down_recv_.reserve(all_down);
  out_of_memory_ = !ok;
  sent_.resize(plan_.units.size());
  mean_sent_.resize(plan_.units.size());
  need_.resize(uint64_t{world_} * world_);
  for (auto* v :
       {&down_need_, &seen_, &send_counts_, &send_offsets_, &recv_counts_, &recv_offsets_})
    v->resize(world_);
  ups_.resize(world_);
  up_here_.resize(world_);
  downs_.resize(world_);
  cursors_.resize(world_);
  slots_.resize(world_);
  terms_.resize(world_);
  lanes_.resize(world_);
}

BundleId TwoShot::id(BundleKind kind, uint32_t rank) const {
  return {kind,        round_,          static_cast<uint16_t>(rank), static_cast<uint16_t>(world_),
          input_.step, input_.sequence, state_->model().agreement()};
}

void TwoShot::begin(const Input& input) {
  input_ = input;
  phase_ = Phase::up;
  round_ = 0;
  mean_ready_ = up_non_finite_ = down_non_finite_ = false;
  told_.reset();
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  std::fill(mean_sent_.begin(), mean_sent_.end(), Bytes{});
  std::fill(up_here_.begin(), up_here_.end(), uint8_t{0});
  for (Share& share : shares_) share.delivered = false;
  for (uint32_t from = 0; from < world_; ++from) {
    for (uint32_t to = 0; to < world_; ++to) up_need(from, to) = up_capacity(from, to).bytes();
  }
  for (uint32_t o = 0; o < world_; ++o) down_need_[o] = down_[o].bytes();
  if (input_.failure != nullptr) {
    told_ = Told{input_.failure->code, rank_, BundleFailure::kNoParameter, input_.failure->message};
    return;
  }
  plan_.pack_lanes(input_.gradient, lane_segment_.data());
  for (uint32_t o = 0; o < world_; ++o) encode_share(o);
}

Result<Next> TwoShot::next(std::span<transport::Step> batch) {
  if (out_of_memory_)
    return Error{Errc::out_of_memory, "no memory for the exchange buffers", "use smaller buckets"};
  if (phase_ == Phase::up) return emit_up(batch[0]);
  if (phase_ == Phase::down_sent) {
    auto result = receive_down(batch);
    if (!result) put_back();
    return result;
  }
  if (phase_ != Phase::up_sent)
    return Error{Errc::exchange_order, "next() after the end of an exchange", {}};

  const bool complete = receive_up();
  if (!complete && !told_) stash_ups();
  if (!told_ && !mean_ready_) complete ? own_mean() : incomplete_mean();
  if (down_need_[rank_] != 0) seal_down(down_need_[rank_]);
  return emit_down(batch[0]);
}

Result<Next> TwoShot::receive_down(std::span<transport::Step> batch) {
  for (uint32_t o = 0; o < world_; ++o) {
    if (recv_counts_[o] == 0) continue;
    const Bytes bytes(down_recv_.bytes().data() + recv_offsets_[o], recv_counts_[o]);
    if (auto r = parse_down(o, bytes); !r) return std::move(r).error();
  }
  if (down_non_finite_) {
    undo(pipeline::Undo::gradient_travels);
    return Next{Verdict::take_raw, 0};
  }
  if (std::all_of(shares_.begin(), shares_.end(), [](const Share& s) { return s.delivered; })) {
    if (auto r = check_means(); !r) return std::move(r).error();
    finish();
    return Next{Verdict::done, 0};
  }
  ++counters_->overflow_repeats;
  stash_downs();
  ++round_;
  const bool up = std::any_of(need_.begin(), need_.end(), [](uint64_t need) { return need != 0; });
  if (up) return emit_up(batch[0]);
  if (down_need_[rank_] != 0) seal_down(down_need_[rank_]);
  return emit_down(batch[0]);
}

/// Undoes what this rank did as a sender and as an owner. The owner's mean is not delivered either
/// way, and lives on in the senders: so its residual returns to what it was.
void TwoShot::undo(pipeline::Undo why) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  const pipeline::UnitCodec& codec = state_->codec();
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    const BucketUnit& u = plan_.units[i];
    Work work = memory_.work(i, codec);
    const Place place = state_->place(input_.step, 0);
    if (!sent_[i].empty()) {
      codec.undo(u.piece->send, place, sent_[i], input_.gradient + u.offset, why, work);
    }
    if (mean_sent_[i].empty()) continue;
    Work mean_work = mean_memory_.work(i, codec);
    codec.undo(u.piece->mean, state_->place(input_.step, 1), mean_sent_[i],
               means_.data() + mean_offset_[i], pipeline::Undo::gradient_travels, mean_work);
  }
}

std::unique_ptr<Strategy> make_two_shot(RankState& state, const Layout& layout,
                                        Counters& counters) {
  return std::make_unique<TwoShot>(state, layout, counters);
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/two_shot/way_down.h"

#include <algorithm>
#include <cstring>

#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {

WayDown::WayDown(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters)
    : state_(&state),
      plan_(&plan),
      shares_(&shares),
      counters_(&counters),
      batch_(state.batches().frames(1)),
      sizes_(state.world()) {
  plan_units();
  for (const Share& share : shares.of) capacity_.emplace_back(share.down_bound, plan.exact);
  need_.resize(state.world());
  views_.resize(state.world());
  delivered_.resize(state.world());
  received_.resize(state.world());
}

void WayDown::plan_units() {
  uint64_t means = 0;
  batch_->restart();
  means_at_.clear();
  for (const BucketUnit& u : plan_->units) {
    const bool mine = u.piece->owner == state_->rank();
    batch_->add({u.piece->down, &u.piece->mean, state_->name_of(u.parameter), mine});
    means_at_.push_back(means);
    if (mine) means += round_up(u.piece->mean.unit.count, 16);
  }
  means_at_.push_back(means);
}

void WayDown::replan() {
  plan_units();
  for (uint32_t o = 0; o < state_->world(); ++o)
    capacity_[o].rebound(shares_->of[o].down_bound, plan_->exact);
}

bool WayDown::reserve() {
  reports_.reserve(state_->model().options().reports, state_->world());
  means_ = batch_->lend(means_at_, means_at_.back());
  return means_.base != nullptr && batch_->reserve() && out_.reserve(own().down_bound) &&
         recv_.reserve(shares_->down_bytes) &&
         (plan_->exact || stash_.reserve(shares_->down_bytes));
}

void WayDown::begin(const Input& input) {
  input_ = input;
  encoded_ = false;
  flush_ = 0;
  reports_.begin();
  batch_->begin(state_->place(input_.step, 1));
  std::fill(delivered_.begin(), delivered_.end(), uint8_t{0});
  for (uint32_t o = 0; o < state_->world(); ++o) need_[o] = capacity_[o].bytes();
}

void WayDown::start_bundle(const WayUp& up) {
  writer_.emplace(out_.bytes(), own().down);
  writer_->set_report(bundle_report(input_.report));
  if (own().down.seen != 0) writer_->set_seen(up.received().seen);
}

Result<void> WayDown::encode(WayUp& up) {
  start_bundle(up);
  writer_->set_flush(up.received().flush);
  up.mean_of_lanes(writer_->lanes().data());
  if (up.received()
          .non_finite) {  // nothing of this owner's will be used: mark it and keep the residual
    for (size_t i = 0; i < own().units.size(); ++i) writer_->put_non_finite();
    writer_->mark_non_finite();
  } else {
    if (auto r = up.means(means()); !r) return r;
    Counters units;  // a mean's outcome is not one of this rank's units
    BundleSink sink(*writer_, units);
    if (auto r = batch_->encode(own().units, means(), sink); !r) {
      undo();  // the ways up keep what the means are made of
      return r;
    }
    counters_->residual_resets += units.residual_resets;
  }
  encoded_ = true;
  return {};
}

/// A sender knows whether its contribution fitted; what it is granted next is the seen length.
void WayDown::put_incomplete(const WayUp& up) {
  start_bundle(up);
  writer_->mark_incomplete();
  std::fill(writer_->lanes().begin(), writer_->lanes().end(), uint8_t{0});
  for (uint32_t i = 0; i < own().down.slots; ++i) writer_->put_zero();
}

uint64_t WayDown::seal(const Told& told) {
  const uint64_t granted = need_[state_->rank()];
  if (granted == 0) return 0;
  const BundleId mine = id(state_->rank());
  const uint64_t bytes =
      told ? told.write(mine, out_.bytes()) : writer_->finish(mine, granted).bytes;
  return state_->short_sends() ? bytes : granted;
}

void WayDown::emit(uint8_t round, const Told& told, Step& step) {
  round_ = round;
  const uint64_t sending = seal(told);
  uint64_t recv = 0;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    sizes_.send_counts[r] = sending;
    sizes_.recv_counts[r] = need_[r];
    sizes_.recv_offsets[r] = recv;
    recv += need_[r];
  }
  step = {.kind = StepKind::all_gather,
          .short_sends = state_->short_sends(),
          .send = out_.bytes().data(),
          .recv = recv_.bytes().data(),
          .send_counts = sizes_.send_counts,
          .send_offsets = sizes_.send_offsets,
          .recv_counts = sizes_.recv_counts,
          .recv_offsets = sizes_.recv_offsets};
}

Result<WayDown::Heard> WayDown::receive(WayUp& up) {
  Heard heard;
  for (uint32_t o = 0; o < state_->world(); ++o) {
    if (sizes_.recv_counts[o] == 0) continue;
    const Bytes bytes = Bytes(recv_.bytes()).subspan(sizes_.recv_offsets[o], sizes_.recv_counts[o]);
    if (auto r = parse(o, bytes, up, heard); !r) return std::move(r).error();
  }
  heard.all_delivered = std::all_of(delivered_.begin(), delivered_.end(),
                                    [](uint8_t delivered) { return delivered != 0; });
  return heard;
}

/// An owner's bundle: its mean, or what has to travel again before there is one.
Result<void> WayDown::parse(uint32_t owner, Bytes bytes, WayUp& up, Heard& heard) {
  auto view = parse_bundle(bytes, expect(owner));
  if (!view) return std::move(view).error();
  if (view->failed) return to_error(view->failure);
  reports_.hear(owner, view->report, input_.report);
  heard.non_finite = heard.non_finite || view->non_finite;
  if (view->incomplete) {
    if (plan_->exact)
      return Error{Errc::bound_exceeded, "an owner did not receive a whole contribution",
                   "all ranks must run the same version of laconic"};
    up.regrant(owner, view->seen());
    heard.up_again = true;
    need_[owner] = capacity_[owner].bytes();
    return {};
  }
  up.regrant(owner, 0);
  if (view->overflow) {
    need_[owner] = round_up(view->bytes, 64);
    return {};
  }
  flush_ = std::max(flush_, view->flush);
  views_[owner] = *view;
  delivered_[owner] = 1;
  need_[owner] = 0;
  return {};
}

void WayDown::stash() {
  for (uint32_t o = 0; o < state_->world(); ++o) {
    if (delivered_[o] == 0 || sizes_.recv_counts[o] == 0) continue;
    const MutBytes at = stash_.bytes().subspan(shares_->of[o].down_offset, views_[o].bytes);
    std::memcpy(at.data(), recv_.bytes().data() + sizes_.recv_offsets[o], at.size());
    if (auto view = parse_bundle(at, expect(o))) views_[o] = *view;
  }
}

Result<void> WayDown::check() {
  for (uint32_t o = 0; o < state_->world(); ++o)
    received_[o] = {shares_->of[o].units, o, views_[o].slots()};
  return batch_->check(received_);
}

Result<void> WayDown::finish(WayUp& up) {
  for (uint32_t o = 0; o < state_->world(); ++o) {
    if (auto r = decode_share(o, up); !r) return r;
    capacity_[o].saw(views_[o].bytes);
    if (!plan_->exact) up.learn(o, views_[o].seen());
  }
  return {};
}

Result<void> WayDown::decode_share(uint32_t owner, WayUp& up) {
  const Share& share = shares_->of[owner];
  SlotCursor cursor = views_[owner].slots();
  const pipeline::UnitFloats gradient = plan_->in(input_);
  if (auto r = batch_->mean(share.units, {&cursor, 1}, gradient); !r) return r;
  up.commit(owner);
  if (owner == state_->rank()) batch_->commit(share.units, 1, gradient);
  const uint8_t* lanes = views_[owner].lanes.data();
  plan_->over_lanes(
      share.lane_begin, share.lane_end, [&](uint64_t at, uint64_t lane, uint64_t count) {
        std::memcpy(input_.gradient + at, lanes + (lane - share.lane_begin) * sizeof(float),
                    count * sizeof(float));
      });
  return {};
}

void WayDown::undo() { batch_->undo(own().units, means(), pipeline::Undo::gradient_travels); }

}  // namespace laconic::collective

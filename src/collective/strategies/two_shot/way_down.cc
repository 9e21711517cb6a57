// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/two_shot/way_down.h"

#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {

WayDown::WayDown(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters)
    : state_(&state), plan_(&plan), shares_(&shares), counters_(&counters), sizes_(state.world()) {
  plan_units();
  for (const Share& share : shares.of) capacity_.emplace_back(share.down_bound, plan.exact);
  need_.resize(state.world());
  views_.resize(state.world());
  delivered_.resize(state.world());
}

void WayDown::plan_units() {
  uint64_t means = 0;
  memory_.restart();
  mean_offsets_.clear();
  for (const BucketUnit& u : plan_->units) {
    const bool mine = u.piece->owner == state_->rank();
    Plan plan = u.piece->mean.plan;
    if (!mine) plan.kept_bytes = 0;  // which is for what is encoded
    memory_.plan(plan);
    mean_offsets_.push_back(means);
    if (mine) means += round_up(u.piece->mean.unit.count, 16);
  }
  mean_offsets_.push_back(means);
  sent_.resize(plan_->units.size());
}

void WayDown::replan() {
  plan_units();
  for (uint32_t o = 0; o < state_->world(); ++o)
    capacity_[o].rebound(shares_->of[o].down_bound, plan_->exact);
}

bool WayDown::reserve() {
  reports_.reserve(state_->model().options().reports, state_->world());
  return memory_.reserve() && means_.reserve((mean_offsets_.back() + 1) * sizeof(float)) &&
         out_.reserve(own().down_bound) && recv_.reserve(shares_->down_bytes) &&
         (plan_->exact || stash_.reserve(shares_->down_bytes));
}

void WayDown::begin(const Input& input) {
  input_ = input;
  encoded_ = false;
  flush_ = 0;
  reports_.begin();
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  std::fill(delivered_.begin(), delivered_.end(), uint8_t{0});
  for (uint32_t o = 0; o < state_->world(); ++o) need_[o] = capacity_[o].bytes();
}

void WayDown::start_bundle(const WayUp& up) {
  writer_.emplace(out_.bytes(), own().down);
  writer_->set_report(bundle_report(input_.report));
  if (own().down.seen != 0) writer_->set_seen(up.received().seen);
}

void WayDown::encode(WayUp& up) {
  start_bundle(up);
  writer_->set_flush(up.received().flush);
  up.mean_of_lanes(writer_->lanes().data());
  if (up.received()
          .non_finite) {  // nothing of this owner's will be used: mark it and keep the residual
    for (size_t i = 0; i < own().units.size(); ++i) writer_->put_non_finite();
    writer_->mark_non_finite();
  } else {
    up.first_mean();
    for (const uint32_t unit : own().units) {
      up.next_mean(unit, mean_of(unit));
      encode_mean(unit);
    }
  }
  encoded_ = true;
}

void WayDown::encode_mean(uint32_t unit) {
  const RankPiece& piece = *plan_->units[unit].piece;
  Work work = memory_.work(unit, *piece.down);
  Counters units;  // a mean's outcome is not one of this rank's units
  sent_[unit] = encode_unit(*piece.down, piece.mean, state_->place(input_.step, 1), mean_of(unit),
                            work, *writer_, units);
  counters_->residual_resets += units.residual_resets;
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

Result<void> WayDown::check() const {
  for (uint32_t o = 0; o < state_->world(); ++o) {
    SlotCursor cursor = views_[o].slots();
    for (const uint32_t i : shares_->of[o].units) {
      const BucketUnit& u = plan_->units[i];
      if (auto ok = aggregate::check_slot(u.piece->down->spec(), u.piece->mean.unit, cursor.next(),
                                          o, state_->name_of(u.parameter));
          !ok)
        return ok;
    }
  }
  return {};
}

void WayDown::finish(WayUp& up) {
  for (uint32_t o = 0; o < state_->world(); ++o) {
    decode_share(o, up);
    capacity_[o].saw(views_[o].bytes);
    if (!plan_->exact) up.learn(o, views_[o].seen());
  }
}

void WayDown::decode_share(uint32_t owner, WayUp& up) {
  const Place down = state_->place(input_.step, 1);
  const Share& share = shares_->of[owner];
  SlotCursor cursor = views_[owner].slots();
  for (const uint32_t i : share.units) {
    const BucketUnit& u = plan_->units[i];
    const RankPiece& piece = *u.piece;
    const Slot slot = cursor.next();
    Work work = memory_.work(i, *piece.down);
    float* out = input_.gradient + u.offset;
    aggregate::mean_of_unit(piece.down->spec(), piece.mean.unit, down, {&slot, 1}, {&term_, 1},
                            work, out);
    Work up_work = up.work(i);
    piece.codec->commit(piece.send, state_->place(input_.step, 0), up.sent(i), {}, state_->world(),
                        out, up_work);
    if (owner == state_->rank()) piece.down->commit(piece.mean, down, sent_[i], {}, 1, out, work);
  }
  const uint8_t* lanes = views_[owner].lanes.data();
  plan_->over_lanes(
      share.lane_begin, share.lane_end, [&](uint64_t at, uint64_t lane, uint64_t count) {
        std::memcpy(input_.gradient + at, lanes + (lane - share.lane_begin) * sizeof(float),
                    count * sizeof(float));
      });
}

void WayDown::undo() {
  for (const uint32_t i : own().units) {
    if (sent_[i].empty()) continue;
    const RankPiece& piece = *plan_->units[i].piece;
    Work work = memory_.work(i, *piece.down);
    piece.down->undo(piece.mean, state_->place(input_.step, 1), sent_[i], mean_of(i),
                     pipeline::Undo::gradient_travels, work);
    sent_[i] = {};
  }
}

}  // namespace laconic::collective

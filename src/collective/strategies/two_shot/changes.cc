// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot's way down after an owner's turn: the difference of master and replica comes down, and
// every rank adds it to its own replica. 3LC's pull (MLSys 2019, section 3).
#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/exchange/strategy_parts.h"
#include "collective/strategies/two_shot/way_down.h"

namespace laconic::collective {
void WayDown::take_means(WayUp& up) {
  start_bundle(up);
  writer_->set_flush(up.flush());
  up.mean_of_lanes(writer_->lanes().data());
  up.first_mean();
  for (const uint32_t unit : own().units) up.next_mean(unit, mean_of(unit));
}

void WayDown::take_means(const Input& input) {
  adopted_ = true;
  writer_.emplace(out_.bytes(), own().down);
  const Share& share = own();
  uint8_t* const lanes = writer_->lanes().data();
  plan_->over_lanes(share.lane_begin, share.lane_end,
                    [&](uint64_t at, uint64_t lane, uint64_t count) {
                      std::memcpy(lanes + (lane - share.lane_begin) * sizeof(float),
                                  input.gradient + at, count * sizeof(float));
                    });
  for (const uint32_t i : own().units) {
    const BucketUnit& u = plan_->units[i];
    std::copy_n(input.gradient + u.offset, u.piece->mean.unit.count, mean_of(i));
  }
}

void WayDown::lend(std::vector<OwnedRange>& ranges) {
  for (const uint32_t i : own().units) {
    const BucketUnit& u = plan_->units[i];
    const Unit& unit = u.piece->mean.unit;
    ranges.push_back({u.parameter, unit.offset, unit.count, mean_of(i), u.piece->master.data()});
  }
}

double WayDown::sum_of_squares() {
  double sum = 0;
  const auto add = [&](const float* x, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(x[i]);
  };
  for (const uint32_t i : own().units) add(mean_of(i), plan_->units[i].piece->mean.unit.count);
  const Share& share = own();
  add(reinterpret_cast<const float*>(writer_->lanes().data()), share.lane_end - share.lane_begin);
  return sum;
}

void WayDown::encode_changes(Told& told) {
  for (const uint32_t i : own().units) {
    const BucketUnit& u = plan_->units[i];
    float* const change = mean_of(i);
    const uint64_t n = u.piece->master.size();
    state_->parameter(u.parameter)
        .replica.read(state_->isa(), u.piece->mean.unit.offset, {change, n});
    state_->kernels().blend(-1.0F, change, 1.0F, u.piece->master.data(), n);
    if (encode_mean(i)) continue;
    told.note({Errc::non_finite, state_->rank(), input_.bucket, u.parameter,
               "the optimizer's step is not finite"});
  }
}

void WayDown::encode_nothing() {
  writer_.emplace(out_.bytes(), own().down);
  std::ranges::fill(writer_->lanes(), uint8_t{0});
  for (size_t i = 0; i < own().units.size(); ++i) writer_->put_non_finite();
  writer_->mark_non_finite();
}

Result<void> WayDown::receive_changes() {
  Result<void> first;
  std::ranges::fill(said_, Said::failed);
  for (uint32_t o = 0; o < state_->world(); ++o) {
    auto parsed = parse_changes(
        o, Bytes(recv_.bytes()).subspan(sizes_.recv_offsets[o], sizes_.recv_counts[o]));
    if (!parsed && first) first = std::move(parsed);
  }
  return first;
}

Result<void> WayDown::parse_changes(uint32_t owner, Bytes bytes) {
  auto view = parse_bundle(bytes, expect(owner));
  if (!view) return std::move(view).error();
  if (view->failed) return to_error(view->failure);
  if (view->overflow || view->incomplete) {
    return Error{Errc::bound_exceeded, "an owner's changes need more than their bound",
                 "all ranks must run the same version of laconic"};
  }
  reports_.hear(owner, view->report, input_.report);
  SlotCursor cursor = view->slots();
  for (const uint32_t i : shares_->of[owner].units) {
    if (view->non_finite) break;
    const BucketUnit& u = plan_->units[i];
    auto ok = aggregate::check_slot(u.piece->codec->spec(), u.piece->send.unit, cursor.next(),
                                    owner, state_->name_of(u.parameter));
    if (!ok) return ok;
  }
  flush_ = std::max(flush_, view->flush);
  views_[owner] = *view;
  said_[owner] = view->non_finite ? Said::nothing : Said::changes;
  return {};
}

void WayDown::finish_changes(WayUp& up) {
  for (uint32_t o = 0; o < state_->world(); ++o)
    said_[o] == Said::changes ? finish_share(o, up) : put_back(o, up);
}

/// Nothing came down from this owner, which has not moved its masters.
void WayDown::put_back(uint32_t owner, WayUp& up) {
  const bool lost = said_[owner] == Said::failed;
  up.undo_share(owner, lost ? pipeline::Undo::gradient_lost : pipeline::Undo::gradient_travels);
  if (!adopted_ || !lost) return;
  for (const uint32_t i : shares_->of[owner].units) {  // the mean is there, on every rank
    const BucketUnit& u = plan_->units[i];
    u.piece->codec->keep(u.piece->send, input_.gradient + u.offset);
  }
}

void WayDown::finish_share(uint32_t owner, WayUp& up) {
  const Place down = state_->place(input_.step, 1);
  SlotCursor cursor = views_[owner].slots();
  for (const uint32_t i : shares_->of[owner].units) {
    const BucketUnit& u = plan_->units[i];
    const pipeline::UnitCodec& codec = *u.piece->codec;
    const Slot slot = cursor.next();
    Work work = up.work(i);
    float* const change = input_.gradient + u.offset;  // the gradient there has been delivered
    aggregate::mean_of_unit(codec.spec(), u.piece->send.unit, down, {&slot, 1}, {&term_, 1}, work,
                            change);
    codec.commit(u.piece->send, state_->place(input_.step, 0), up.sent(i), {}, state_->world(),
                 change, work);
    if (owner == state_->rank()) {
      Work own_work = memory_.work(i, codec);
      codec.commit(u.piece->mean, down, sent_[i], {}, 1, change, own_work);
    }
    if (slot.kind != SlotKind::payload) continue;
    state_->parameter(u.parameter)
        .replica.add(state_->kernels(), state_->isa(), u.piece->send.unit.offset,
                     {change, u.piece->send.unit.count});
  }
  copy_lanes(owner);
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/two_shot/way_up.h"

#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {

WayUp::WayUp(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters)
    : state_(&state), plan_(&plan), shares_(&shares), counters_(&counters), sizes_(state.world()) {
  const uint32_t world = state.world();
  for (const BucketUnit& u : plan.units) memory_.plan(u.piece->send.plan);
  sent_.resize(plan.units.size());
  for (const Share& share : shares.of) capacity_.emplace_back(share.up_bound, plan.exact);
  for (auto* v : {&need_to_, &need_from_}) v->resize(world);
  writers_.resize(world);
  views_.resize(world);
  here_.resize(world);
  overflowed_.resize(world);
  cursors_.resize(world);
  slots_.resize(world);
  terms_.resize(world);
  lanes_.resize(world);
}

void WayUp::replan() {
  sent_.resize(plan_->units.size());
  memory_.restart();
  for (const BucketUnit& u : plan_->units) memory_.plan(u.piece->send.plan);
  for (uint32_t o = 0; o < state_->world(); ++o)
    capacity_[o].rebound(shares_->of[o].up_bound, plan_->exact);
}

bool WayUp::reserve() {
  const uint64_t room = state_->world() * round_up(own().up_bound, 64);
  return memory_.reserve() && out_.reserve(shares_->up_bytes) && recv_.reserve(room) &&
         (plan_->exact || stash_.reserve(room));
}

void WayUp::begin(const Input& input, bool encodes, OwnShare* own) {
  input_ = input;
  received_ = {};
  std::fill(sent_.begin(), sent_.end(), Bytes{});
  std::fill(here_.begin(), here_.end(), uint8_t{0});
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const bool self = r == state_->rank();  // its own share never leaves this rank
    need_to_[r] = self ? 0 : capacity_[r].bytes();
    need_from_[r] = self ? 0 : capacity_[state_->rank()].bytes();
  }
  if (!encodes || input_.failure != nullptr) return;
  for (uint32_t o = 0; o < state_->world(); ++o) encode_share(o, own);
}

void WayUp::mark_non_finite() {
  for (auto& writer : writers_) writer->mark_non_finite();
}

void WayUp::encode_share(uint32_t owner, OwnShare* own) {
  const Share& share = shares_->of[owner];
  BundleWriter& writer = writers_[owner].emplace(out(owner), share.up);
  writer.set_flush(input_.flush_request);
  uint8_t* lanes = writer.lanes().data();
  plan_->over_lanes(share.lane_begin, share.lane_end,
                    [&](uint64_t at, uint64_t lane, uint64_t count) {
                      std::memcpy(lanes + (lane - share.lane_begin) * sizeof(float),
                                  input_.gradient + at, count * sizeof(float));
                    });
  const Place place = state_->place(input_.step, 0);
  for (const uint32_t i : share.units) {
    const BucketUnit& u = plan_->units[i];
    const float* gradient = input_.gradient + u.offset;
    if (own != nullptr && own->has(i)) {
      put_unit(own->take(i, gradient), writer, *counters_);
      continue;
    }
    Work lent = work(i);
    sent_[i] =
        encode_unit(*u.piece->codec, u.piece->send, place, gradient, lent, writer, *counters_);
  }
}

/// Completes the bundle for an owner where it was encoded; gives the bytes to send.
uint64_t WayUp::seal(uint32_t owner, uint64_t granted, const Told& told) {
  const BundleId own = id(state_->rank());
  uint64_t bytes = 0;
  if (told) {
    bytes = told.write(own, out(owner));
  } else {
    const BundleSize size = writers_[owner]->finish(own, granted);
    overflowed_[owner] = size.overflow ? 1 : 0;
    bytes = size.bytes;
  }
  return state_->short_sends() ? bytes : granted;
}

void WayUp::emit(uint8_t round, const Told& told, Step& step) {
  round_ = round;
  uint64_t recv = 0;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    sizes_.send_offsets[r] = shares_->of[r].up_offset;
    sizes_.send_counts[r] = need_to_[r] == 0 ? 0 : seal(r, need_to_[r], told);
    sizes_.recv_offsets[r] = recv;
    sizes_.recv_counts[r] = need_from_[r];
    recv += need_from_[r];
  }
  step = {.kind = StepKind::all_to_all,
          .short_sends = state_->short_sends(),
          .send = out_.bytes().data(),
          .recv = recv_.bytes().data(),
          .send_counts = sizes_.send_counts,
          .send_offsets = sizes_.send_offsets,
          .recv_counts = sizes_.recv_counts,
          .recv_offsets = sizes_.recv_offsets};
}

bool WayUp::receive(Told& told) {
  const uint32_t self = state_->rank();
  if (here_[self] == 0 && !told) {
    writers_[self]->finish(id(self), own().up_bound);
    receive_from(self, out(self), told);
  }
  for (uint32_t r = 0; r < state_->world(); ++r) {
    if (sizes_.recv_counts[r] != 0)
      receive_from(r, Bytes(recv_.bytes()).subspan(sizes_.recv_offsets[r], sizes_.recv_counts[r]),
                   told);
  }
  return std::all_of(here_.begin(), here_.end(), [](uint8_t here) { return here != 0; });
}

/// One rank's contribution to this owner.
void WayUp::receive_from(uint32_t from, Bytes bytes, Told& told) {
  const auto fail = [&](const Error& error) { told.note(state_->rank(), input_.bucket, error); };
  auto view = parse_bundle(bytes, {id(from), own().up, own().bounds});
  if (!view) return fail(view.error());
  if (view->failed) return told.note(view->failure);
  received_.seen = std::max(received_.seen, view->bytes);
  if (view->overflow) return;
  received_.non_finite = received_.non_finite || view->non_finite;
  received_.flush = std::max(received_.flush, view->flush);
  SlotCursor cursor = view->slots();
  for (const uint32_t i : own().units) {
    const BucketUnit& u = plan_->units[i];
    auto ok = aggregate::check_slot(u.piece->codec->spec(), u.piece->send.unit, cursor.next(), from,
                                    state_->name_of(u.parameter));
    if (!ok) return fail(ok.error());
  }
  views_[from] = *view;
  here_[from] = 1;
}

void WayUp::stash() {
  const uint64_t room = round_up(own().up_bound, 64);
  for (uint32_t r = 0; r < state_->world(); ++r) {
    if (here_[r] == 0 || r == state_->rank() || sizes_.recv_counts[r] == 0) continue;
    const MutBytes at = stash_.bytes().subspan(r * room, views_[r].bytes);
    std::memcpy(at.data(), recv_.bytes().data() + sizes_.recv_offsets[r], at.size());
    if (auto view = parse_bundle(at, {id(r), own().up, own().bounds})) views_[r] = *view;
  }
}

void WayUp::regrant(uint32_t owner, uint64_t seen) {
  const uint64_t again = round_up(seen, 64);
  const bool cut = need_to_[owner] != 0 && seen != 0 && overflowed_[owner] != 0;
  need_to_[owner] = cut ? again : 0;
  if (owner != state_->rank()) return;
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const bool missing = need_from_[r] != 0 && seen != 0 && here_[r] == 0;
    need_from_[r] = missing ? again : 0;
  }
}

void WayUp::mean_of_lanes(uint8_t* out) {
  for (uint32_t r = 0; r < state_->world(); ++r) lanes_[r] = views_[r].lanes.data();
  aggregate::mean_of_lanes(state_->isa(), lanes_, reinterpret_cast<float*>(out),
                           own().lane_end - own().lane_begin);
}

void WayUp::first_mean() {
  for (uint32_t r = 0; r < state_->world(); ++r) cursors_[r] = views_[r].slots();
}

void WayUp::next_mean(uint32_t unit, float* out) {
  for (uint32_t r = 0; r < state_->world(); ++r) slots_[r] = cursors_[r].next();
  Work lent = work(unit);
  const RankPiece& piece = *plan_->units[unit].piece;
  aggregate::mean_of_unit(piece.codec->spec(), piece.send.unit, state_->place(input_.step, 0),
                          slots_, terms_, lent, out);
}

void WayUp::undo(uint32_t owner, pipeline::Undo why) {
  const Place place = state_->place(input_.step, 0);
  for (const uint32_t i : shares_->of[owner].units) {
    if (sent_[i].empty()) continue;
    const BucketUnit& u = plan_->units[i];
    Work lent = work(i);
    u.piece->codec->undo(u.piece->send, place, sent_[i], input_.gradient + u.offset, why, lent);
    sent_[i] = {};
  }
}

}  // namespace laconic::collective

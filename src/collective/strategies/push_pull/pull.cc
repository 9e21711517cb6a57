// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/push_pull/pull.h"

#include <array>
#include <cstring>
#include <numeric>

#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {

Pull::Pull(const Parts& parts)
    : parts_(parts), batch_(parts.state->batches().frames(1)), sizes_(parts.state->world()) {
  uint64_t means = 0;
  for (const BucketUnit& u : parts.plan->units) {
    const bool mine = u.piece->owner == parts.state->rank();
    batch_->add({u.piece->down, &u.piece->mean, parts.state->name_of(u.parameter), mine});
    means_at_.push_back(means);
    if (mine) means += round_up(u.piece->mean.unit.count, 16);
  }
  means_at_.push_back(means);
  owners_.resize(parts.state->world());
}

bool Pull::reserve() {
  return batch_->reserve() && means_.reserve((means_at_.back() + 1) * sizeof(float)) &&
         out_.reserve(own().down_bound) && recv_.reserve(parts_.shares->down_bytes);
}

void Pull::begin(const Input& input) {
  input_ = input;
  flush_ = 0;
  adopted_ = false;
  batch_->begin(parts_.state->place(input.step, 1));
  std::ranges::fill(owners_, Owner{});
  writer_.emplace(out_.bytes(), own().down);
}

Result<void> Pull::take_means(WayUp& up) {
  writer_->set_flush(up.received().flush);
  up.mean_of_lanes(writer_->lanes().data());
  if (auto r = up.means(means()); !r) return r;
  for (const uint32_t unit : own().units) parts_.own->add_to(unit, mean_of(unit));
  return {};
}

void Pull::take_means() {
  adopted_ = true;
  const Share& share = own();
  uint8_t* const lanes = writer_->lanes().data();
  parts_.plan->over_lanes(share.lane_begin, share.lane_end,
                          [&](uint64_t at, uint64_t lane, uint64_t count) {
                            std::memcpy(lanes + (lane - share.lane_begin) * sizeof(float),
                                        input_.gradient + at, count * sizeof(float));
                          });
  for (const uint32_t i : own().units) {
    const BucketUnit& u = parts_.plan->units[i];
    std::copy_n(input_.gradient + parts_.plan->at[i], u.piece->mean.unit.count, mean_of(i));
  }
}

void Pull::lend(std::vector<OwnedRange>& ranges) {
  for (const uint32_t i : own().units) {
    const BucketUnit& u = parts_.plan->units[i];
    const Unit& unit = u.piece->mean.unit;
    ranges.push_back({u.parameter, unit.offset, unit.count, mean_of(i), u.piece->master.data()});
  }
}

double Pull::sum_of_squares() {
  std::array<double, 8> sums{};  // an addition need not wait for the one before
  const auto add = [&](const float* x, uint64_t n) {
    for (uint64_t i = 0; i < n; ++i) {
      const auto value = static_cast<double>(x[i]);
      sums[i % sums.size()] += value * value;
    }
  };
  for (const uint32_t i : own().units)
    add(mean_of(i), parts_.plan->units[i].piece->mean.unit.count);
  const Share& share = own();
  add(reinterpret_cast<const float*>(writer_->lanes().data()), share.lane_end - share.lane_begin);
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void Pull::encode(Told& told) {
  const RankState& state = *parts_.state;
  for (const uint32_t i : own().units) {
    const BucketUnit& u = parts_.plan->units[i];
    const RankPiece& piece = *u.piece;
    float* const change = mean_of(i);
    const uint64_t n = piece.master.size();
    state.parameter(u.parameter).replica.read(state.isa(), piece.mean.unit.offset, {change, n});
    state.kernels().blend(-1.0F, change, 1.0F, piece.master.data(), n);
  }
  Counters units;  // a change's outcome is not one of this rank's units
  BundleSink sink(*writer_, units);
  if (auto r = batch_->encode(own().units, means(), sink); !r) {
    batch_->undo(own().units, means(), pipeline::Undo::gradient_travels);
    return told.note(state.rank(), input_.bucket, r.error());
  }
  for (const uint32_t i : own().units) {
    const BucketUnit& u = parts_.plan->units[i];
    const uint64_t n = u.piece->mean.unit.count;
    const pipeline::Outcome outcome = batch_->outcome(i);
    const bool finite = outcome == pipeline::Outcome::zero ||
                        (outcome == pipeline::Outcome::payload &&
                         pipeline::scan(*u.piece->down, mean_of(i), n).all_finite);
    if (finite) continue;
    told.note({Errc::non_finite, state.rank(), input_.bucket, u.parameter,
               "the optimizer's update is not finite"});
  }
}

void Pull::encode_nothing() {
  std::ranges::fill(writer_->lanes(), uint8_t{0});
  for (size_t i = 0; i < own().units.size(); ++i) writer_->put_non_finite();
  writer_->mark_non_finite();
}

void Pull::emit(const Told& told, Step& step) {
  const RankState& state = *parts_.state;
  const BundleId mine = id(state.rank());
  const uint64_t bytes =
      told ? told.write(mine, out_.bytes()) : writer_->finish(mine, own().down_bound).bytes;
  uint64_t recv = 0;
  for (uint32_t r = 0; r < state.world(); ++r) {
    sizes_.send_counts[r] = state.short_sends() ? bytes : own().down_bound;
    sizes_.recv_counts[r] = parts_.shares->of[r].down_bound;
    sizes_.recv_offsets[r] = recv;
    recv += sizes_.recv_counts[r];
  }
  step = {.kind = StepKind::all_gather,
          .short_sends = state.short_sends(),
          .send = out_.bytes().data(),
          .recv = recv_.bytes().data(),
          .send_counts = sizes_.send_counts,
          .send_offsets = sizes_.send_offsets,
          .recv_counts = sizes_.recv_counts,
          .recv_offsets = sizes_.recv_offsets};
}

Result<void> Pull::receive() {
  Result<void> first;
  for (uint32_t o = 0; o < owners_.size(); ++o) {
    auto parsed =
        parse(o, Bytes(recv_.bytes()).subspan(sizes_.recv_offsets[o], sizes_.recv_counts[o]));
    if (!parsed && first) first = std::move(parsed);
  }
  return first;
}

Result<void> Pull::parse(uint32_t owner, Bytes bytes) {
  const Share& share = parts_.shares->of[owner];
  auto view = parse_bundle(bytes, {id(owner), share.down, share.down_bounds});
  if (!view) return std::move(view).error();
  if (view->failed) {
    owners_[owner].said = Said::failed;
    return to_error(view->failure);
  }
  if (view->overflow || view->incomplete) {
    return Error{Errc::bound_exceeded, "an owner's update exceeds its bound",
                 "all ranks must run the same version of laconic"};
  }
  const pipeline::Received received{share.units, owner, view->slots()};
  if (!view->non_finite) {
    if (auto ok = batch_->check({&received, 1}); !ok) return ok;
  }
  flush_ = std::max(flush_, view->flush);
  owners_[owner] = {view->non_finite ? Said::nothing : Said::changes, *view};
  return {};
}

Result<void> Pull::finish(WayUp& up) {
  for (uint32_t o = 0; o < owners_.size(); ++o) {
    const Said said = owners_[o].said;
    if (said == Said::failed || said == Said::nothing)
      put_back(o, up);
    else if (auto moved = move_parameters(o, up); !moved)
      return moved;
  }
  return {};
}

/// Nothing came down from this owner, which has not moved its masters.
void Pull::put_back(uint32_t owner, WayUp& up) {
  const bool lost = owners_[owner].said == Said::failed;
  const auto why = lost ? pipeline::Undo::gradient_lost : pipeline::Undo::gradient_travels;
  up.undo(owner, why);
  if (owner == parts_.state->rank()) parts_.own->undo(input_.gradient, why);
  if (adopted_ && lost) up.keep_means(owner);  // which are there, on every rank
}

Result<void> Pull::move_parameters(uint32_t owner, WayUp& up) {
  const RankState& state = *parts_.state;
  const Share& share = parts_.shares->of[owner];
  const bool came = owners_[owner].said == Said::changes;
  // The gradient there has been delivered.
  const pipeline::UnitFloats changes = parts_.plan->in(input_);
  SlotCursor cursor = owners_[owner].view.slots();
  if (came) {
    if (auto r = batch_->mean(share.units, {&cursor, 1}, changes); !r) return r;
    cursor = owners_[owner].view.slots();
  }
  for (const uint32_t i : share.units) {
    const BucketUnit& u = parts_.plan->units[i];
    const Unit& unit = u.piece->send.unit;
    if (!came) std::fill_n(changes.of(i), unit.count, 0.0F);
    if (!came || cursor.next().kind != SlotKind::payload) continue;
    state.parameter(u.parameter)
        .replica.add(state.kernels(), state.isa(), unit.offset, {changes.of(i), unit.count});
  }
  up.commit(owner);
  if (owner == state.rank()) batch_->commit(share.units, 1, changes);
  if (!came) return {};
  const uint8_t* lanes = owners_[owner].view.lanes.data();
  parts_.plan->over_lanes(
      share.lane_begin, share.lane_end, [&](uint64_t at, uint64_t lane, uint64_t count) {
        std::memcpy(input_.gradient + at, lanes + (lane - share.lane_begin) * sizeof(float),
                    count * sizeof(float));
      });
  return {};
}

}  // namespace laconic::collective

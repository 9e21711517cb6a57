// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot, the owner's half: the mean of what arrived, re-encoded, and what every rank does with
// it.
#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/strategies/two_shot/two_shot.h"

namespace laconic::collective {

/// Mean of everything that this rank owns, re-encoded: the owner's half of the exchange.
void TwoShot::own_mean() {
  const Share& share = shares_[rank_];
  mean_writer_.emplace(down_send_.bytes(), share.down);
  for (uint32_t r = 0; r < world_; ++r) {
    mean_writer_->set_seen(r, seen_[r]);
    cursors_[r] = ups_[r].slots();
    lanes_[r] = ups_[r].lanes.data();
  }
  aggregate::mean_of_lanes(state_->codec().isa(), lanes_,
                           reinterpret_cast<float*>(mean_writer_->lanes().data()),
                           share.lane_count);
  for (const uint32_t i : share.units) {
    for (uint32_t r = 0; r < world_; ++r) slots_[r] = cursors_[r].next();
    mean_unit(i, *mean_writer_);
  }
  mean_ready_ = true;
}

void TwoShot::mean_unit(uint32_t index, BundleWriter& writer) {
  if (up_non_finite_) {  // nothing of this owner's will be used: say so and keep the residual
    writer.put_non_finite();
    return;
  }
  const pipeline::UnitSlot& slot = plan_.units[index].piece->mean;
  const Place place = state_->place(input_.step, 1);
  Work work = mean_memory_.work(index, state_->codec());
  float* mean = means_.data() + mean_offset_[index];
  Work up_work = memory_.work(index, state_->codec());
  aggregate::mean_of_unit(state_->codec().spec(), slot.unit, state_->place(input_.step, 0), slots_,
                          terms_, up_work, mean);
  const MutBytes room = writer.room();
  const auto encoded = state_->codec().encode(slot, place, mean, work, room);
  if (encoded.outcome == pipeline::Outcome::payload) {
    mean_sent_[index] = Bytes(room.data(), encoded.bytes);
    writer.put(static_cast<uint32_t>(encoded.bytes));
  } else if (encoded.outcome == pipeline::Outcome::zero) {
    writer.put_zero();
  } else {
    writer.put_non_finite();  // finite contributions, but their mean overflows
  }
}

/// Not everything has arrived: only the lengths that were seen. Every rank knows what was granted,
/// so a length above it says which contributions have to travel again.
void TwoShot::incomplete_mean() {
  mean_writer_.emplace(down_send_.bytes(), shares_[rank_].down);
  for (uint32_t r = 0; r < world_; ++r) mean_writer_->set_seen(r, seen_[r]);
  std::fill(mean_writer_->lanes().begin(), mean_writer_->lanes().end(), uint8_t{0});
  for (uint32_t i = 0; i < shares_[rank_].down.slots; ++i) mean_writer_->put_zero();
}

void TwoShot::seal_down(uint64_t granted) {
  const BundleId mine = id(BundleKind::mean, rank_);
  uint64_t bytes = 0;
  if (told_) {
    bytes = write_failure_bundle(
        mine, {told_->code, told_->rank, input_.bucket, told_->parameter, told_->text},
        down_send_.bytes());
  } else {
    bytes = mean_writer_->finish(mine, granted).bytes;
  }
  down_bytes_ = state_->short_sends() ? bytes : granted;
}

Next TwoShot::emit_down(transport::Step& step) {
  const uint64_t sending = down_need_[rank_] == 0 ? 0 : down_bytes_;
  uint64_t recv = 0;
  for (uint32_t r = 0; r < world_; ++r) {
    recv_counts_[r] = down_need_[r];
    recv_offsets_[r] = recv;
    send_counts_[r] = sending;
    send_offsets_[r] = 0;
    recv += recv_counts_[r];
  }
  counters_->wire_bytes += (world_ - 1) * sending;
  ++counters_->rounds;
  step = {transport::StepKind::all_gather,
          DType::u8,
          true,
          0,
          down_send_.bytes().data(),
          down_recv_.bytes().data(),
          send_counts_,
          send_offsets_,
          recv_counts_,
          recv_offsets_,
          state_->short_sends()};
  phase_ = Phase::down_sent;
  return {Verdict::steps, 1};
}

/// Lengths that an owner saw: all ranks learn them from the same bytes.
void TwoShot::note_lengths(uint32_t owner, const BundleView& view) {
  for (uint32_t r = 0; r < world_; ++r) {
    if (r != owner) up_capacity(r, owner).saw(view.seen(r));
  }
  down_[owner].saw(view.bytes);
}

/// An owner's bundle: its mean, or what has to travel again before there is one.
Result<void> TwoShot::parse_down(uint32_t owner, Bytes bytes) {
  Share& share = shares_[owner];
  auto view = parse_bundle(bytes, {id(BundleKind::mean, owner), share.down, share.bounds});
  if (!view) return std::move(view).error();
  if (view->failed) return to_error(view->failure);
  if (view->overflow) {
    down_need_[owner] = round_up(view->bytes, 64);
    for (uint32_t r = 0; r < world_; ++r)
      up_need(r, owner) = 0;  // there is a mean, so all had arrived
    return {};
  }
  down_non_finite_ = down_non_finite_ || view->non_finite;
  bool whole = true;
  for (uint32_t r = 0; r < world_; ++r) {
    const bool cut = r != owner && up_need(r, owner) != 0 && view->seen(r) > up_need(r, owner);
    up_need(r, owner) = cut ? round_up(view->seen(r), 64) : 0;
    whole = whole && !cut;
  }
  if (!whole) {
    down_need_[owner] = down_[owner].bytes();
    return {};
  }
  note_lengths(owner, *view);
  downs_[owner] = *view;
  share.delivered = true;
  down_need_[owner] = 0;
  return {};
}

void TwoShot::stash_downs() {
  uint64_t total = 0;
  for (const Share& share : shares_) total += round_up(share.down_bound, 64);
  if (!down_stash_.reserve(total))
    return fail(Error{Errc::out_of_memory, "no memory for a repeat round", {}});
  for (uint32_t o = 0; o < world_; ++o) {
    if (!shares_[o].delivered || recv_counts_[o] == 0) continue;
    const MutBytes at = down_stash_.bytes().subspan(shares_[o].down_offset, downs_[o].bytes);
    std::memcpy(at.data(), down_recv_.bytes().data() + recv_offsets_[o], at.size());
    if (auto view = parse_bundle(at, {id(BundleKind::mean, o), shares_[o].down, shares_[o].bounds}))
      downs_[o] = *view;
  }
}

Result<void> TwoShot::check_means() const {
  for (uint32_t o = 0; o < world_; ++o) {
    SlotCursor cursor = downs_[o].slots();
    for (const uint32_t i : shares_[o].units) {
      const BucketUnit& u = plan_.units[i];
      const std::string& name = state_->model().parameters()[u.parameter].name;
      if (auto ok = aggregate::check_slot(state_->codec().spec(), u.piece->send.unit, cursor.next(),
                                          o, name);
          !ok)
        return ok;
    }
  }
  return {};
}

/// Every rank decodes the same bytes, the owner its own too: replicas stay bit-identical.
void TwoShot::finish() {
  const pipeline::UnitCodec& codec = state_->codec();
  for (uint32_t o = 0; o < world_; ++o) {
    SlotCursor cursor = downs_[o].slots();
    for (const uint32_t i : shares_[o].units) {
      const BucketUnit& u = plan_.units[i];
      const Slot slot = cursor.next();
      Work work = memory_.work(i, codec);
      float* out = input_.gradient + u.offset;
      const Term term{slot.payload, 1.0F};
      if (slot.kind == SlotKind::payload) {
        codec.decode(u.piece->send.unit, state_->place(input_.step, 1), {&term, 1}, work,
                     {out, false});
      } else {
        std::fill_n(out, u.piece->send.unit.count, 0.0F);
      }
      codec.commit(u.piece->send, state_->place(input_.step, 0), sent_[i], {}, world_, out, work);
      if (o != rank_) continue;
      Work mean_work = mean_memory_.work(i, codec);
      codec.commit(u.piece->mean, state_->place(input_.step, 1), mean_sent_[i], {}, 1, out,
                   mean_work);
    }
    std::copy(downs_[o].lanes.begin(), downs_[o].lanes.end(),
              reinterpret_cast<uint8_t*>(lane_segment_.data() + shares_[o].lane_begin));
  }
  plan_.unpack_lanes(lane_segment_.data(), input_.gradient);
  phase_ = Phase::idle;
}

}  // namespace laconic::collective

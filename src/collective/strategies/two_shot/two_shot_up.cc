// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot, the sender's half: contributions to the owners, and what an owner does with those that
// arrive.
#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/strategies/two_shot/two_shot.h"

namespace laconic::collective {

void TwoShot::encode_share(uint32_t owner) {
  Share& share = shares_[owner];
  share.writer.emplace(share.out.bytes(), share.up);
  std::copy_n(reinterpret_cast<const uint8_t*>(lane_segment_.data() + share.lane_begin),
              share.lane_count * sizeof(float), share.writer->lanes().begin());
  for (const uint32_t i : share.units) encode_unit(i, *share.writer);
}

void TwoShot::encode_unit(uint32_t index, BundleWriter& writer) {
  const BucketUnit& u = plan_.units[index];
  Work work = memory_.work(index, state_->codec());
  const MutBytes room = writer.room();
  const Place place = state_->place(input_.step, 0);
  const auto encoded =
      state_->codec().encode(u.piece->send, place, input_.gradient + u.offset, work, room);
  switch (encoded.outcome) {
    case pipeline::Outcome::payload:
      sent_[index] = Bytes(room.data(), encoded.bytes);
      writer.put(static_cast<uint32_t>(encoded.bytes));
      break;
    case pipeline::Outcome::zero:
      writer.put_zero(), ++counters_->zero_units;
      break;
    case pipeline::Outcome::non_finite:
      writer.put_non_finite(), ++counters_->non_finite_units;
      break;
  }
}

/// Puts the bundle for an owner where it is sent from; gives the bytes to send.
uint64_t TwoShot::seal_up(uint32_t owner, uint64_t granted, MutBytes at) {
  const BundleId mine = id(BundleKind::contribution, rank_);
  uint64_t bytes = 0;
  if (told_) {
    bytes = write_failure_bundle(
        mine, {told_->code, told_->rank, input_.bucket, told_->parameter, told_->text}, at);
  } else {
    Share& share = shares_[owner];
    bytes = share.writer->finish(mine, granted).bytes;
    std::memcpy(at.data(), share.out.bytes().data(), bytes);
  }
  return state_->short_sends() ? bytes : granted;
}

Next TwoShot::emit_up(transport::Step& step) {
  uint64_t send = 0, recv = 0;
  for (uint32_t r = 0; r < world_; ++r) {  // the own share never leaves this rank
    const uint64_t granted = r == rank_ ? 0 : up_need(rank_, r);
    const MutBytes at = up_send_.bytes().subspan(send, granted);
    send_offsets_[r] = send;
    send_counts_[r] = granted == 0 ? 0 : seal_up(r, granted, at);
    recv_counts_[r] = r == rank_ ? 0 : up_need(r, rank_);
    recv_offsets_[r] = recv;
    send += send_counts_[r];
    recv += recv_counts_[r];
  }
  counters_->wire_bytes += send;
  ++counters_->rounds;
  step = {transport::StepKind::all_to_all,
          DType::u8,
          true,
          0,
          up_send_.bytes().data(),
          up_recv_.bytes().data(),
          send_counts_,
          send_offsets_,
          recv_counts_,
          recv_offsets_,
          state_->short_sends()};
  phase_ = Phase::up_sent;
  return {Verdict::steps, 1};
}

void TwoShot::fail(const BundleFailure& failure) {
  if (!told_)
    told_ = Told{failure.code, failure.rank, failure.parameter, std::string(failure.text)};
}

void TwoShot::fail(const Error& error) {
  if (!told_) told_ = Told{error.code, rank_, BundleFailure::kNoParameter, error.message};
}

/// One rank's contribution to this owner.
void TwoShot::receive_share(uint32_t from, Bytes bytes) {
  const Share& share = shares_[rank_];
  auto view = parse_bundle(bytes, {id(BundleKind::contribution, from), share.up, share.bounds});
  if (!view) return fail(view.error());
  if (view->failed) return fail(view->failure);
  seen_[from] = view->bytes;
  if (view->overflow) return;
  up_non_finite_ = up_non_finite_ || view->non_finite;
  SlotCursor cursor = view->slots();
  for (const uint32_t i : share.units) {
    const BucketUnit& u = plan_.units[i];
    const std::string& name = state_->model().parameters()[u.parameter].name;
    auto ok = aggregate::check_slot(state_->codec().spec(), u.piece->send.unit, cursor.next(), from,
                                    name);
    if (!ok) return fail(ok.error());
  }
  ups_[from] = *view;
  up_here_[from] = 1;
}

/// Takes in what this round brought. True: every contribution to this owner is here.
bool TwoShot::receive_up() {
  if (up_here_[rank_] == 0 && !told_) {
    shares_[rank_].writer->finish(id(BundleKind::contribution, rank_), shares_[rank_].up_bound);
    receive_share(rank_, shares_[rank_].out.bytes().first(shares_[rank_].up_bound));
  }
  for (uint32_t r = 0; r < world_; ++r) {
    if (recv_counts_[r] != 0)
      receive_share(r, Bytes(up_recv_.bytes().data() + recv_offsets_[r], recv_counts_[r]));
  }
  return std::all_of(up_here_.begin(), up_here_.end(), [](uint8_t here) { return here != 0; });
}

/// Contributions that have arrived survive the repeat round in memory of their own.
void TwoShot::stash_ups() {
  const Share& share = shares_[rank_];
  const uint64_t room = round_up(share.up_bound, 64);
  if (!up_stash_.reserve(world_ * room))
    return fail(Error{Errc::out_of_memory, "no memory for a repeat round", {}});
  for (uint32_t r = 0; r < world_; ++r) {
    if (up_here_[r] == 0 || r == rank_ || recv_counts_[r] == 0) continue;
    const MutBytes at = up_stash_.bytes().subspan(r * room, ups_[r].bytes);
    std::memcpy(at.data(), up_recv_.bytes().data() + recv_offsets_[r], at.size());
    if (auto view = parse_bundle(at, {id(BundleKind::contribution, r), share.up, share.bounds}))
      ups_[r] = *view;
  }
}

}  // namespace laconic::collective

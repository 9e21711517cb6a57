// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/turns.h"

#include <algorithm>
#include <utility>

namespace laconic::session {

using collective::OwnedRange;
using collective::RankPiece;
using collective::RankState;
using collective::Replica;

namespace {

/// body(parameter, piece) for the ranges that this rank owns.
template <class Body>
void over_owned(const RankState& state, Body&& body) {
  const auto parameters = static_cast<uint32_t>(state.model().parameters().size());
  for (uint32_t p = 0; p < parameters; ++p) {
    for (const RankPiece& piece : state.parameter(p).pieces) {
      if (!piece.master.empty()) body(p, piece);
    }
  }
}

}  // namespace

Result<void> OwnerTurns::set_replicas(std::span<const Replica> replicas, bool begins) {
  RankState& state = *session_->active().state;
  const auto& parameters = session_->model().parameters();
  bool fits = replicas.size() == parameters.size();
  for (size_t p = 0; p < replicas.size() && fits; ++p)
    fits = replicas[p].values != nullptr || parameters[p].count() == 0;
  if (!fits || !session_->model().options().owner_turns) {
    return Error{Errc::invalid_argument, "replicas: expected one per parameter",
                 "and a session with owner_turns"};
  }
  ranges_.reserve(owned().size());  // a turn takes no memory
  for (uint32_t p = 0; p < replicas.size(); ++p) state.set_replica(p, replicas[p]);
  if (!begins) return {};
  over_owned(state, [&](uint32_t p, const RankPiece& piece) {
    replicas[p].read(state.isa(), piece.mean.unit.offset, piece.master);
  });
  return {};
}

std::vector<OwnedRange> OwnerTurns::owned() const {
  std::vector<OwnedRange> ranges;
  over_owned(*session_->active().state, [&](uint32_t p, const RankPiece& piece) {
    const Unit& unit = piece.mean.unit;
    ranges.push_back({p, unit.offset, unit.count, nullptr, piece.master.data()});
  });
  return ranges;
}

/// The first failure that this rank knows of, its own or one that it received.
std::optional<BundleFailure> OwnerTurns::failure(const Error* trouble) {
  for (uint32_t i = 0; i < window_->parked(); ++i) {
    if (const BundleFailure* failure = window_->turn(i).failure()) return *failure;
  }
  if (trouble == nullptr && window_->first()) trouble = &*window_->first();
  if (trouble == nullptr) return {};
  return BundleFailure{trouble->code, session_->model().options().rank, 0,
                       BundleFailure::kNoParameter, trouble->message};
}

Result<OwnerTurns::Turn> OwnerTurns::begin() {
  if (auto done = window_->drain(); !done) return std::move(done).error();
  if (const auto met = failure(nullptr)) return to_error(*met);
  Turn turns;
  ranges_.clear();
  for (uint32_t i = 0; i < window_->parked(); ++i) {
    collective::OwnerTurn& turn = window_->turn(i);
    turns.skips = turns.skips || turn.non_finite();
    turn.lend(ranges_);
    turns.sum_of_squares += turn.sum_of_squares();
  }
  if (turns.skips) ranges_.clear();
  turns.ranges = ranges_;
  turned_ = true;
  return turns;
}

Result<bool> OwnerTurns::pull(const Error* trouble) {
  if (auto done = window_->drain(); !done && window_->failed()) return std::move(done).error();
  bool skips = false;
  for (uint32_t i = 0; i < window_->parked(); ++i) skips = skips || window_->turn(i).non_finite();
  const Error none{Errc::exchange_order, {}, {}};  // the code alone: there may be no memory
  if (!std::exchange(turned_, false) && trouble == nullptr && window_->parked() != 0)
    trouble = &none;
  const auto met = failure(trouble);
  return window_->pull(skips, met ? &*met : nullptr);
}

}  // namespace laconic::session

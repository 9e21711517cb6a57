// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/node_driver.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/concat.h"
#include "laconic/bytes.h"
#include "session/node_reports.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

using collective::LayoutView;
using collective::Model;
using collective::Range;

/// In front of each block of in(i).
struct Head {
  uint64_t step = 0;
  uint64_t bucket = 0;  ///< hash of its parameters
  uint32_t flush = 0;   ///< steps of a flush that this rank requests
  std::array<uint32_t, 3> reserved{};
};
static_assert(sizeof(Head) == 32);

/// A rank's message at the end of a step: a failure card or zeros, and its reports.
constexpr uint64_t note_bytes(uint32_t world) { return kAgreementBytes + node_report_bytes(world); }

/// Elements that are added at a time.
constexpr uint64_t kBlock = 1024;

uint64_t hash_of(std::span<const uint32_t> parameters) noexcept {
  uint64_t hash = 0xcbf29ce484222325U;  // FNV-1a
  for (const uint32_t p : parameters) hash = (hash ^ p) * 0x100000001b3U;
  return hash;
}

}  // namespace

NodeDriver::NodeDriver(Session& session, Engine& inside, std::chrono::milliseconds timeout)
    : session_(&session),
      link_(inside, timeout, note_bytes(session.model().options().world)),
      part_(session.model().options().part * inside.world()),
      by_shard_(inside.world()),
      by_rank_(inside.world()),
      note_(note_bytes(session.model().options().world)) {
  const Model& model = session.model();
  const size_t parameters = model.parameters().size();
  pieces_.reserve(parameters);
  order_.reserve(parameters);
  came_.resize(parameters);
  offsets_.resize(parameters);
  uint64_t elements = 0, own = 0, longest = 0, longest_own = 0;
  for (uint32_t p = 0; p < parameters; ++p) {
    const uint64_t all = model.whole()[p].count(), held = model.parameters()[p].count();
    elements += all;
    own += held;
    longest = std::max(longest, all);
    longest_own = std::max(longest_own, held);
  }
  const uint64_t most = part_ == 0 ? elements : part_ / sizeof(float);
  const uint64_t heads = inside.world() * sizeof(Head);
  const uint64_t piece = std::min(elements, std::max(most, longest));
  const uint64_t shard = std::min(own, std::max(most, longest_own));
  // Memory that no step has touched is none.
  memory_.shard.reset(new float[own + 1]);
  memory_.whole.reset(new uint8_t[heads + piece * sizeof(float)]);
  memory_.terms.reset(new uint8_t[heads + (inside.world() - 1) * shard * sizeof(float)]);
}

NodeDriver::Sides::Sides(uint32_t ranks) : bytes(ranks), offsets(ranks) {}

Result<void> NodeDriver::check(const LayoutView& whole) const {
  return without_throwing([&]() -> Result<void> {
    for (size_t i = 0; i < whole.parameters.size(); ++i) {
      const auto before = whole.parameters.first(i);
      const uint32_t p = whole.parameters[i];
      if (!came_[p] && std::ranges::find(before, p) == before.end()) continue;
      return Error{Errc::exchange_order,
                   concat({"bucket: parameter ", std::to_string(p), " has already come"}),
                   "submit each parameter once per step, and call wait() at its end"};
    }
    return {};
  });
}

Result<void> NodeDriver::submit(uint64_t step, float* gradient, const LayoutView& whole,
                                const Submission& how) {
  if (auto fits = check(whole); !fits) return fits;
  for (size_t begin = 0; begin < whole.parameters.size();) {
    const size_t end = collective::end_of_part(whole, begin, part_);
    Piece& piece = add(gradient, whole, begin, end);
    submit(piece, step, how);
    leave_long_ones();
    begin = end;
  }
  return over_ ? Result<void>(copy_of(*over_)) : Result<void>();
}

NodeDriver::Piece& NodeDriver::add(float* gradient, const LayoutView& whole, size_t begin,
                                   size_t end) {
  Piece piece;
  const uint64_t first = begin == 0 ? 0 : whole.offsets[begin];
  piece.gradient = gradient == nullptr ? nullptr : gradient + first;
  piece.begin = order_.size();
  for (size_t i = begin; i < end; ++i) {
    const uint32_t p = whole.parameters[i];
    came_[p] = true;
    order_.push_back(p);
    piece.elements += session_->model().whole()[p].count();
    piece.own += session_->model().parameters()[p].count();
  }
  piece.end = order_.size();
  piece.at = filled_;
  filled_ += piece.own;
  return pieces_.emplace_back(piece);
}

/// body(first element in the piece, elements) of what a shard has of it, in order.
template <class Body>
void NodeDriver::for_ranges(const Piece& piece, uint32_t shard, const Body& body) const {
  const Model& model = session_->model();
  uint64_t at = 0;
  for (size_t i = piece.begin; i < piece.end; ++i) {
    const Range held = collective::held_by(model, shard, order_[i]);
    if (held.count != 0) body(at + held.first, held.count);
    at += model.whole()[order_[i]].count();
  }
}

/// The blocks of a piece by shard, and those of this rank's shard by rank.
void NodeDriver::measure(const Piece& piece, uint64_t head) {
  uint64_t whole = 0, terms = 0;
  for (uint32_t r = 0; r < link_.ranks(); ++r) {
    uint64_t elements = 0;
    for_ranges(piece, r, [&](uint64_t, uint64_t count) { elements += count; });
    const bool other = r != link_.rank();
    by_shard_.bytes[r] = other ? head + elements * sizeof(float) : 0;
    by_rank_.bytes[r] = other ? head + piece.own * sizeof(float) : 0;
    by_shard_.offsets[r] = whole;
    by_rank_.offsets[r] = terms;
    whole += by_shard_.bytes[r];
    terms += by_rank_.bytes[r];
  }
}

void NodeDriver::submit(Piece& piece, uint64_t step, const Submission& how) {
  const auto there = over_ ? Result<void>(copy_of(*over_)) : in(piece, step);
  const Model& model = session_->model();
  uint64_t elements = 0;
  for (size_t i = piece.begin; i < piece.end; ++i) {
    offsets_[i - piece.begin] = elements;
    elements += model.parameters()[order_[i]].count();
  }
  const size_t count = piece.end - piece.begin;
  const LayoutView layout{std::span(order_).subspan(piece.begin, count),
                          std::span(offsets_).first(count), elements};
  const auto index = static_cast<uint32_t>(&piece - pieces_.data());
  const collective::Bucket bucket{
      .buffer = there ? memory_.shard.get() + piece.at : nullptr, .step = step, .index = index};
  Submission with = how;
  with.token = index;
  if (!there) with.trouble = &there.error();
  (void)driver_->submit(bucket, layout, with);  // its Error is what finish() finds
}

/// The node's mean of this rank's shard.
Result<void> NodeDriver::in(const Piece& piece, uint64_t step) {
  const double since = session_->now();
  measure(piece, sizeof(Head));
  pack(piece, step);
  auto done = exchange(memory_.whole.get(), by_shard_, memory_.terms.get(), by_rank_);
  if (done) done = compare_heads();
  if (done) add_up(piece);
  session_->count({.node_seconds = session_->now() - since});
  return done;
}

void NodeDriver::pack(const Piece& piece, uint64_t step) {
  Head head{.step = step,
            .bucket = hash_of(std::span(order_).subspan(piece.begin, piece.end - piece.begin))};
  {
    const auto held = session_->hold();
    head.flush = session_->active().flush.turn().request;
  }
  for (uint32_t s = 0; s < link_.ranks(); ++s) {
    auto* to = reinterpret_cast<uint8_t*>(memory_.shard.get() + piece.at);
    if (s != link_.rank()) {
      to = memory_.whole.get() + by_shard_.offsets[s];
      store(to, head);
      to += sizeof head;
    }
    for_ranges(piece, s, [&](uint64_t first, uint64_t count) {
      const uint64_t bytes = count * sizeof(float);
      if (piece.gradient != nullptr)
        std::memcpy(to, piece.gradient + first, bytes);
      else  // what this rank cannot bring
        std::memset(to, 0, bytes);
      to += bytes;
    });
  }
  store(note_.data(), head);  // to be compared with those that come
}

Result<void> NodeDriver::compare_heads() {
  const auto own = load<Head>(note_.data());
  uint32_t flush = own.flush;
  for (uint32_t r = 0; r < link_.ranks(); ++r) {
    if (r == link_.rank()) continue;
    const auto head = load<Head>(memory_.terms.get() + by_rank_.offsets[r]);
    flush = std::max(flush, head.flush);
    if (head.step == own.step && head.bucket == own.bucket) continue;
    return without_throwing([]() -> Result<void> {
      return Error{Errc::ranks_disagree, "the ranks of a node brought different buckets",
                   "submit the same buckets in the same order on every rank"};
    });
  }
  return flush == own.flush ? Result<void>() : session_->flush(flush);
}

/// In rank order.
void NodeDriver::add_up(const Piece& piece) {
  float* const own = memory_.shard.get() + piece.at;
  const auto term_of = [&](uint32_t rank) -> const float* {
    if (rank == link_.rank()) return own;
    const uint8_t* const block = memory_.terms.get() + by_rank_.offsets[rank];
    return reinterpret_cast<const float*>(block + sizeof(Head));
  };
  const float part = 1.0F / static_cast<float>(link_.ranks());
  std::array<float, kBlock> total;
  for (uint64_t begin = 0; begin < piece.own; begin += kBlock) {
    const uint64_t count = std::min(kBlock, piece.own - begin);
    std::copy_n(term_of(0) + begin, count, total.begin());
    for (uint32_t r = 1; r < link_.ranks(); ++r) {
      const float* const x = term_of(r) + begin;
      for (uint64_t i = 0; i < count; ++i) total[i] += x[i];
    }
    for (uint64_t i = 0; i < count; ++i) own[begin + i] = total[i] * part;
  }
}

/// The means of all shards.
void NodeDriver::out(const Piece& piece) {
  const double since = session_->now();
  measure(piece, 0);
  std::ranges::fill(by_rank_.offsets, 0);  // the same for all
  if (piece.failed)                        // what the residuals have is not given out, too
    std::fill_n(memory_.shard.get() + piece.at, piece.own, 0.0F);
  auto* const own = reinterpret_cast<uint8_t*>(memory_.shard.get() + piece.at);
  const bool done = exchange(own, by_rank_, memory_.whole.get(), by_shard_).ok();
  for (uint32_t s = 0; done && piece.gradient != nullptr && s < link_.ranks(); ++s) {
    const uint8_t* from = s == link_.rank() ? own : memory_.whole.get() + by_shard_.offsets[s];
    for_ranges(piece, s, [&](uint64_t first, uint64_t count) {
      std::memcpy(piece.gradient + first, from, count * sizeof(float));
      from += count * sizeof(float);
    });
  }
  session_->count({.node_seconds = session_->now() - since});
}

Result<void> NodeDriver::exchange(uint8_t* send, const Sides& sent, uint8_t* recv,
                                  const Sides& received) {
  session_->count({.node_bytes = std::reduce(sent.bytes.begin(), sent.bytes.end())});
  return link_.exchange(send, {sent.bytes, sent.offsets}, recv, {received.bytes, received.offsets});
}

bool NodeDriver::is_long(const Piece& piece) const noexcept {
  return piece.elements > collective::kShortElements * link_.ranks();
}

/// After a long piece has begun: all up to the one for which its driver has made place.
void NodeDriver::leave_long_ones() {
  if (!is_long(pieces_.back())) return;
  const auto waiting = [&] {
    return std::count_if(pieces_.begin() + static_cast<ptrdiff_t>(left_), pieces_.end(),
                         [&](const Piece& piece) { return is_long(piece); });
  };
  while (waiting() >= session_->model().options().window) leave();
}

void NodeDriver::leave() {
  Piece& piece = pieces_[left_++];
  if (!piece.over) (void)driver_->drain();
  if (!over_ && !left_behind()) out(piece);
}

void NodeDriver::ended(const Ending& ending) noexcept {
  for (size_t i = 0; i < ending.tokens.size(); ++i) {
    Piece& piece = pieces_[ending.tokens[i]];
    piece.over = ++piece.ended == ending.parts[i];
    piece.failed |= ending.why != nullptr;
  }
}

Result<void> NodeDriver::finish() {
  const auto done = driver_->finish();
  while (left_ < pieces_.size()) leave();
  auto met = over_ ? Result<void>(copy_of(*over_)) : meet(done);
  pieces_.clear();
  order_.clear();
  came_.assign(came_.size(), false);
  left_ = filled_ = 0;
  return met;
}

/// One message among the node's ranks: what has failed, and what policies decide by.
Result<void> NodeDriver::meet(const Result<void>& done) {
  const AgreementCard card = done ? AgreementCard{} : failure_card(done.error());
  std::ranges::copy(card, note_.begin());
  {
    const auto held = session_->hold();
    store_node_reports(session_->active(), std::span(note_).subspan(card.size()));
  }
  const auto notes = link_.gather(note_);
  if (!notes) {
    over_ = copy_of(notes.error());
    return notes.error();
  }
  {
    const auto held = session_->hold();
    decide_by(session_->active(), notes->subspan(card.size()), note_.size());
  }
  return failure_of_node(*notes, note_.size());
}

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot: every rank sends each owner its ranges; the owner takes the mean, re-encodes it with
// its own error feedback and sends it to all. Two rounds; 2(n − 1)/n·S bytes a rank, however many
// ranks there are. 3LC's push and pull with the server spread over the ranks (3LC, MLSys 2019,
// section 3).
//
// No round carries only sizes: an owner's bundle repeats the lengths that it received, so that
// every rank knows the whole matrix of lengths and predicts the next capacities from it. A payload
// that outgrew its capacity travels again.
#include <optional>

#include "aggregate/mean.h"
#include "collective/bucket_plan.h"
#include "collective/capacity.h"
#include "collective/strategy.h"

namespace laconic::collective {
namespace {

/// What goes to one owner, and comes back from it.
struct Share {
  std::vector<uint32_t> units;  // indices into the bucket's units
  uint64_t lane_begin = 0;      // the owner's part of the lane segment, in floats
  uint64_t lane_count = 0;
  BundleShape up, down;
  std::vector<uint32_t> bounds;
  uint64_t up_bound = 0, down_bound = 0;
  Arena out;  // the contribution to this owner
  std::optional<BundleWriter> writer;
  bool delivered = false;  // this owner's mean is here
  uint64_t down_offset = 0;
};

class TwoShot final : public Strategy {
 public:
  TwoShot(RankState& state, const Layout& layout, Counters& counters);
  void begin(const Input& input) override;
  Result<Next> next(std::span<transport::Step> batch) override;
  void put_back() override { undo(false); }

 private:
  enum class Phase : uint8_t { idle, up, up_sent, down_sent };

  /// A failure that this rank tells the others: its own, or one it heard of.
  struct Told {
    Errc code = Errc::internal;
    uint32_t rank = 0;
    uint32_t parameter = BundleFailure::kNoParameter;
    std::string text;
  };

  void plan_shares();
  void reserve();
  [[nodiscard]] BundleId id(BundleKind kind, uint32_t rank) const;
  [[nodiscard]] Capacity& up_capacity(uint32_t from, uint32_t to) {
    return up_[from * world_ + to];
  }
  uint64_t& up_need(uint32_t from, uint32_t to) { return need_[from * world_ + to]; }
  void encode_share(uint32_t owner);
  void encode_unit(uint32_t index, BundleWriter& writer);
  Next emit_up(transport::Step& step);
  void seal_up(uint32_t owner, uint64_t granted, MutBytes at);
  bool receive_up();
  void receive_share(uint32_t from, Bytes bytes);
  void fail(const BundleFailure& failure);
  void fail(const Error& error);
  void stash_ups();
  void own_mean();
  void incomplete_mean();
  void seal_down(uint64_t granted);
  void mean_unit(uint32_t index, BundleWriter& writer);
  Next emit_down(transport::Step& step);
  Result<Next> receive_down(std::span<transport::Step> batch);
  Result<void> parse_down(uint32_t owner, Bytes bytes);
  void note_lengths(uint32_t owner, const BundleView& view);
  void stash_downs();
  Result<void> check_means() const;
  void finish();
  void undo(bool gradient_travels);

  RankState* state_;
  Counters* counters_;
  uint32_t world_;
  uint32_t rank_;
  BucketPlan plan_;
  WorkMemory memory_, mean_memory_;
  std::vector<Share> shares_;
  std::vector<Bytes> sent_;       // own contributions, by unit
  std::vector<Bytes> mean_sent_;  // own re-encoded means, by unit; empty: not owned or nothing sent
  std::vector<uint64_t> mean_offset_;
  std::vector<float> means_;  // of owned units, side by side; needed until delivery is sure
  std::vector<float> lane_segment_;
  std::vector<Capacity> up_, down_;
  std::vector<uint64_t>
      need_;  // bytes to grant each (from, to) in this up round; 0: nothing to send
  std::vector<uint64_t> down_need_;  // likewise by owner
  std::vector<uint64_t> seen_;       // lengths that this owner received
  Arena up_send_, up_recv_, down_send_, down_recv_;
  Arena up_stash_, down_stash_;  // what arrived before a repeat round
  std::optional<BundleWriter> mean_writer_;
  std::vector<BundleView> ups_;
  std::vector<uint8_t> up_here_;
  std::vector<BundleView> downs_;
  std::vector<SlotCursor> cursors_;
  std::vector<Slot> slots_;
  std::vector<Term> terms_;
  std::vector<const void*> lanes_;
  std::vector<uint64_t> send_counts_, send_offsets_, recv_counts_, recv_offsets_;
  Input input_;
  Phase phase_ = Phase::idle;
  uint8_t round_ = 0;
  std::optional<Told> told_;
  bool mean_ready_ = false;       // own mean is encoded
  bool up_non_finite_ = false;    // some contribution to this owner is not finite
  bool down_non_finite_ = false;  // some owner says so
  bool out_of_memory_ = false;
};

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
  const bool exact = state_->codec().contract().exact_size;
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

void TwoShot::encode_share(uint32_t owner) {
  Share& share = shares_[owner];
  share.writer.emplace(share.out.bytes(), share.up);
  std::memcpy(share.writer->lanes().data(), lane_segment_.data() + share.lane_begin,
              share.lane_count * sizeof(float));
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

void TwoShot::seal_up(uint32_t owner, uint64_t granted, MutBytes at) {
  const BundleId mine = id(BundleKind::contribution, rank_);
  if (told_) {
    write_failure_bundle(
        mine, {told_->code, told_->rank, input_.bucket, told_->parameter, told_->text}, at);
    return;
  }
  Share& share = shares_[owner];
  const BundleSize size = share.writer->finish(mine, granted);
  std::memcpy(at.data(), share.out.bytes().data(), size.bytes);
}

Next TwoShot::emit_up(transport::Step& step) {
  uint64_t send = 0, recv = 0;
  for (uint32_t r = 0; r < world_; ++r) {  // the own share never leaves this rank
    send_counts_[r] = r == rank_ ? 0 : up_need(rank_, r);
    recv_counts_[r] = r == rank_ ? 0 : up_need(r, rank_);
    send_offsets_[r] = send;
    recv_offsets_[r] = recv;
    if (send_counts_[r] != 0)
      seal_up(r, send_counts_[r], up_send_.bytes().subspan(send, send_counts_[r]));
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
          recv_offsets_};
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
  if (told_) {
    write_failure_bundle(mine,
                         {told_->code, told_->rank, input_.bucket, told_->parameter, told_->text},
                         down_send_.bytes());
  } else {
    mean_writer_->finish(mine, granted);
  }
}

Next TwoShot::emit_down(transport::Step& step) {
  uint64_t recv = 0;
  for (uint32_t r = 0; r < world_; ++r) {
    recv_counts_[r] = down_need_[r];
    recv_offsets_[r] = recv;
    send_counts_[r] = down_need_[rank_];
    send_offsets_[r] = 0;
    recv += recv_counts_[r];
  }
  counters_->wire_bytes += (world_ - 1) * down_need_[rank_];
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
          recv_offsets_};
  phase_ = Phase::down_sent;
  return {Verdict::steps, 1};
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

Result<Next> TwoShot::receive_down(std::span<transport::Step> batch) {
  for (uint32_t o = 0; o < world_; ++o) {
    if (recv_counts_[o] == 0) continue;
    const Bytes bytes(down_recv_.bytes().data() + recv_offsets_[o], recv_counts_[o]);
    if (auto r = parse_down(o, bytes); !r) return std::move(r).error();
  }
  if (down_non_finite_) {
    undo(true);
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
    std::memcpy(lane_segment_.data() + shares_[o].lane_begin, downs_[o].lanes.data(),
                downs_[o].lanes.size());
  }
  plan_.unpack_lanes(lane_segment_.data(), input_.gradient);
  phase_ = Phase::idle;
}

/// Undoes what this rank did as a sender and as an owner. The owner's mean is not delivered either
/// way, and lives on in the senders: so its residual returns to what it was.
void TwoShot::undo(bool gradient_travels) {
  if (phase_ == Phase::idle) return;
  phase_ = Phase::idle;
  const pipeline::UnitCodec& codec = state_->codec();
  for (uint32_t i = 0; i < plan_.units.size(); ++i) {
    const BucketUnit& u = plan_.units[i];
    Work work = memory_.work(i, codec);
    const Place place = state_->place(input_.step, 0);
    if (!sent_[i].empty() && gradient_travels) {
      codec.take_back(u.piece->send, place, sent_[i], input_.gradient + u.offset, work);
    } else if (!sent_[i].empty()) {
      codec.put_back(u.piece->send, place, sent_[i], work);
    }
    if (mean_sent_[i].empty()) continue;
    Work mean_work = mean_memory_.work(i, codec);
    codec.take_back(u.piece->mean, state_->place(input_.step, 1), mean_sent_[i],
                    means_.data() + mean_offset_[i], mean_work);
  }
}

}  // namespace

std::unique_ptr<Strategy> make_two_shot(RankState& state, const Layout& layout,
                                        Counters& counters) {
  return std::make_unique<TwoShot>(state, layout, counters);
}

}  // namespace laconic::collective

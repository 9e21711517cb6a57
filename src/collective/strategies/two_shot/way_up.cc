// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/strategies/two_shot/way_up.h"

#include <algorithm>
#include <cstring>

#include "aggregate/mean.h"
#include "collective/exchange/strategy_parts.h"

namespace laconic::collective {
namespace {

/// Payloads go into the bundles for their owners.
class ShareSink final : public pipeline::PayloadSink {
 public:
  ShareSink(const BucketPlan& plan, std::vector<std::optional<BundleWriter>>& writers,
            Counters& counters)
      : plan_(&plan), writers_(&writers), counters_(&counters) {}
  MutBytes room(uint32_t unit) override { return room_ = writer(unit).room(); }
  Bytes put(uint32_t unit, const pipeline::UnitEncoded& encoded) override {
    put_unit(encoded, writer(unit), *counters_);
    return room_.first(encoded.bytes);
  }

 private:
  [[nodiscard]] BundleWriter& writer(uint32_t unit) {
    return *(*writers_)[plan_->units[unit].piece->owner];
  }

  const BucketPlan* plan_;
  std::vector<std::optional<BundleWriter>>* writers_;
  Counters* counters_;
  MutBytes room_;
};

}  // namespace

WayUp::WayUp(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters)
    : state_(&state),
      plan_(&plan),
      shares_(&shares),
      counters_(&counters),
      batch_(state.batches().frames(state.world())),
      sizes_(state.world()) {
  const uint32_t world = state.world();
  plan.fill(*batch_);
  for (const Share& share : shares.of) capacity_.emplace_back(share.up_bound, plan.exact);
  for (auto* v : {&need_to_, &need_from_}) v->resize(world);
  writers_.resize(world);
  views_.resize(world);
  here_.resize(world);
  overflowed_.resize(world);
  cursors_.resize(world);
  lanes_.resize(world);
}

void WayUp::replan() {
  plan_->fill(*batch_);
  for (uint32_t o = 0; o < state_->world(); ++o)
    capacity_[o].rebound(shares_->of[o].up_bound, plan_->exact);
}

bool WayUp::reserve() {
  const uint64_t room = state_->world() * round_up(own().up_bound, 64);
  return batch_->reserve() && out_.reserve(shares_->up_bytes) && recv_.reserve(room) &&
         (plan_->exact || stash_.reserve(room));
}

Result<void> WayUp::begin(const Input& input, bool encodes, OwnShare* own) {
  input_ = input;
  received_ = {};
  batch_->begin(state_->place(input_.step, 0));
  std::fill(here_.begin(), here_.end(), uint8_t{0});
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const bool self = r == state_->rank();  // its own share never leaves this rank
    need_to_[r] = self ? 0 : capacity_[r].bytes();
    need_from_[r] = self ? 0 : capacity_[state_->rank()].bytes();
  }
  if (!encodes || input_.failure != nullptr) return {};
  for (uint32_t o = 0; o < state_->world(); ++o) start_bundle(o);
  return encode(own);
}

void WayUp::mark_non_finite() {
  for (auto& writer : writers_) writer->mark_non_finite();
}

void WayUp::start_bundle(uint32_t owner) {
  const Share& share = shares_->of[owner];
  BundleWriter& writer = writers_[owner].emplace(out(owner), share.up);
  writer.set_flush(input_.flush_request);
  uint8_t* lanes = writer.lanes().data();
  plan_->over_lanes(share.lane_begin, share.lane_end,
                    [&](uint64_t at, uint64_t lane, uint64_t count) {
                      std::memcpy(lanes + (lane - share.lane_begin) * sizeof(float),
                                  input_.gradient + at, count * sizeof(float));
                    });
}

/// An owner's bundle has its units in the order of the bucket.
Result<void> WayUp::encode(OwnShare* own) {
  ShareSink sink(*plan_, writers_, *counters_);
  const pipeline::UnitFloats gradients = plan_->in(input_);
  const auto all = batch_->all();
  Result<void> encoded;
  if (own == nullptr) {
    encoded = batch_->encode(all, gradients, sink);
    if (!encoded) keep_all(*batch_, all, gradients);
    return encoded;
  }
  for (uint32_t i = 0; encoded && i < all.size(); ++i) {
    if (own->has(i)) {
      sink.put(i, own->take(i, gradients.of(i)));
      continue;
    }
    encoded = batch_->encode(all.subspan(i, 1), gradients, sink);
    if (encoded) continue;
    batch_->undo(all.first(i), gradients, pipeline::Undo::gradient_lost);
    keep_all(*batch_, all.subspan(i), gradients);
  }
  return encoded;
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
  const pipeline::Received received{own().units, from, view->slots()};
  if (auto ok = batch_->check({&received, 1}); !ok) return fail(ok.error());
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

Result<void> WayUp::means(pipeline::UnitFloats out) {
  for (uint32_t r = 0; r < state_->world(); ++r) cursors_[r] = views_[r].slots();
  return batch_->mean(own().units, cursors_, out);
}

}  // namespace laconic::collective

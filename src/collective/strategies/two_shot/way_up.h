// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot's way up: every rank sends each owner (the rank that takes the mean of a range) the
// bundle of its ranges, and the owner takes the mean of what arrives. 3LC's push, with the server
// spread over the ranks (3LC, MLSys 2019, section 3). Also the push of push_pull.
#pragma once

#include <optional>

#include "collective/plan/capacity.h"
#include "collective/strategies/two_shot/own_share.h"
#include "collective/strategies/two_shot/shares.h"
#include "collective/strategies/two_shot/told.h"
#include "pipeline/batch_codec.h"

namespace laconic::collective {

class WayUp {
 public:
  WayUp(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters);
  /// False: no memory.
  [[nodiscard]] bool reserve();
  /// The shares have other sizes.
  void replan();

  /// Starts an exchange: grants capacities and, unless this rank has failed already or the gradient
  /// goes another way, encodes. `own` takes what this rank contributes to its own means; null: that
  /// is encoded, too. An error is BatchCodec::encode's.
  Result<void> begin(const Input& input, bool encodes = true, OwnShare* own = nullptr);
  /// Called before emit(): a value that this rank sends to an owner is not finite. All owners
  /// receive the mark.
  void mark_non_finite();
  /// An all-to-all of the bundles that are still to be delivered.
  void emit(uint8_t round, const Told& told, Step& step);
  /// Takes in what the round brought. True: every contribution to this owner is here and checked.
  [[nodiscard]] bool receive(Told& told);
  /// Before a repeat round: what has arrived moves out of the way.
  void stash();

  /// The bundles that this owner received from all ranks.
  struct Received {
    uint64_t seen = 0;        ///< the largest bundle that anyone made, in bytes
    uint32_t flush = 0;       ///< the longest flush that a contributor asks for
    bool non_finite = false;  ///< some contribution is not finite
  };
  /// But for `seen` only once receive() was true.
  [[nodiscard]] const Received& received() const noexcept { return received_; }
  /// An owner says what the largest bundle for it takes, or 0: it has them all. A bundle of this
  /// rank that did not fit travels again, and so, to this owner, does one that is not here.
  void regrant(uint32_t owner, uint64_t seen);
  /// Everything was delivered to `owner`: all ranks learn what the largest bundle took.
  void learn(uint32_t owner, uint64_t seen) { capacity_[owner].saw(seen); }

  // Once receive() was true:
  /// Mean of the owner's lanes, at any alignment.
  void mean_of_lanes(uint8_t* out);
  /// Means of this owner's units.
  Result<void> means(pipeline::UnitFloats out);
  /// An owner's means are in the gradient buffer.
  void commit(uint32_t owner) {
    batch_->commit(shares_->of[owner].units, state_->world(), plan_->in(input_));
  }
  /// Nothing of what this rank sends to an owner counts.
  void undo(uint32_t owner, pipeline::Undo why) {
    batch_->undo(shares_->of[owner].units, plan_->in(input_), why);
  }
  /// The means of an owner, in the gradient buffer, travel no further.
  void keep_means(uint32_t owner) { batch_->keep(shares_->of[owner].units, plan_->in(input_)); }

  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(*batch_, capacity_, need_to_, need_from_, writers_, views_, here_, overflowed_,
                cursors_, lanes_, sizes_, out_, recv_, stash_);
  }

 private:
  [[nodiscard]] BundleId id(uint32_t from) const {
    return state_->bundle_id(BundleKind::contribution, from, input_, round_);
  }
  [[nodiscard]] const Share& own() const { return shares_->of[state_->rank()]; }
  [[nodiscard]] MutBytes out(uint32_t owner) {
    return out_.bytes().subspan(shares_->of[owner].up_offset, shares_->of[owner].up_bound);
  }
  void start_bundle(uint32_t owner);
  Result<void> encode(OwnShare* own);
  uint64_t seal(uint32_t owner, uint64_t granted, const Told& told);
  void receive_from(uint32_t from, Bytes bytes, Told& told);

  RankState* state_;
  const BucketPlan* plan_;
  const Shares* shares_;
  Counters* counters_;
  std::unique_ptr<pipeline::FrameBatch> batch_;
  std::vector<Capacity> capacity_;   // by owner: of the bundles to it, the same on all ranks
  std::vector<uint64_t> need_to_;    // bytes to grant in this round; 0: nothing travels
  std::vector<uint64_t> need_from_;  // bytes by sender to this owner
  std::vector<std::optional<BundleWriter>> writers_;
  std::vector<BundleView> views_;    // of contributions to this owner
  std::vector<uint8_t> here_;        // by sender: its contribution to this owner
  std::vector<uint8_t> overflowed_;  // by owner: this rank's bundle did not fit
  std::vector<SlotCursor> cursors_;
  std::vector<const void*> lanes_;
  Sizes sizes_;
  Arena out_, recv_, stash_;
  Input input_;
  Received received_;
  uint8_t round_ = 0;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// two_shot's way down: an owner (the rank that has taken the mean of a range) encodes the mean with
// a residual of its own and sends it to all. Every rank decodes the same bytes, the owner included.
// 3LC's pull.
#pragma once

#include <optional>

#include "collective/plan/capacity.h"
#include "collective/strategies/two_shot/way_up.h"

namespace laconic::collective {

class WayDown {
 public:
  WayDown(RankState& state, const BucketPlan& plan, const Shares& shares, Counters& counters);
  /// False: no memory.
  [[nodiscard]] bool reserve();
  /// The shares have other sizes.
  void replan();

  void begin(const Input& input);
  /// This owner's bundle: the re-encoded means of what arrived, or only the lengths that it saw.
  Result<void> encode(WayUp& up);
  void put_incomplete(const WayUp& up);
  [[nodiscard]] bool encoded() const noexcept { return encoded_; }
  /// An all-gather of the owners' bundles that are still to be delivered.
  void emit(uint8_t round, const Told& told, Step& step);

  /// The contents of the owners' bundles, the same on every rank.
  struct Heard {
    bool non_finite = false;
    bool all_delivered = false;
    bool up_again = false;  ///< some contribution has to travel again
  };
  /// Takes in what the round brought, and what is to be granted in the next.
  Result<Heard> receive(WayUp& up);
  /// Before a repeat round: what has arrived moves out of the way.
  void stash();

  // Once everything is delivered:
  [[nodiscard]] Result<void> check();
  Result<void> finish(WayUp& up);
  /// The longest flush that a rank requested; known as soon as one owner's mean is here.
  [[nodiscard]] uint32_t flush() const noexcept { return flush_; }

  [[nodiscard]] HeardReports reports() const noexcept { return reports_.heard(); }

  /// The owner's mean was not delivered, and lives on in the senders: its residual returns to what
  /// it was.
  void undo();

  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(*batch_, means_at_, received_, capacity_, need_, views_, delivered_, reports_,
                sizes_, out_, recv_, stash_);
  }

 private:
  [[nodiscard]] BundleId id(uint32_t owner) const {
    return state_->bundle_id(BundleKind::mean, owner, input_, round_);
  }
  [[nodiscard]] const Share& own() const { return shares_->of[state_->rank()]; }
  [[nodiscard]] BundleExpect expect(uint32_t owner) const {
    const Share& share = shares_->of[owner];
    return {id(owner), share.down, share.down_bounds, share.up_bound};
  }
  [[nodiscard]] pipeline::UnitFloats means() const {
    return {means_.base, means_.at, input_.there != nullptr ? means_.there : nullptr};
  }
  void plan_units();
  void start_bundle(const WayUp& up);
  uint64_t seal(const Told& told);
  Result<void> parse(uint32_t owner, Bytes bytes, WayUp& up, Heard& heard);
  Result<void> decode_share(uint32_t owner, WayUp& up);

  RankState* state_;
  const BucketPlan* plan_;
  const Shares* shares_;
  Counters* counters_;
  std::unique_ptr<pipeline::FrameBatch> batch_;
  // Means of this owner's units, back to back, until all are delivered.
  std::vector<uint64_t> means_at_;
  pipeline::UnitFloats means_;
  std::vector<pipeline::Received> received_;
  std::vector<Capacity> capacity_;
  std::vector<uint64_t> need_;  // bytes to grant each owner in this round; 0: delivered
  std::vector<BundleView> views_;
  std::vector<uint8_t> delivered_;
  ReportBook reports_;
  std::optional<BundleWriter> writer_;
  Sizes sizes_;
  Arena out_, recv_, stash_;
  Input input_;
  uint8_t round_ = 0;
  uint32_t flush_ = 0;
  bool encoded_ = false;
};

}  // namespace laconic::collective

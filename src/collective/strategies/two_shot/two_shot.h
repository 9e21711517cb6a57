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
#pragma once

#include <optional>
#include <string>

#include "collective/exchange/strategy.h"
#include "collective/plan/bucket_plan.h"
#include "collective/plan/capacity.h"

namespace laconic::collective {

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
  void put_back() override { undo(pipeline::Undo::gradient_lost); }

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
  uint64_t seal_up(uint32_t owner, uint64_t granted, MutBytes at);
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
  void undo(pipeline::Undo why);

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
  uint64_t down_bytes_ = 0;       // of the own mean, to send
  bool mean_ready_ = false;       // own mean is encoded
  bool up_non_finite_ = false;    // some contribution to this owner is not finite
  bool down_non_finite_ = false;  // some owner says so
  bool out_of_memory_ = false;
};

}  // namespace laconic::collective

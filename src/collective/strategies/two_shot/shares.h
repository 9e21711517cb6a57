// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An owner is the rank that takes the mean of some ranges of parameters, its units. A bundle is all
// payloads of one rank for one receiver; the parameters that no codec compresses are in it as
// float32, the lane segment. A share is what goes to one owner and comes back from it: its units,
// its part of the lane segment and the bounds of its bundles. Shares follow from the layout alone,
// so all ranks know them. They grow with the number of ranks, not with its square.
#pragma once

#include <vector>

#include "collective/exchange/bucket_plan.h"
#include "wire/bundle.h"

namespace laconic::collective {

struct Share {
  std::vector<uint32_t> units;                ///< indices into the bucket's units
  std::vector<uint32_t> bounds, down_bounds;  ///< of payloads, by unit
  uint64_t lane_begin = 0;                    ///< the owner's part of the lane segment, in floats
  uint64_t lane_end = 0;
  BundleShape up, down;
  uint64_t up_bound = 0, down_bound = 0;    ///< bytes of a whole bundle at most
  uint64_t up_offset = 0, down_offset = 0;  ///< of all bounds side by side
};

struct Shares {
  std::vector<Share> of;  ///< by owner
  uint64_t up_bytes = 0, down_bytes = 0;

  Shares(const RankState& state, const BucketPlan& bucket) : of(state.world()) { assign(bucket); }
  /// Assigns the current units and plans to owners.
  void assign(const BucketPlan& plan) {
    const uint64_t world = of.size();
    for (Share& share : of) share.units.clear();
    for (uint32_t i = 0; i < plan.units.size(); ++i)
      of[plan.units[i].piece->owner].units.push_back(i);
    up_bytes = down_bytes = 0;
    for (uint64_t o = 0; o < world; ++o) {
      Share& share = of[o];
      share.lane_begin = plan.lanes * o / world;
      share.lane_end = plan.lanes * (o + 1) / world;
      const uint64_t lane_bytes = (share.lane_end - share.lane_begin) * sizeof(float);
      share.up = {static_cast<uint32_t>(share.units.size()), 0, static_cast<uint32_t>(lane_bytes)};
      share.down = share.up;
      if (!plan.exact) share.down.seen = 1;
      share.bounds.clear();
      share.down_bounds.clear();
      for (const uint32_t i : share.units) {
        const RankPiece& piece = *plan.units[i].piece;
        share.bounds.push_back(static_cast<uint32_t>(piece.send.plan.round[0].bytes));
        share.down_bounds.push_back(static_cast<uint32_t>(piece.mean.plan.round[0].bytes));
      }
      share.up_bound = most(share.up, share.bounds);
      share.down_bound = most(share.down, share.down_bounds);
      share.up_offset = up_bytes;
      share.down_offset = down_bytes;
      up_bytes += round_up(share.up_bound, 64);
      down_bytes += round_up(share.down_bound, 64);
    }
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    uint64_t lists = held(of);
    for (const Share& share : of) lists += held(share.units, share.bounds, share.down_bounds);
    return lists;
  }

 private:
  /// Maximum bytes of a bundle.
  static uint64_t most(const BundleShape& shape, const std::vector<uint32_t>& bounds) noexcept {
    uint64_t bytes = bundle_front_bytes(shape);
    for (const uint32_t bound : bounds) bytes += bundle_payload_bytes(bound);
    return std::max(bytes, kMinCapacity);
  }
};

/// Counts and offsets of one collective, by rank.
struct Sizes {
  std::vector<uint64_t> send_counts, send_offsets, recv_counts, recv_offsets;
  explicit Sizes(uint32_t world)
      : send_counts(world), send_offsets(world), recv_counts(world), recv_offsets(world) {}
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(send_counts, send_offsets, recv_counts, recv_offsets);
  }
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters without a codec on their way to an aggregation server.
//
// The server adds integers, so a value travels as 32-bit fixed point (pipeline/fixed_point.h): a
// multiple of a step that follows from the range, a bound on the parameter's magnitude that is the
// same on all ranks. A granule is a block of such integers that fits into a datagram; those of
// parameters without a codec come before those of codes, the integers that a codec makes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "collective/strategies/server_sum/granules.h"

namespace laconic::collective {

/// Uncompressed values of one bucket.
class Values {
 public:
  /// Adds its arrays to the granules, which outlive it. They have no others yet.
  Values(const RankState& state, const BucketPlan& plan, ValueGranules& granules,
         Counters& counters);

  /// Ranges from the state. True: all are known, nothing has to be agreed on first.
  bool start();
  /// Encodes what has a range. `agreed`: a float for each parameter takes the largest magnitude of
  /// what has none, else 0. False: the sum is of no use to anybody.
  bool encode(const float* gradient, std::span<float> agreed);
  /// The largest of all ranks'. Encodes the rest.
  bool encode_rest(const float* gradient, std::span<const float> agreed);
  /// Means; what this rank is not in goes back into its residual. Ranges move on.
  void finish(float* gradient);
  /// The sum is of no use, but has said how large the values are: the next one will be of use.
  void learn();
  void undo(pipeline::Undo why, const float* gradient);

  [[nodiscard]] uint64_t size() const noexcept { return items_.size(); }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(items_); }

 private:
  enum class Way : uint8_t {
    nothing,  ///< zeros, or not finite
    asks,     ///< waits for a range
    sent,
    too_large,  ///< for its range
  };
  struct Item {
    const pipeline::UnitSlot* slot = nullptr;
    const pipeline::UnitCodec* codec = nullptr;
    uint64_t offset = 0;  // in the gradient
    float range = 0;
    float largest = 0;
    Way way = Way::nothing;
  };
  void set_range(uint64_t i, float range);
  bool send(uint64_t i, const float* gradient);
  void move_range(uint64_t i);

  ValueGranules* granules_;
  Counters* counters_;
  std::vector<Item> items_;
};

}  // namespace laconic::collective

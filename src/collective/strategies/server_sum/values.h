// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters that no codec takes, on their way to an aggregator: 32-bit fixed point
// (pipeline/fixed_point.h), in granules of their own beside those of codes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/exchange/bucket_plan.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "laconic/engine.h"

namespace laconic::collective {

/// Granules of 32-bit lanes. Arrays are numbered in the order of add_values.
class ValueCarrier {
 public:
  virtual ~ValueCarrier() = default;
  virtual void add_values(uint64_t count) = 0;
  /// Where an array's lanes have to lie. They stay there until the next exchange begins.
  virtual std::span<int32_t> room_for_values(uint64_t array) = 0;
  /// What a lane of 1 is worth: the same on all ranks, also on those that send none.
  virtual void set_scale(uint64_t array, float scale) = 0;
  /// `norm`: the largest comes back.
  virtual void put_values(uint64_t array, uint16_t norm) = 0;
  /// No lanes, but a norm.
  virtual void put_norm(uint64_t array, uint16_t norm) = 0;
  [[nodiscard]] virtual uint16_t largest_norm(uint64_t array) const = 0;
  /// Of a granule of the array.
  struct Sum {
    uint64_t begin = 0, count = 0;   ///< its lanes in the array
    std::span<const int32_t> lanes;  ///< empty: nobody had anything
    uint32_t divisor = 1;
    bool left_out = false;  ///< this rank's are not in it
  };
  [[nodiscard]] virtual uint64_t granules_of(uint64_t array) const = 0;
  [[nodiscard]] virtual Sum sum_of(uint64_t array, uint64_t granule) = 0;
};

/// Of one bucket.
class Values {
 public:
  /// Adds its arrays to the carrier, which outlives it.
  Values(const RankState& state, const BucketPlan& plan, ValueCarrier& carrier, Counters& counters);

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

  ValueCarrier* carrier_;
  Counters* counters_;
  std::vector<Item> items_;
};

}  // namespace laconic::collective

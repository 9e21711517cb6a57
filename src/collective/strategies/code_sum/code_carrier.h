// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How codes travel. A code is the integer that a codec makes of an element; codes of all ranks are
// summed without decoding. An engine adds them as fields of int32, or an aggregation server adds
// them in granules, blocks that fit into a datagram. The strategy is the same for both.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "laconic/codec.h"
#include "laconic/engine.h"

namespace laconic::collective {

class ValueGranules;

/// Carries the quantized values of one bucket. Units are numbered in the order of add_unit.
class CodeCarrier {
 public:
  virtual ~CodeCarrier() = default;

  // ---- once ----

  virtual void add_unit(const pipeline::UnitSlot& slot) = 0;
  /// Called after all units and values: reserves memory for riders, with at most `report_slots`
  /// reports.
  virtual void add_rides(uint32_t report_slots) = 0;
  [[nodiscard]] virtual bool reserve() = 0;
  [[nodiscard]] virtual uint64_t held_bytes() const noexcept = 0;

  // ---- what goes out ----

  /// Clears all units, the flush request, failures and `report_slots` slots of reports.
  virtual void begin(uint64_t exchange, uint32_t report_slots) = 0;
  /// Integers have no NaN: the sum is of no use to anybody.
  virtual void report_trouble() = 0;
  /// This rank adds nothing to the unit.
  virtual void put_nothing(uint64_t unit) = 0;
  /// `codes` (RoundPlan::bytes of them, which stay where they are) and the maxima in work.kept.
  virtual void put(uint64_t unit, const Spec& spec, Bytes codes, Work& work) = 0;
  /// Riders (see riders.h) as int32 elements.
  struct Rides {
    MutBytes flush, reports;
  };
  virtual Rides rides_out() = 0;
  virtual Step step() = 0;

  // ---- the same bytes on all ranks ----

  [[nodiscard]] virtual bool trouble() const = 0;
  /// The sums of what rode along: zeros where there is none.
  virtual Rides rides_in() = 0;
  /// The unit's summed lanes, and who is in them; the largest maxima into work.kept.
  virtual Term sum(uint64_t unit, Work& work) = 0;
  /// Per granule of the unit: 1 if this rank's values are not in the sum. Empty: all are.
  [[nodiscard]] virtual std::span<const uint8_t> left_out(uint64_t unit) const = 0;

  /// Null: it carries codes alone.
  [[nodiscard]] virtual ValueGranules* values() noexcept { return nullptr; }
};

std::unique_ptr<CodeCarrier> make_integer_lanes(const RankState& state);
std::unique_ptr<CodeCarrier> make_code_granules(const RankState& state, Counters& counters);

}  // namespace laconic::collective

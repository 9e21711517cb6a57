// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Codes that are summed without decoding, as an engine's sum of int32 carries them: four lanes of
// 8 bits or two of 16 in one, which the headroom rule keeps from reaching into their neighbours.
// Integers have no NaN, so trouble has a lane of its own; who contributed, and maxima, ride along.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/exchange/held.h"
#include "laconic/bytes.h"
#include "laconic/codec.h"

namespace laconic::collective {

/// The layout of one bucket's units in a buffer of int32 lanes. Holds no lanes itself.
///
///     trouble, then by unit: added | a slot of maxima for each rank, two in a lane | lanes
///
/// A rank leaves the others' slots at zero: their sum is a gather.
class IntegerLanes {
 public:
  /// int32 lanes that all units take; 0 where there are none.
  [[nodiscard]] uint64_t lanes() const noexcept { return bytes_ == 4 ? 0 : bytes_ / 4; }
  void add_unit(const RoundPlan& round, uint32_t rank, uint32_t world);
  void skip_unit() { regions_.push_back({}); }
  /// So many more lanes, for something else, behind the units that there are; their offset in bytes.
  uint64_t reserve(uint32_t lanes) {
    const uint64_t at = bytes_;
    bytes_ += uint64_t{4} * lanes;
    return at;
  }

  /// Nothing yet: no trouble.
  static void begin(MutBytes all) { store<uint32_t>(all.data(), 0); }
  static void report_trouble(MutBytes all) { store<uint32_t>(all.data(), 1); }
  static bool trouble(Bytes all) { return load<uint32_t>(all.data()) != 0; }

  /// This rank adds nothing to the unit.
  void put_nothing(uint64_t unit, MutBytes all) const;
  /// Lanes for what `codes` (RoundPlan::bytes of them) say, and the maxima in work.kept.
  void put(uint64_t unit, const CodecTable& codec, const void* params, const Unit& of, Bytes codes,
           Work& work, MutBytes all) const;

  // ---- of the sum ----

  [[nodiscard]] uint32_t added(uint64_t unit, Bytes all) const {
    return load<uint32_t>(all.data() + regions_[unit].added);
  }
  [[nodiscard]] MutBytes sums(uint64_t unit, MutBytes all) const {
    return all.subspan(regions_[unit].sums, regions_[unit].bytes);
  }
  /// The largest over all ranks into work.kept.
  void take_maxima(uint64_t unit, Bytes all, Work& work) const;
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(regions_); }

 private:
  struct Region {
    uint64_t added = 0;  // bytes, as all offsets
    uint64_t maxima = 0;
    uint64_t sums = 0;
    uint64_t bytes = 0;    // of sums
    uint64_t numbers = 0;  // maxima of one rank
  };
  std::vector<Region> regions_;
  uint64_t bytes_ = 4;
  uint32_t rank_ = 0;
  uint32_t world_ = 1;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Reports of ranks travel without an extra round: in the header of a bundle that all ranks receive,
// or in elements after those that are summed anyway. There every rank has a slot and leaves the
// others' at zero, so that the sum is a gather: each element holds a whole number that its type
// adds without rounding, and only one rank writes it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "collective/exchange/held.h"
#include "control/report.h"
#include "laconic/bytes.h"
#include "laconic/dtype.h"
#include "wire/bundle.h"

namespace laconic::collective {

/// The report of this rank in an exchange. Whether there is one, `step` and `turn` are the same on
/// all ranks; `report` may be missing.
struct OwnReport {
  control::Report report;
  uint64_t step = 0;  ///< that it is about
  uint64_t turn = 0;  ///< exchanges that carried reports before this one
};

/// Reports of the ranks from `first` on, the same on every rank; empty: the exchange carried none.
struct HeardReports {
  uint32_t first = 0;
  std::span<const control::Report> reports;
};

/// More ranks than this take turns in lanes: 64 slots are 1.5 kB of float32.
inline constexpr uint32_t kReportSlots = 64;

/// Who has a slot in that turn: ranks 0 to 63, then 64 to 127, and so on around.
struct SlotTurn {
  uint32_t first = 0;
  uint32_t count = 0;
};
[[nodiscard]] SlotTurn slot_turn(uint32_t world, uint64_t turn) noexcept;

/// Lanes of a report: 6 of f32, a word each; 12 of 16-bit floats, a byte each; 3 of i32, its bytes
/// as they are. No other type carries one.
[[nodiscard]] uint64_t report_lanes(DType type) noexcept;
/// Into report_lanes(type) lanes, and back from their sum. What no report could have become is a
/// missing one.
void put_report(DType type, const control::Report& report, uint8_t* lanes) noexcept;
[[nodiscard]] control::Report get_report(DType type, const uint8_t* lanes) noexcept;

/// In the header of a bundle; null: zeros.
[[nodiscard]] BundleReport bundle_report(const OwnReport* own) noexcept;
/// A peer's; missing unless it is about the step that this rank reports on.
[[nodiscard]] control::Report heard_report(const BundleReport& report,
                                           const OwnReport& own) noexcept;

/// The reports that a strategy receives, with memory for those of all ranks.
class ReportBook {
 public:
  void reserve(bool reports, uint32_t world) { reports_.resize(reports ? world : 0); }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(reports_); }

  void begin() noexcept { heard_ = {}; }
  /// From bundles: one by one, those of ranks that say nothing as missing.
  void hear(uint32_t rank, const BundleReport& report, const OwnReport* own) noexcept;
  /// From sums: all slots of the turn.
  void hear_lanes(SlotTurn turn, DType type, const uint8_t* lanes) noexcept;
  [[nodiscard]] HeardReports heard() const noexcept { return heard_; }

 private:
  std::vector<control::Report> reports_;
  HeardReports heard_;
};

}  // namespace laconic::collective

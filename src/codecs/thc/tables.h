// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Tables of thc: 2^bits integers from 0 to g that make the rounding of a standard normal variable,
// clamped to ±t, cost least (Li et al., THC, NSDI 2024). All symmetric: T[z] + T[last - z] = g.
//
// Pure functions. Libraries differ in the last bits of erfc and exp. Costs within kTieTolerance,
// thousands of times as much, count as equal; all others differ by a hundred times that at least,
// for p from 1/32 to 1/1024 (tests/unit/codecs/tables_test.cc). So all machines choose the same
// table.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "kernels/rotate/grid.h"

namespace laconic::codecs::thc {

inline constexpr uint32_t kMinBits = 2;
inline constexpr uint32_t kMaxBits = 4;
using kernels::kMaxGrid;
/// Relative to the cost.
inline constexpr double kTieTolerance = 1e-9;

struct Table {
  uint32_t bits = 0;
  uint32_t g = 0;
  std::array<uint8_t, 16> value{};  ///< 2^bits of them
  /// Variance of the rounding inside ±t, in units of the variable's own variance.
  double cost = 0;
};

/// t with P(|N| > t) = p, 0 < p <= 1/2: where a fraction p is clamped.
[[nodiscard]] double clamping_point(double p);
/// Mean square of what lies beyond ±t.
[[nodiscard]] double clamping_error(double t);
/// E[(a - l)(r - a)] over l < a < r: what rounding to one of the two costs.
[[nodiscard]] double rounding_cost(double l, double r);

/// The cost of rounding between two values: [i][j] for i < j <= g.
using PairCosts = std::array<std::array<double, kMaxGrid + 1>, kMaxGrid + 1>;
/// The cheapest symmetric table by these costs, which are symmetric themselves; of equal ones the
/// first in lexicographic order. 2^bits - 1 <= g <= kMaxGrid.
[[nodiscard]] Table cheapest_table(uint32_t bits, uint32_t g, const PairCosts& costs);
/// That of the clamped normal variable.
[[nodiscard]] Table optimal_table(uint32_t bits, uint32_t g, double p);
/// T[z] = z.
[[nodiscard]] Table uniform_table(uint32_t bits, double p);

/// Whether sums of `world` values up to g fit lanes of this width.
[[nodiscard]] constexpr bool fits_lanes(uint32_t g, uint64_t world, uint32_t lane_bits) noexcept {
  return world <= ((uint64_t{1} << lane_bits) - 1) / g;
}
/// The largest world that fits any table with this number of bits.
[[nodiscard]] constexpr uint64_t largest_world(uint32_t bits, uint32_t lane_bits) noexcept {
  return ((uint64_t{1} << lane_bits) - 1) / ((1U << bits) - 1);
}
/// The cheapest of the optimal tables that fit, the one with the smallest g if several are; none
/// for a world above largest_world.
[[nodiscard]] std::optional<Table> choose_table(uint32_t bits, double p, uint64_t world,
                                                uint32_t lane_bits);

/// Expected error of one rank's normal block with the table's p: clamping and rounding, relative to
/// its squared norm. A mean over n ranks has 1/n of it.
[[nodiscard]] double expected_error(const Table& table, double p);

}  // namespace laconic::codecs::thc

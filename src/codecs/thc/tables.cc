// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/thc/tables.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

namespace laconic::codecs::thc {
namespace {

double density(double x) {
  return std::exp(-x * x / 2) * (std::numbers::inv_sqrtpi / std::numbers::sqrt2);
}
double below(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

/// A place on the axis, with the normal law's functions there.
struct Point {
  double at = 0, density = 0, below = 0;

  Point() = default;
  explicit Point(double x) : at(x), density(thc::density(x)), below(thc::below(x)) {}
};

double cost_between(const Point& l, const Point& r) {
  const double mass = r.below - l.below;
  const double first = l.density - r.density;                        // E[a]
  const double second = mass + l.at * l.density - r.at * r.density;  // E[a^2]
  return -second + (l.at + r.at) * first - l.at * r.at * mass;
}

PairCosts pair_costs(uint32_t g, double t) {
  std::array<Point, kMaxGrid + 1> q;
  for (uint32_t i = 0; i <= g; ++i) q[i] = Point(-t + 2 * t * i / g);
  PairCosts costs;
  for (uint32_t i = 0; i < g; ++i) {
    for (uint32_t j = i + 1; j <= g; ++j) costs[i][j] = cost_between(q[i], q[j]);
  }
  return costs;
}

double total(const Table& table, const PairCosts& costs) {
  double sum = 0;
  for (uint32_t z = 1; z < 1U << table.bits; ++z) sum += costs[table.value[z - 1]][table.value[z]];
  return sum;
}

/// Lower halves of symmetric tables from their end: [m][i] is what a table costs between value i
/// and its mirror image g - i, if m more values lie between i and the middle.
using Remaining = std::array<std::array<double, (kMaxGrid + 1) / 2>, (1U << kMaxBits) / 2>;

void fill_remaining(uint32_t steps, uint32_t g, const PairCosts& costs, Remaining& remaining) {
  const uint32_t half = (g + 1) / 2;  // i < g - i
  for (uint32_t i = 0; i < half; ++i) remaining[0][i] = costs[i][g - i];
  for (uint32_t m = 1; m <= steps; ++m) {
    for (uint32_t i = 0; i < half; ++i) {
      double least = std::numeric_limits<double>::infinity();
      for (uint32_t j = i + 1; j < half; ++j) {
        least = std::min(least, 2 * costs[i][j] + remaining[m - 1][j]);
      }
      remaining[m][i] = least;
    }
  }
}

}  // namespace

double clamping_point(double p) {
  // Newton on erfc(t/√2) = p, convex and falling: from the left no step goes too far.
  double t = 0;
  for (uint32_t i = 0; i < 200; ++i) {
    const double step = (std::erfc(t / std::numbers::sqrt2) - p) / (2 * density(t));
    t += step;
    if (std::abs(step) <= 1e-15 * t) break;
  }
  return t;
}

double clamping_error(double t) { return 2 * ((1 + t * t) * below(-t) - t * density(t)); }

double rounding_cost(double l, double r) { return cost_between(Point(l), Point(r)); }

Table cheapest_table(uint32_t bits, uint32_t g, const PairCosts& costs) {
  const uint32_t steps = (1U << bits) / 2 - 1, last = (1U << bits) - 1, half = (g + 1) / 2;
  Remaining remaining;
  fill_remaining(steps, g, costs, remaining);
  Table table{bits, g, {}, 0};
  table.value[last] = static_cast<uint8_t>(g);
  // From 0 on the smallest value that still leads to the least cost.
  const double bound = remaining[steps][0] * (1 + kTieTolerance);
  double spent = 0;
  for (uint32_t z = 1, i = 0; z <= steps; ++z) {
    uint32_t j = i + 1;
    while (j + 1 < half && spent + 2 * costs[i][j] + remaining[steps - z][j] > bound) ++j;
    spent += 2 * costs[i][j];
    i = j;
    table.value[z] = static_cast<uint8_t>(i);
    table.value[last - z] = static_cast<uint8_t>(g - i);
  }
  table.cost = total(table, costs);
  return table;
}

Table optimal_table(uint32_t bits, uint32_t g, double p) {
  return cheapest_table(bits, g, pair_costs(g, clamping_point(p)));
}

Table uniform_table(uint32_t bits, double p) {
  Table table{bits, (1U << bits) - 1, {}, 0};
  for (uint32_t z = 0; z <= table.g; ++z) table.value[z] = static_cast<uint8_t>(z);
  table.cost = total(table, pair_costs(table.g, clamping_point(p)));
  return table;
}

std::optional<Table> choose_table(uint32_t bits, double p, uint64_t world, uint32_t lane_bits) {
  std::optional<Table> best;
  for (uint32_t g = (1U << bits) - 1; g <= kMaxGrid && fits_lanes(g, world, lane_bits); ++g) {
    const Table table = optimal_table(bits, g, p);
    if (!best || table.cost < best->cost * (1 - kTieTolerance)) best = table;
  }
  return best;
}

double expected_error(const Table& table, double p) {
  return clamping_error(clamping_point(p)) + table.cost;
}

}  // namespace laconic::codecs::thc

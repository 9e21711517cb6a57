// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/thc/tables.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kernels/rotate/grid.h"

namespace laconic::codecs::thc {
namespace {

using Values = std::vector<uint32_t>;

Values values_of(const Table& table) {
  return {table.value.begin(), table.value.begin() + (1 << table.bits)};
}

double tail(double p) { return 1 - p / 2; }
double normal_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }

/// The integral itself, by Simpson's rule.
double integrated_cost(double l, double r, int steps = 200) {
  const double h = (r - l) / steps;
  double sum = 0;
  for (int i = 0; i <= steps; ++i) {
    const double a = l + h * i;
    const double f = (a - l) * (r - a) * std::exp(-a * a / 2) / std::sqrt(2 * std::acos(-1.0));
    sum += f * (i == 0 || i == steps ? 1 : i % 2 == 1 ? 4 : 2);
  }
  return sum * h / 3;
}

double place(uint32_t i, uint32_t g, double t) { return -t + 2 * t * i / g; }

double integrated_cost(const Values& table, double t) {
  double cost = 0;
  for (size_t z = 1; z < table.size(); ++z) {
    cost += integrated_cost(place(table[z - 1], table.back(), t), place(table[z], table.back(), t));
  }
  return cost;
}

/// Every symmetric table for g, in lexicographic order.
void extend(uint32_t bits, uint32_t g, Values& lower, std::vector<Values>& all) {
  const size_t half = (size_t{1} << bits) / 2;
  if (lower.size() == half) {
    Values table = lower;
    for (size_t z = half; z-- > 0;) table.push_back(g - lower[z]);
    all.push_back(table);
    return;
  }
  for (uint32_t v = lower.back() + 1; 2 * v < g; ++v) {
    lower.push_back(v);
    extend(bits, g, lower, all);
    lower.pop_back();
  }
}
std::vector<Values> symmetric_tables(uint32_t bits, uint32_t g) {
  std::vector<Values> all;
  Values lower{0};
  extend(bits, g, lower, all);
  return all;
}

TEST(ThcTables, ClampingPointsMatchReference) {
  // from 60 digits
  const double t[] = {2.1538746940614562, 2.4175590162365051, 2.6600674686174597,
                      2.8856349124267571, 3.0972690781987845, 3.2971933456919634};
  for (int k = 0; k < 6; ++k) {
    const double p = std::ldexp(1.0, -5 - k), got = clamping_point(p);
    EXPECT_NEAR(got, t[k], 2e-15) << p;
    EXPECT_EQ(static_cast<float>(got), static_cast<float>(t[k]));
    // far from the middle between two floats: a library's last bits do not show
    const auto rounded = static_cast<float>(t[k]);
    const float next = std::nextafter(rounded, t[k] > static_cast<double>(rounded) ? 9.0F : 0.0F);
    const double middle = (static_cast<double>(rounded) + static_cast<double>(next)) / 2;
    EXPECT_GT(std::abs(t[k] - middle), 1e-10);
    EXPECT_NEAR(normal_below(got), tail(p), 1e-15);
  }
  for (const double p : {0.5, 0.1, 1e-3, 1e-6, 1e-12}) {
    EXPECT_NEAR(std::erfc(clamping_point(p) / std::sqrt(2.0)) / p, 1, 1e-12);
  }
}

TEST(ThcTables, ClampingErrorsMatchReference) {
  EXPECT_NEAR(clamping_error(clamping_point(1.0 / 32)), 0.00727, 5e-6);
  EXPECT_NEAR(clamping_error(clamping_point(1.0 / 64)), 0.00315, 5e-6);
  EXPECT_NEAR(clamping_error(clamping_point(1.0 / 512)), 0.00028, 5e-6);
}

TEST(ThcTables, CostsMatchIntegral) {
  for (const auto& [l, r] : std::vector<std::pair<double, double>>{
           {-2, -1.5}, {-0.07, 0.07}, {-3, 3}, {0.5, 0.6}, {2.9, 3.1}}) {
    EXPECT_NEAR(rounding_cost(l, r), integrated_cost(l, r, 20000), 1e-13) << l << " " << r;
  }
  EXPECT_NEAR(uniform_table(4, 1.0 / 32).cost, 0.01332, 5e-6);
  EXPECT_NEAR(uniform_table(4, 1.0 / 64).cost, 0.01705, 5e-6);
  EXPECT_NEAR(uniform_table(4, 1.0 / 512).cost, 0.02837, 5e-6);
}

TEST(ThcTables, DefaultTableIsKnown) {
  const Table table = optimal_table(4, 30, 1.0 / 32);
  EXPECT_EQ(values_of(table), (Values{0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30}));
  EXPECT_NEAR(table.cost, 0.013075, 5e-7);
  EXPECT_NEAR(2 * clamping_point(1.0 / 32) / 30, 0.1435916462707637, 1e-15);
  // not monotone in g, and bad for a small even one
  EXPECT_NEAR(optimal_table(4, 17, 1.0 / 32).cost / table.cost, 0.96, 0.005);
  EXPECT_NEAR(optimal_table(4, 16, 1.0 / 32).cost, 0.01945, 5e-6);
  EXPECT_NEAR(expected_error(table, 1.0 / 32), 0.013075 + 0.00727, 6e-6);
}

TEST(ThcTables, SmallestGIsUniform) {
  for (uint32_t bits = kMinBits; bits <= kMaxBits; ++bits) {
    const Table uniform = uniform_table(bits, 0.01);
    EXPECT_EQ(values_of(optimal_table(bits, uniform.g, 0.01)), values_of(uniform));
    EXPECT_EQ(uniform.g, (1U << bits) - 1);
  }
}

TEST(ThcTables, NoSymmetricTableIsCheaper) {
  for (const double p : {1.0 / 32, 1.0 / 512}) {
    const double t = clamping_point(p);
    for (uint32_t bits = kMinBits; bits <= kMaxBits; ++bits) {
      const uint32_t most = bits == 4 ? 25 : 33;
      for (uint32_t g = (1U << bits) - 1; g <= most; ++g) {
        Values best;
        double least = std::numeric_limits<double>::infinity();
        for (const Values& table : symmetric_tables(bits, g)) {
          const double cost = integrated_cost(table, t);
          if (cost < least * (1 - 1e-9)) least = cost, best = table;
        }
        const Table table = optimal_table(bits, g, p);
        EXPECT_EQ(values_of(table), best) << bits << " " << g << " " << p;
        EXPECT_NEAR(table.cost / least, 1, 1e-8);
      }
    }
  }
}

/// The two cheapest tables for costs that are wrong by up to `error` of themselves and 1e-5 of it
/// besides, which is more than any library's last bits. Without a tie-break.
struct Ranked {
  Values best;
  double least = 0, second = 0;
};
Ranked rank(uint32_t bits, uint32_t g, double t, double error, std::mt19937_64& random) {
  std::uniform_real_distribution<double> part(-error, error);
  const auto wrong = [&](double cost) { return cost + cost * part(random) + 1e-5 * part(random); };
  const uint32_t half = (g + 1) / 2, steps = (1U << bits) / 2 - 1;
  struct Path {
    double cost;
    Values values;
  };
  std::vector<std::vector<double>> between(half, std::vector<double>(half));
  for (uint32_t i = 0; i < half; ++i) {
    for (uint32_t j = i + 1; j < half; ++j) {
      between[i][j] = 2 * wrong(rounding_cost(place(i, g, t), place(j, g, t)));
    }
  }
  // the two best ways to every position
  std::vector<std::vector<Path>> at(half);
  at[0].push_back({0, {0}});
  const auto keep_two = [](std::vector<Path>& paths) {
    std::sort(paths.begin(), paths.end(),
              [](const Path& a, const Path& b) { return a.cost < b.cost; });
    if (paths.size() > 2) paths.resize(2);
  };
  for (uint32_t m = 0; m < steps; ++m) {
    std::vector<std::vector<Path>> next(half);
    for (uint32_t i = 0; i < half; ++i) {
      for (const Path& path : at[i]) {
        for (uint32_t j = i + 1; j < half; ++j) {
          next[j].push_back({path.cost + between[i][j], path.values});
          next[j].back().values.push_back(j);
          keep_two(next[j]);
        }
      }
    }
    at = next;
  }
  std::vector<Path> ends;
  for (uint32_t j = 0; j < half; ++j) {
    const double middle = wrong(rounding_cost(place(j, g, t), place(g - j, g, t)));
    for (Path path : at[j]) {
      path.cost += middle;
      ends.push_back(path);
      keep_two(ends);
    }
  }
  Ranked ranked{ends[0].values, ends[0].cost,
                ends.size() > 1 ? ends[1].cost : std::numeric_limits<double>::infinity()};
  for (size_t z = ranked.best.size(); z-- > 0;) ranked.best.push_back(g - ranked.best[z]);
  return ranked;
}

TEST(ThcTables, RoundingOfMathLibraryDoesNotMatter) {
  // Real ties, if there were any, would fall within the tolerance; nothing else comes near it.
  std::mt19937_64 random(7);
  for (uint32_t bits = kMinBits; bits <= kMaxBits; ++bits) {
    for (int k = 5; k <= 10; ++k) {
      const double p = std::ldexp(1.0, -k), t = clamping_point(p);
      for (uint32_t g = (1U << bits) - 1; g <= kMaxGrid; ++g) {
        const Ranked exact = rank(bits, g, t, 0, random);
        ASSERT_GT(exact.second / exact.least - 1, 100 * kTieTolerance)
            << bits << " " << g << " " << k;
        const Values chosen = values_of(optimal_table(bits, g, p));
        ASSERT_EQ(chosen, exact.best);
        ASSERT_EQ(chosen, rank(bits, g, t * (1 + 1e-12), 1e-9, random).best);
      }
    }
  }
}

TEST(ThcTables, FirstOfEqualCostsWins) {
  // Costs of small integers tie often; sums of them in another order differ in their last bits.
  std::mt19937_64 random(13);
  uint32_t ties = 0;
  for (int turn = 0; turn < 300; ++turn) {
    const uint32_t bits = 2 + static_cast<uint32_t>(turn % 3);
    const uint32_t g = (1U << bits) - 1 + static_cast<uint32_t>(random() % 8);
    PairCosts costs{};
    for (uint32_t i = 0; i < g; ++i) {
      for (uint32_t j = i + 1; j <= g; ++j) {
        costs[i][j] = i + j > g ? costs[g - j][g - i] : static_cast<double>(1 + random() % 3) / 3;
      }
    }
    double least = std::numeric_limits<double>::infinity();
    Values best;
    for (const Values& table : symmetric_tables(bits, g)) {
      double cost = 0;
      for (size_t z = 1; z < table.size(); ++z) cost += costs[table[z - 1]][table[z]];
      if (std::abs(cost - least) < 1e-6) ++ties;
      if (cost < least - 1e-6) least = cost, best = table;
    }
    ASSERT_EQ(values_of(cheapest_table(bits, g, costs)), best) << bits << " " << g;
  }
  EXPECT_GT(ties, 100U);
}

TEST(ThcTables, GridDependsOnWorld) {
  const auto g = [](uint64_t world, uint32_t lane_bits = 8, uint32_t bits = 4) {
    const auto table = choose_table(bits, 1.0 / 32, world, lane_bits);
    return table ? table->g : 0;
  };
  for (uint64_t world = 1; world <= 4; ++world) EXPECT_EQ(g(world), 53U);
  EXPECT_EQ(g(5), 51U);
  EXPECT_EQ(g(6), 38U);
  EXPECT_EQ(g(7), 34U);
  for (uint64_t world = 8; world <= 15; ++world) EXPECT_EQ(g(world), 17U);
  EXPECT_EQ(g(16), 15U);
  EXPECT_EQ(g(17), 15U);
  EXPECT_EQ(g(18), 0U);
  EXPECT_EQ(g(18, 16), 53U);
  EXPECT_EQ(g(36, 8, 3), 7U);
  EXPECT_EQ(g(37, 8, 3), 0U);
  EXPECT_EQ(g(85, 8, 2), 3U);
  EXPECT_EQ(g(86, 8, 2), 0U);
  EXPECT_EQ(largest_world(4, 8), 17U);
  EXPECT_EQ(largest_world(3, 8), 36U);
  EXPECT_EQ(largest_world(2, 8), 85U);
  EXPECT_EQ(largest_world(4, 16), 4369U);
  EXPECT_TRUE(fits_lanes(30, 2184, 16));
  EXPECT_FALSE(fits_lanes(30, 2185, 16));
  EXPECT_TRUE(fits_lanes(51, 5, 8));
  EXPECT_FALSE(fits_lanes(32, 8, 8));  // 256: one too many
  EXPECT_FALSE(choose_table(4, 1.0 / 32, std::numeric_limits<uint64_t>::max(), 16));
}

TEST(ThcTables, ChosenGIsCheapestThatFits) {
  for (uint32_t bits = kMinBits; bits <= kMaxBits; ++bits) {
    for (const uint64_t world : {1U, 3U, 5U, 8U, 12U, 17U, 64U}) {
      for (const double p : {1.0 / 32, 1.0 / 1024}) {
        const auto chosen = choose_table(bits, p, world, 8);
        if (world > largest_world(bits, 8)) {
          EXPECT_FALSE(chosen);
          continue;
        }
        ASSERT_TRUE(chosen);
        EXPECT_LE(chosen->g * world, 255U);
        for (uint32_t g = (1U << bits) - 1; g <= kMaxGrid && g * world <= 255; ++g) {
          const double cost = optimal_table(bits, g, p).cost;
          EXPECT_LE(chosen->cost, cost * (1 + 1e-9));
          EXPECT_TRUE(g >= chosen->g || cost > chosen->cost);
        }
      }
    }
  }
}

TEST(ThcTables, QuantizingCostMatchesSolver) {
  std::mt19937_64 random(11);
  std::normal_distribution<float> normal;
  std::vector<float> y(uint64_t{1} << 20), values(y.size());
  for (float& v : y) v = normal(random);
  std::vector<uint8_t> codes(y.size());
  for (uint32_t bits = kMinBits; bits <= kMaxBits; ++bits) {
    for (const double p : {1.0 / 32, 1.0 / 512}) {
      const Table table = *choose_table(bits, p, 6, 8);
      const double t = clamping_point(p);
      const kernels::Grid grid = kernels::make_grid(bits, table.value.data());
      kernels::grid_kernels(best_isa())
          .quantize(y.data(), static_cast<uint32_t>(y.size()), grid, static_cast<float>(t),
                    {{1, 2}, 0}, codes.data(), values.data());
      double rounding = 0, clamping = 0;
      for (size_t i = 0; i < y.size(); ++i) {
        const double a = y[i], inside = std::clamp(a, -t, t);
        rounding += (values[i] - inside) * (values[i] - inside);
        clamping += (a - inside) * (a - inside);
      }
      const auto n = static_cast<double>(y.size());
      EXPECT_NEAR(rounding / n / table.cost, 1, 0.03) << bits << " " << p;
      EXPECT_NEAR(clamping / n / clamping_error(t), 1, p > 0.01 ? 0.03 : 0.15);
      EXPECT_NEAR((rounding + clamping) / n / expected_error(table, p), 1, 0.03);
    }
  }
}

}  // namespace
}  // namespace laconic::codecs::thc

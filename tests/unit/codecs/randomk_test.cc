// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/randomk/randomk.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "codecs/randomk/shared_indices.h"
#include "laconic/spec.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<RandomK>;

std::vector<uint32_t> indices(Unit unit, Place place, uint64_t k, Isa isa = best_isa()) {
  std::vector<uint32_t> out(k);
  SharedIndices(unit, place, k).get(0, static_cast<uint32_t>(k), isa, out.data());
  return out;
}

// Defect 5 of GRACE's code: indices from a global generator, with replacement, up to d itself.
TEST(SharedIndicesTest, IndicesAreDistinctAndInRange) {
  for (const uint64_t n : {1U, 2U, 3U, 100U, 1024U, 1025U, 99999U}) {
    for (const uint64_t k : {uint64_t{1}, n / 3 + 1, n}) {
      const std::vector<uint32_t> drawn = indices(vector_unit(n), {}, k);
      const std::set<uint32_t> distinct(drawn.begin(), drawn.end());
      EXPECT_EQ(distinct.size(), k);
      EXPECT_LT(*distinct.rbegin(), n);
    }
  }
}

TEST(SharedIndicesTest, IndicesDependOnlyOnSeedStepParameterAndOffset) {
  for (const uint64_t n : {500U, 5000U}) {
    const Unit unit = vector_unit(n);
    const Place place{.seed = 1, .step = 2};
    const std::vector<uint32_t> base = indices(unit, place, 50);
    Place same = place;
    same.rank = 3;
    same.world = 8;
    same.hop = 1;
    same.prescale = 0.125F;
    EXPECT_EQ(indices(unit, same, 50), base);
    for (const Isa isa : available_isas()) EXPECT_EQ(indices(unit, place, 50, isa), base);
    EXPECT_NE(indices(unit, {.seed = 2, .step = 2}, 50), base);
    EXPECT_NE(indices(unit, {.seed = 1, .step = 3}, 50), base);
    EXPECT_NE(indices(vector_unit(n, 43), place, 50), base);
    EXPECT_NE(indices(vector_unit(n, 42, n), place, 50), base);
  }
}

double chi_square_of_pairs(uint64_t n, uint64_t draws) {
  std::map<std::pair<uint32_t, uint32_t>, double> seen;
  for (uint64_t step = 0; step < draws; ++step) {
    const std::vector<uint32_t> two = indices(vector_unit(n), {.seed = 9, .step = step}, 2);
    seen[std::minmax(two[0], two[1])] += 1;
  }
  const double cells = static_cast<double>(n * (n - 1) / 2);
  const double expected = static_cast<double>(draws) / cells;
  double chi = expected * (cells - static_cast<double>(seen.size()));
  for (const auto& [pair, count] : seen) chi += (count - expected) * (count - expected) / expected;
  return (chi - (cells - 1)) / std::sqrt(2 * (cells - 1));  // about normal
}

TEST(SharedIndicesTest, EveryPairIsEquallyLikely) {
  EXPECT_LT(std::fabs(chi_square_of_pairs(6, 20000)), 5);
  EXPECT_LT(std::fabs(chi_square_of_pairs(40, 100000)), 5);
}

TEST(SharedIndicesTest, EveryElementOfLargeUnitsIsEquallyLikely) {
  const uint64_t n = 1500;
  std::vector<double> seen(n);
  for (uint64_t step = 0; step < 4000; ++step) {
    for (const uint32_t i : indices(vector_unit(n), {.seed = 4, .step = step}, 15)) seen[i] += 1;
  }
  double chi = 0;
  for (const double s : seen) chi += (s - 40) * (s - 40) / 40;
  EXPECT_LT(std::fabs(chi - (n - 1)) / std::sqrt(2.0 * (n - 1)), 5);
}

TEST(RandomKTest, PayloadIsTheElements) {
  for (const uint64_t n : {1U, 7U, 1000U, 50000U}) {
    const std::vector<float> x = draw(Shape::laplace, n, n);
    Driver d;
    d.params.ratio = 0.2;
    const std::vector<float> y = d.round_trip(x);
    uint64_t kept = 0;
    for (uint64_t i = 0; i < n; ++i) {
      ASSERT_TRUE(y[i] == 0 || y[i] == x[i]);
      kept += y[i] != 0 ? 1U : 0U;
    }
    EXPECT_EQ(kept, std::max<uint64_t>(1, n / 5));
  }
}

/// A residual would be multiplied by n/k − 1 in every step.
TEST(RandomK, RescaledRefusesErrorFeedback) {
  const auto refused = Spec::parse("randomk:rescale=on+ef");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::unsupported);
  EXPECT_NE(refused.error().message.find("randomk with these settings supports no error feedback"),
            std::string::npos)
      << refused.error().message;
  EXPECT_TRUE(Spec::parse("randomk+ef"));
  EXPECT_TRUE(RandomK::contract({0.1, true}).unbiased);
  EXPECT_TRUE(Spec::parse("randomk:rescale=on+noef"));
}

}  // namespace
}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/slices.h"

#include <gmock/gmock.h>

#include <utility>
#include <vector>

namespace laconic {
namespace {

using Slices = std::vector<std::pair<uint64_t, uint64_t>>;

Slices slices_of(uint64_t count, uint64_t slice, Pass pass = Pass::forward) {
  Slices slices;
  for_slices(
      nullptr, count, slice, [&](uint64_t begin, uint64_t end) { slices.emplace_back(begin, end); },
      pass);
  return slices;
}

TEST(Slices, SlicesAreCutAtMultiples) {
  EXPECT_EQ(slices_of(0, 4), Slices{});
  EXPECT_EQ(slices_of(3, 4), (Slices{{0, 3}}));
  EXPECT_EQ(slices_of(4, 4), (Slices{{0, 4}}));
  EXPECT_EQ(slices_of(9, 4), (Slices{{0, 4}, {4, 8}, {8, 9}}));
  EXPECT_EQ(slices_of(5, ~uint64_t{0}), (Slices{{0, 5}}));
}

TEST(Slices, BackwardSlicesStartWithLast) {
  EXPECT_EQ(slices_of(9, 4, Pass::backward), (Slices{{8, 9}, {4, 8}, {0, 4}}));
}

TEST(Slices, EveryElementIsVisitedOnceForAnyThreadCount) {
  for (const uint32_t threads : {1U, 2U, 5U}) {
    ThreadPool pool(threads);
    for (const Pass pass : {Pass::forward, Pass::backward}) {
      std::vector<int> seen(1001);
      for_slices(
          &pool, seen.size(), 7,
          [&](uint64_t begin, uint64_t end) {
            for (uint64_t i = begin; i < end; ++i) ++seen[i];
          },
          pass);
      EXPECT_THAT(seen, testing::Each(1));
    }
  }
}

}  // namespace
}  // namespace laconic

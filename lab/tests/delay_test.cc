// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The law of --delay, --jitter and --seed.
#include "../src/delay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>
#include <vector>

namespace laconic::lab {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr int64_t kMs = 1'000'000;
const DelayLaw kWide{milliseconds(5), milliseconds(5), 0};
const DelayLaw kNarrow{milliseconds(1), microseconds(200), 0};

DelayLaw with_seed(DelayLaw law, uint64_t seed) {
  law.seed = seed;
  return law;
}

TEST(LabDelay, NoJitterGivesConstantDelay) {
  for (const int64_t t : {int64_t{0}, int64_t{123'456'789}, int64_t{-5}})
    EXPECT_EQ(hold_ns({milliseconds(10), {}, 9}, 3, t), 10 * kMs);
}

// Computed with Python's integers from the law as lab/README.md has it.
TEST(LabDelay, DrawsFollowDocumentedFormula) {
  struct Known {
    uint64_t seed;
    uint32_t link;
    int64_t slot, wide, narrow;
  };
  for (const Known& k : {Known{0, 1, 0, 1'654'248, 866'170}, Known{0, 1, 1, 2'011'245, 880'450},
                         Known{0, 2, 0, 2'226'345, 889'054}, Known{7, 1, 0, 3'420'853, 936'834},
                         Known{UINT64_MAX, 254, 1'000'000, 1'185'857, 847'434}}) {
    EXPECT_EQ(hold_ns(with_seed(kWide, k.seed), k.link, k.slot * 20 * kMs), k.wide);
    EXPECT_EQ(hold_ns(with_seed(kNarrow, k.seed), k.link, k.slot * kMs), k.narrow);
  }
}

TEST(LabDelay, SlotIsFourTimesJitterAndAtLeastAMillisecond) {
  EXPECT_EQ(slot_ns(kWide), 20 * kMs);
  EXPECT_EQ(slot_ns(kNarrow), kMs);
  for (const DelayLaw& law : {kWide, kNarrow}) {
    const int64_t slot = slot_ns(law);
    EXPECT_EQ(hold_ns(law, 1, 3 * slot), hold_ns(law, 1, 4 * slot - 1));
    EXPECT_NE(hold_ns(law, 1, 3 * slot), hold_ns(law, 1, 4 * slot));
    EXPECT_EQ(hold_ns(law, 1, -7 * slot), hold_ns(law, 1, 0)) << "before the start";
  }
}

TEST(LabDelay, JitterIsUniformBetweenItsBounds) {
  std::vector<int> tenths(10);
  for (int64_t slot = 0; slot < 10'000; ++slot) {
    const int64_t hold = hold_ns(kWide, 4, slot * 20 * kMs);
    ASSERT_GE(hold, 0);
    ASSERT_LE(hold, 10 * kMs);
    ++tenths[static_cast<std::size_t>(std::min<int64_t>(hold / kMs, 9))];
  }
  for (const int count : tenths) EXPECT_NEAR(count, 1000, 150);  // five standard deviations
}

TEST(LabDelay, NothingIsDueBeforeNextDue) {
  const DelayLaw coarse{milliseconds(3), milliseconds(2), 1};  // slots of 8 ms
  for (int64_t time = -3 * kMs; time < 400 * kMs; time += 700'000) {
    int64_t least = time + hold_ns(coarse, 6, time);
    for (int64_t edge = 0; edge < 440 * kMs; edge += 8 * kMs)  // the least of a slot is its first
      if (edge > time) least = std::min(least, edge + hold_ns(coarse, 6, edge));
    ASSERT_EQ(next_due_ns(coarse, 6, time), least) << time;
  }
}

TEST(LabDelay, LinksAndSeedsDrawIndependently) {
  std::set<int64_t> drawn;
  for (uint64_t seed = 0; seed < 10; ++seed)
    for (uint32_t link = 1; link <= 10; ++link)
      drawn.insert(hold_ns(with_seed(kWide, seed), link, 0));
  EXPECT_EQ(drawn.size(), 100U);
}

TEST(LabRelease, KeepsOrderAndBounds) {
  std::mt19937_64 random(1);
  for (const DelayLaw& law : {kWide, kNarrow}) {
    ReleaseTimes times(law, 2);
    const int64_t least = std::chrono::nanoseconds(law.delay - law.jitter).count();
    const int64_t most = std::chrono::nanoseconds(law.delay + law.jitter).count();
    const int64_t start = 77 * kMs;
    int64_t came = 0, before = 0;
    int bunched = 0;
    for (int i = 0; i < 50'000; ++i) {
      came += static_cast<int64_t>(random() % 100'000);
      const int64_t due = times.next(came, start);
      ASSERT_GE(due, before);
      ASSERT_GE(due, came + least);
      ASSERT_LE(due, came + most);
      bunched += due != came + hold_ns(law, 2, came - start) ? 1 : 0;
      before = due;
    }
    EXPECT_GT(bunched, 0) << "the law alone would have kept the order";
    EXPECT_LT(bunched, 10'000) << "most frames have what was drawn";
  }
}

TEST(LabLossOfForwarder, LossIsSeededAndMatchesGivenShare) {
  std::vector<uint64_t> first;
  int lost = 0;
  for (uint64_t frame = 0; frame < 10'000; ++frame) {
    const bool gone = is_lost(3, 4, frame, 0.1);
    if (gone && frame < 60) first.push_back(frame);
    lost += gone ? 1 : 0;
    EXPECT_FALSE(is_lost(3, 4, frame, 0));
  }
  EXPECT_EQ(first, (std::vector<uint64_t>{3, 7, 10, 14, 15, 23, 28, 43, 47, 51, 56}));
  EXPECT_EQ(lost, 1038);
}

}  // namespace
}  // namespace laconic::lab

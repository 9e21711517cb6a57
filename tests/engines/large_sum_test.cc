// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/shared/large_sum.h"

#include <gtest/gtest.h>

namespace laconic::detail {
namespace {

TEST(LargeSum, TermsInFlightTakeAtMost12MiBForUpTo64Ranks) {
  for (uint32_t world = 2; world <= 64; ++world) {
    for (const bool one_host : {false, true}) {
      const LargeSum::Pace pace = LargeSum::pace(world, one_host);
      EXPECT_LE(pace.ahead * world * pace.piece_bytes, uint64_t{12} << 20U) << world;
      EXPECT_EQ(pace.ahead, one_host ? 1U : LargeSum::kMostAhead) << world;
      EXPECT_EQ(pace.piece_bytes % sizeof(float), 0U) << world;
    }
  }
}

}  // namespace
}  // namespace laconic::detail

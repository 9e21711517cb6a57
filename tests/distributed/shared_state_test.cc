// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// State of codecs whose lanes add up: the same on all ranks, or all ranks fail.
#include <gtest/gtest.h>

#include "support/ranks.h"

namespace laconic::test {
namespace {

const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{{"w", 64, 48}, {"other", 48, 40}};
  return list;
}

std::vector<Result<void>> exchange(Ranks& ranks, uint32_t parameter, uint64_t step) {
  const Layout layout = back_to_back(model(), {parameter});
  auto values = gradients(ranks.world(), layout.elements, step + 1);
  std::vector<Result<void>> results(ranks.world());
  ranks.on_all([&](uint32_t r) {
    Bucket bucket;
    bucket.buffer = values[r].data();
    bucket.step = step;
    results[r] = session::drive(ranks.session(r), bucket, layout, ranks.hub().engine(r));
  });
  return results;
}

/// Moves on every rank's codec state, or one rank's alone.
void change_state(Ranks& ranks, uint32_t only) {
  for (uint32_t r = 0; r < ranks.world(); ++r) {
    for (const auto& entry : ranks.session(r).active().store.entries()) {
      if (entry.name.starts_with("state/other") && (only == r || only == ranks.world()))
        for (float& x : entry.values) x = 0.5F;
    }
  }
}

class NativeSumState : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, NativeSumState, testing::Values("thc:block=256", "powersgd:rank=2"),
                         [](const auto& which) { return which.index == 0 ? "thc" : "powersgd"; });

TEST_P(NativeSumState, RanksWithDifferentStateAreReported) {
  for (const uint32_t only : {0U, 2U}) {
    Ranks ranks({GetParam(), 3, model(), StrategyKind::native_sum, 16});
    for (const auto& done : exchange(ranks, 0, 0)) ASSERT_TRUE(done) << done.error().message;
    change_state(ranks, only);  // as if that rank alone had loaded a saved one
    for (const auto& done : exchange(ranks, 1, 1)) {
      ASSERT_FALSE(done);
      EXPECT_EQ(done.error().code, Errc::ranks_disagree);
      EXPECT_NE((done.error().message + done.error().hint).find("state"), std::string::npos);
    }
  }
}

TEST_P(NativeSumState, RanksWithEqualStateContinue) {
  Ranks ranks({GetParam(), 3, model(), StrategyKind::native_sum, 16});
  for (const auto& done : exchange(ranks, 0, 0)) ASSERT_TRUE(done) << done.error().message;
  change_state(ranks, 3);
  for (const auto& done : exchange(ranks, 1, 1)) ASSERT_TRUE(done) << done.error().message;
}

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Codecs of variable size among ranks that have differently much to say: every rank holds what the
// oracle computes, bit for bit.
#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "laconic/registry.h"
#include "support/oracle.h"
#include "support/ranks.h"

namespace laconic::test {
namespace {

constexpr uint32_t kWorld = 3;

/// Four parts on three ranks.
const std::vector<Parameter>& model() {
  static const std::vector<Parameter> list{
      {"a", 61, 37}, {"b", 1031, 1}, {"c", 17, 33}, {"d", 300, 1}};
  return list;
}

/// Rank 0 has a few large elements, rank 1 equal ones, rank 2 noise and a parameter without any.
std::vector<std::vector<float>> unequal(uint64_t n, uint64_t step) {
  std::vector<std::vector<float>> all(kWorld, std::vector<float>(n));
  for (uint64_t i = step; i < n; i += 1201) all[0][i] = static_cast<float>(i % 7) - 3.0F;
  std::fill(all[1].begin(), all[1].end(), -0.25F);
  all[2] = normal_numbers(n, 5 + step);
  std::fill_n(all[2].end() - 300, 300, 0.0F);
  return all;
}

/// Bytes that each rank's gradient takes on its own.
std::set<uint64_t> lengths(const Spec& spec, const std::vector<std::vector<float>>& gradients) {
  std::set<uint64_t> found;
  for (uint32_t r = 0; r < kWorld; ++r) {
    const uint64_t n = gradients[r].size();
    const Unit unit{n, n, 1, 1, 0};
    const Plan plan = spec.codec().plan(spec.params(), unit, kWorld);
    std::vector<float> state(plan.state_floats);
    const Place place{.rank = r, .world = kWorld};
    spec.codec().init(spec.params(), unit, place, state);
    std::vector<uint8_t> memory(plan.kept_bytes + plan.scratch_bytes + 192);
    uint8_t* const at = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64);
    Work work{{at, plan.kept_bytes},
              {at + round_up(plan.kept_bytes, 64), plan.scratch_bytes},
              best_isa(),
              nullptr};
    std::vector<float> residual(n);
    const Source source{gradients[r].data(), spec.contract().fused ? residual.data() : nullptr};
    std::vector<uint8_t> out(plan.round[0].bytes);
    found.insert(
        spec.codec().encode({spec.params(), state, unit, place, 0, work}, source, out).bytes);
  }
  return found;
}

void expect_oracle(const std::string& spec, StrategyKind strategy, bool short_sends) {
  SCOPED_TRACE(spec + " by " + std::string(strategy_name(strategy)));
  Ranks ranks({spec, kWorld, model(), strategy, 16, 1, kAllSums, short_sends});
  Oracle oracle(ranks.setup());
  const Layout layout = back_to_back(model(), {3, 2, 1, 0});
  for (uint64_t step = 0; step < 3; ++step) {
    auto buffers = unequal(layout.elements, step);
    auto expected = buffers;
    for (const auto& result : ranks.exchange(layout, buffers, step))
      ASSERT_TRUE(result) << result.error().message;
    oracle.exchange(layout, DType::f32, expected, step);
    for (uint32_t r = 0; r < kWorld; ++r) {
      ASSERT_EQ(std::memcmp(buffers[r].data(), expected[r].data(), layout.elements * 4), 0)
          << "rank " << r << ", step " << step;
    }
  }
}

// Defect 10 of GRACE's code: ranks that select different counts, more parts than ranks.
TEST(Unequal, Grace10CountsMayDifferForEveryVariableSizeMethod) {
  uint32_t methods = 0;
  for (const CodecTable* codec : all_codecs()) {
    const Spec spec = Spec::defaults(*codec);
    if (spec.contract().exact_size) continue;
    ++methods;
    for (const StrategyKind strategy : {StrategyKind::gather_all, StrategyKind::two_shot}) {
      for (const bool short_sends : {false, true}) {
        expect_oracle(spec.canonical(), strategy, short_sends);
      }
    }
    EXPECT_GE(lengths(spec, unequal(40000, 1)).size(), 2U) << spec.canonical();
  }
  EXPECT_GE(methods, 5U);
  expect_oracle("threshold:v=0.2,cap=1", StrategyKind::gather_all, false);
  expect_oracle("threshold:v=0.2,cap=1", StrategyKind::two_shot, false);
}

}  // namespace
}  // namespace laconic::test

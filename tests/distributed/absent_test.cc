// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters without a gradient on some ranks where delivery takes the mean off every rank's
// residual: what one rank holds is balanced by what others hold, and has to go out with it.
#include <gtest/gtest.h>

#include <cmath>

#include "support/clocked.h"

namespace laconic::test {
namespace {

using Floats = std::vector<float>;

constexpr uint32_t kWorld = 3;
const std::vector<Parameter> kModel{{"a", 120, 40}, {"b", 61, 67}, {"bias", 9, 1}};

double fast(uint64_t /*step*/) { return 1e8; }

/// A matrix of rank 1 for a and b, another one on every rank, the same in every step.
Floats constant(const Layout& layout, uint32_t rank) {
  Floats all(layout.elements);
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const Parameter& p = kModel[layout.parameters[i]];
    const Floats& left = normal_numbers(p.rows, 10 * rank + layout.parameters[i]);
    const Floats& right = normal_numbers(p.cols, 10 * rank + layout.parameters[i] + 1000);
    for (uint64_t k = 0; k < p.count(); ++k)
      all[layout.offsets[i] + k] = 100 * left[k / p.cols] * right[k % p.cols];
  }
  return all;
}

void clear_b(const Layout& layout, Floats& gradient) {
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    const Parameter& p = kModel[layout.parameters[i]];
    if (p.name == "b") std::fill_n(&gradient[layout.offsets[i]], p.count(), 0.0F);
  }
}

double norm(std::span<const float> x) {
  double squares = 0;
  for (const float v : x) squares += double{v} * v;
  return std::sqrt(squares);
}

Floats residual(Clocked& group, uint32_t rank, const std::string& name) {
  for (const auto& entry : group.session(rank).active().store.entries()) {
    if (entry.name == "residual/" + name) return {entry.values.begin(), entry.values.end()};
  }
  return {};
}

/// Three matrices of rank 1 have a sum of rank 3: every mean is exact, whichever ranks have a
/// gradient.
TEST(Absence, PowerSgdRankWithoutGradientOwesNothingOnReturn) {
  Clocked group({"powersgd:rank=4", kWorld, kModel, StrategyKind::native_sum}, fast);
  const auto absent = [](uint64_t step, uint32_t rank) {
    return step == 12 || step == 27 || (step >= 10 && step < 30 && rank == 0);
  };
  for (uint64_t step = 0; step < 34; ++step) {
    std::vector<Floats> given;
    Floats mean(group.layout().elements);
    for (uint32_t r = 0; r < kWorld; ++r) {
      given.push_back(constant(group.layout(), r));
      if (absent(step, r)) clear_b(group.layout(), given[r]);
      for (size_t k = 0; k < mean.size(); ++k) mean[k] += given[r][k] / kWorld;
    }
    std::vector<Floats> before;
    for (uint32_t r = 0; r < kWorld; ++r) before.push_back(residual(group, r, "b"));
    Floats off = group.step_of(step, given);
    const bool nobody = absent(step, 1);
    for (uint32_t r = 0; r < kWorld && nobody; ++r)
      ASSERT_EQ(residual(group, r, "b"), before[r]) << "nothing of b counts as sent";
    for (size_t k = 0; k < mean.size(); ++k) off[k] -= mean[k];
    ASSERT_LT(norm(off), 1e-4 * norm(mean)) << "step " << step;
  }
}

struct Case {
  const char* name;
  const char* control;
  bool rule;  ///< a stays compressed
};
class Released : public testing::TestWithParam<Case> {};

/// Uncompressed by a flush, by a policy for the whole bucket, and by a policy next to parameters
/// that stay compressed.
TEST_P(Released, ResidualsAreSentFromRanksWithoutGradient) {
  test::Setup setup{"powersgd:rank=1", kWorld, kModel, StrategyKind::native_sum};
  setup.control = GetParam().control;
  if (GetParam().rule) {
    setup.rules = {rule("a", "powersgd:rank=1")};
    setup.rules[0].control = "fixed";
  }
  Clocked group(setup, fast);
  std::vector<double> balance(group.layout().elements);
  Floats before;
  double went_for_nobody = 0;
  for (uint64_t step = 0; step < 24; ++step) {
    if (step == 3 && setup.control.empty()) {
      ASSERT_TRUE(group.session(1).flush(4));
    }
    auto given = gradients(kWorld, group.layout().elements, step + 1);
    if (step >= 2 && step < 20) clear_b(group.layout(), given[0]);
    const bool nobody = step == 5 || step == 14;
    if (nobody) {
      clear_b(group.layout(), given[1]);
      clear_b(group.layout(), given[2]);
      before = residual(group, 2, "b");
    }
    for (const Floats& g : given) {
      for (size_t k = 0; k < g.size(); ++k) balance[k] += double{g[k]};
    }
    const Floats mean = group.step_of(step, given);
    for (size_t k = 0; k < mean.size(); ++k) balance[k] -= kWorld * double{mean[k]};
    for (size_t i = 0; i < group.layout().parameters.size() && nobody; ++i) {
      if (kModel[group.layout().parameters[i]].name != "b") continue;
      went_for_nobody += norm(std::span(mean).subspan(group.layout().offsets[i], 61 * 67));
      EXPECT_EQ(residual(group, 2, "b"), before);
    }
    if (step == 7 && setup.control.empty()) break;
  }
  EXPECT_EQ(went_for_nobody, 0) << "DDP may discard it";
  for (uint32_t r = 0; r < kWorld; ++r) {
    SCOPED_TRACE(r);
    EXPECT_EQ(norm(residual(group, r, "b")), 0);
    for (size_t i = 0; i < group.layout().parameters.size(); ++i) {
      const std::string& name = kModel[group.layout().parameters[i]].name;
      const Floats left = residual(group, r, name);
      for (size_t k = 0; k < left.size(); ++k)
        balance[group.layout().offsets[i] + k] -= double{left[k]};
    }
  }
  for (size_t k = 0; k < balance.size(); ++k) ASSERT_NEAR(balance[k], 0, 1e-6) << k;
}

INSTANTIATE_TEST_SUITE_P(All, Released,
                         testing::Values(Case{"flush", "", false},
                                         Case{"law", "dc2:deadline_ms=1000,max=3", false},
                                         Case{"law_beside", "dc2:deadline_ms=1000,max=3", true}),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace laconic::test

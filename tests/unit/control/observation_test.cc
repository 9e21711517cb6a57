// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/observation.h"

#include <gtest/gtest.h>

#include <limits>

namespace laconic::control {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Observation, NetworkTimeIsMinimumAndRestMaximum) {
  const std::vector<Figures> ranks{{0.143, 0.01, 0.03, 0.3, 9}, {0.103, 0.02, 0.01, 0.31, 12}};
  const Observation seen = observe(7, ranks, 1000);
  EXPECT_EQ(seen.step, 7U);
  EXPECT_EQ(seen.network_s, 0.103);
  EXPECT_EQ(seen.slowest_s, 0.143);
  EXPECT_EQ(seen.step_s, 0.3);
  EXPECT_EQ(seen.encode_s, 0.02);
  EXPECT_EQ(seen.decode_s, 0.03);
  EXPECT_EQ(seen.residual_ratio, 12);
  EXPECT_EQ(seen.reports, 2U);
  EXPECT_TRUE(seen.usable());
}

TEST(Observation, ImpossibleReportsAreMissing) {
  const Figures fine{0.1, 0, 0, 0.3, 0};
  for (const double bad : {kNan, kInf, -kInf, 0.0, -0.1, 86400.0, 1e300}) {
    std::vector<Figures> ranks{fine, fine};
    ranks[1].network_s = bad;
    EXPECT_EQ(observe(0, ranks, 10).missing, 1U) << bad;
    EXPECT_FALSE(observe(0, ranks, 10).usable()) << bad;
    EXPECT_TRUE(observe(0, ranks, 10).held()) << bad;
    ranks[1] = fine;
    ranks[1].step_s = bad;
    EXPECT_EQ(observe(0, ranks, 10).missing, 1U) << bad;
    ranks[1] = fine;
    ranks[1].residual_ratio = bad;
    ranks[1].encode_s = bad;
    EXPECT_EQ(observe(0, ranks, 10).encode_s, bad == 86400.0 ? bad : 0) << bad;
    EXPECT_TRUE(observe(0, ranks, 10).usable()) << bad;
  }
}

TEST(Observation, EncodedReportsGiveSameResult) {
  std::vector<Report> reports(3);
  std::vector<Figures> figures;
  for (std::size_t i = 0; i < 3; ++i) {
    reports[i].network = Duration::of(0.125 + static_cast<double>(i));
    reports[i].step = Duration::of(2);
    reports[i].encode = Duration::of(0.25);
    reports[i].residual = Ratio::of(3);
    figures.push_back({0.125 + static_cast<double>(i), 0.25, 0, 2, 3});
  }
  const Observation seen = observe(5, reports, 9);
  EXPECT_NEAR(seen.network_s, 0.125, 0.125 / 4096);
  EXPECT_NEAR(seen.encode_s, observe(5, figures, 9).encode_s, 0.25 / 4096);
  EXPECT_EQ(seen.residual_ratio, 3);
  EXPECT_TRUE(seen.usable());
  reports[1] = {};  // left out
  EXPECT_EQ(observe(5, reports, 9).missing, 1U);
}

TEST(Observation, StepsWithoutBytesHoldAndStepsWithoutReportsDoNot) {
  const std::vector<Figures> ranks{{0.1, 0, 0, 0.3, 0}};
  EXPECT_TRUE(observe(0, ranks, 0).held());
  EXPECT_FALSE(observe(0, std::span<const Figures>(), 10).usable());
  EXPECT_FALSE(observe(0, std::span<const Figures>(), 10).held());
}

}  // namespace
}  // namespace laconic::control

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The diagnosis of SIDCo's fits: distances against brute force, reports against what was encoded.
#include "codecs/sidco/laws.h"

#include <gtest/gtest.h>

#include "codecs/sidco/trace.h"
#include "codecs/sparse/sparse_payload.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using sidco::ks_distance;
using sidco::Law;
using sidco::MagnitudeLaw;
using sidco::Moments;
using sidco::Trace;

constexpr Law kLaws[] = {Law::exponential, Law::gamma_pareto, Law::pareto};

std::vector<float> magnitudes(const std::vector<float>& x) {
  std::vector<float> a;
  for (const float v : x) {
    if (v != 0) a.push_back(std::fabs(v));
  }
  std::sort(a.begin(), a.end());
  return a;
}

Moments moments(const std::vector<float>& a, double low = 0) {
  Moments m;
  m.count = a.size();
  for (const float v : a) m.mean += (static_cast<double>(v) - low) / static_cast<double>(m.count);
  for (const float v : a) {
    const double d = static_cast<double>(v) - low - m.mean;
    m.variance += d * d / (static_cast<double>(m.count) - 1);
    m.log_mean += std::log(static_cast<double>(v) - low) / static_cast<double>(m.count);
  }
  return m;
}

/// Every element looked at, the ranks counted.
double brute_ks(const std::vector<float>& a, double (*distribution)(double)) {
  double worst = 0;
  for (const float v : a) {
    const auto upto = static_cast<double>(
        std::count_if(a.begin(), a.end(), [v](float other) { return other <= v; }));
    const auto below = static_cast<double>(
        std::count_if(a.begin(), a.end(), [v](float other) { return other < v; }));
    const double value = distribution(static_cast<double>(v));
    const auto n = static_cast<double>(a.size());
    worst = std::max({worst, std::fabs(upto / n - value), std::fabs(below / n - value)});
  }
  return worst;
}

// ---- laws ----

TEST(SidcoLaws, DistributionsMatchClosedForm) {
  // ξ = (1 - μ²/v)/2, β = μ(μ²/v + 1)/2, so that ξ = 0.2, β = 1 has μ = 1.25, v = μ²/0.6.
  const auto pareto = MagnitudeLaw::pareto({100, 1.25, 1.25 * 1.25 / 0.6, 0});
  const auto bounded = MagnitudeLaw::pareto({100, 0.5, 1.0 / 12, 0});  // uniform: ξ = -1, β = 1
  const auto gamma = MagnitudeLaw::gamma({100, 1, 1, -0.5});
  ASSERT_TRUE(pareto && bounded && gamma);
  const double erlang = sidco::inverse_upper_gamma(gamma->shape(), 0.25) / gamma->shape();
  EXPECT_NEAR(gamma->upper(erlang), 0.25, 1e-9);
  for (const double a : {0.1, 0.5, 0.9, 3.0}) {
    EXPECT_NEAR(MagnitudeLaw::exponential(2).upper(a), std::exp(-a / 2), 1e-15);
    EXPECT_NEAR(pareto->upper(a), std::pow(1 + 0.2 * a, -5), 1e-12);
    EXPECT_NEAR(bounded->upper(a), std::max(0.0, 1 - a), 1e-12);
  }
  EXPECT_NEAR(pareto->shape(), 0.2, 1e-12);
  EXPECT_EQ(MagnitudeLaw::exponential(2).upper(-1), 1);
}

TEST(SidcoLaws, NormalAndLaplaceAreFoldedAtZero) {
  const std::vector<float> x{-1, 0.5F, 1, 1.5F, 3};  // mean 1, variance 2.125; median 1
  const auto normal = MagnitudeLaw::normal(x);
  const auto laplace = MagnitudeLaw::laplace(x);
  ASSERT_TRUE(normal && laplace);
  const double s = std::sqrt(2.125);
  const double b = (2 + 0.5 + 0 + 0.5 + 2) / 5;
  for (const double a : {0.3, 1.0, 2.5}) {
    const auto phi = [s](double t) { return std::erfc(-(t - 1) / s / std::sqrt(2.0)) / 2; };
    const auto cdf = [b](double t) {
      return t < 1 ? std::exp((t - 1) / b) / 2 : 1 - std::exp(-(t - 1) / b) / 2;
    };
    EXPECT_NEAR(normal->upper(a), 1 - phi(a) + phi(-a), 1e-12);
    EXPECT_NEAR(laplace->upper(a), 1 - cdf(a) + cdf(-a), 1e-12);
  }
}

TEST(SidcoLaws, ZeroSpreadFitsNoDistribution) {
  const std::vector<float> same(20, 2.0F);
  EXPECT_FALSE(MagnitudeLaw::normal(same));
  EXPECT_FALSE(MagnitudeLaw::laplace(same));
  EXPECT_FALSE(MagnitudeLaw::gamma({20, 2, 0, std::log(2.0)}));
  EXPECT_FALSE(MagnitudeLaw::pareto({20, 2, 0, 0}));
  EXPECT_FALSE(MagnitudeLaw::normal(std::vector<float>{1.0F}));
  // If the codec falls back to the exponential distribution, so does the report.
  EXPECT_NEAR(MagnitudeLaw::of_stage(Law::pareto, true, {20, 2, 0, 0}).upper(2), std::exp(-1),
              1e-12);
}

// ---- Kolmogorov-Smirnov ----

TEST(SidcoLaws, DistanceMatchesBruteForce) {
  for (const Shape shape : {Shape::laplace, Shape::gaussian, Shape::heavy, Shape::layered}) {
    for (const uint64_t n : {1U, 2U, 3U, 17U, 1000U}) {
      std::vector<float> a = magnitudes(draw(shape, n, n));
      if (n > 10) std::fill(a.begin() + 4, a.begin() + 9, a[4]);  // equal ones
      for (float& v : a) v *= 1000;
      const double expected = brute_ks(a, [](double t) { return 1 - std::exp(-t); });
      EXPECT_NEAR(ks_distance(a, MagnitudeLaw::exponential(1)), expected, 1e-12) << n;
    }
  }
  EXPECT_EQ(ks_distance({}, MagnitudeLaw::exponential(1)), 0);
}

TEST(SidcoLaws, DistanceIsScaledAndShifted) {
  std::vector<float> a{3, 4, 6, 11};
  const double expected = brute_ks(a, [](double t) { return 1 - std::exp(-(t / 2 - 1)); });
  EXPECT_NEAR(ks_distance(a, MagnitudeLaw::exponential(1), 2, 1), expected, 1e-12);
}

TEST(SidcoLaws, DistributionIsNearItsSamplesAndFarFromOthers) {
  struct Row {
    Shape shape;
    bool near[3];  // exponential, gamma, Pareto
  };
  // Laplace magnitudes are of all three laws. 1.63/√n is the 1 % point of a given law.
  const Row rows[] = {{Shape::laplace, {true, true, true}},
                      {Shape::gaussian, {false, false, false}},
                      {Shape::gamma_half, {false, true, false}},
                      {Shape::pareto, {false, false, true}}};
  for (const Row& row : rows) {
    const std::vector<float> a = magnitudes(draw(row.shape, 100000, 5));
    const Moments m = moments(a);
    const MagnitudeLaw laws[] = {MagnitudeLaw::exponential(m.mean),
                                 MagnitudeLaw::gamma(m).value_or(MagnitudeLaw::exponential(1)),
                                 MagnitudeLaw::pareto(m).value_or(MagnitudeLaw::exponential(1))};
    for (int i = 0; i < 3; ++i) {
      const double distance = ks_distance(a, laws[i]);
      // The gamma distribution's closed form of α is off by 1.5 %, which gives a distance.
      if (row.near[i]) {
        EXPECT_LT(distance, i == 1 ? 0.009 : 1.63 / std::sqrt(100000)) << i;
      } else {
        EXPECT_GT(distance, 0.012) << i;
      }
    }
  }
}

// ---- compressibility ----

TEST(SidcoLaws, CompressibilityIsPowerLawExponent) {
  for (const double p : {0.3, 0.5, 1.0, 1.7}) {
    std::vector<float> a(20000);
    for (size_t j = 1; j <= a.size(); ++j) {
      a[a.size() - j] = static_cast<float>(3 * std::pow(static_cast<double>(j), -p));
    }
    for (const uint64_t from : {0U, 1U, 20U}) {
      const auto found = sidco::compressibility(a, from);
      ASSERT_TRUE(found);
      EXPECT_NEAR(*found, p, 1e-4);
    }
  }
}

TEST(SidcoLaws, CompressibilityUsesNamedRanks) {
  std::vector<float> a(20000);
  for (size_t j = 1; j <= a.size(); ++j) {
    const bool inside = j >= 20 && j <= 10000;
    a[a.size() - j] = inside ? 1 / static_cast<float>(j) : j < 20 ? 0.05F : 1e-9F;
  }
  EXPECT_NEAR(*sidco::compressibility(a, 20), 1, 1e-4);
  EXPECT_LT(*sidco::compressibility(a, 1), 0.95);
}

TEST(SidcoLaws, CompressibilityOfTooFewIsUndefined) {
  EXPECT_FALSE(sidco::compressibility({}, 1));
  EXPECT_FALSE(sidco::compressibility(std::vector<float>(15, 1.0F), 1));
  EXPECT_TRUE(sidco::compressibility(std::vector<float>(40, 1.0F), 1));
  EXPECT_FALSE(sidco::compressibility(std::vector<float>(40, 1.0F), 20));
}

// ---- reports ----

Trace traced(const Sidco::Params& p, const std::vector<float>& x, std::vector<uint8_t>* payload) {
  const Unit unit = vector_unit(x.size());
  const Plan plan = Sidco::plan(p, unit, 1);
  std::vector<float> state(plan.state_floats);
  Sidco::init(p, unit, {}, state);
  const LentMemory scratch(plan.scratch_bytes);
  Work work{{}, {scratch.data.get(), scratch.size}, best_isa(), nullptr};
  payload->resize(plan.round[0].bytes);
  Trace trace;
  payload->resize(
      sidco::encode_traced({&p, state, unit, {}, 0, work}, {x.data(), nullptr}, *payload, trace)
          .bytes);
  return trace;
}

uint64_t above(const std::vector<float>& x, float threshold) {
  return static_cast<uint64_t>(
      std::count_if(x.begin(), x.end(), [&](float v) { return std::fabs(v) > threshold; }));
}

void expect_stages(const Trace& t, const std::vector<float>& x, double wanted) {
  for (uint32_t i = 0; i < t.stages; ++i) {
    EXPECT_EQ(t.stage[i].selected, above(x, t.stage[i].eta.value)) << "stage " << i;
    const double part = t.stages == 1 ? 1 : static_cast<double>(i) / (t.stages - 1);
    const auto first = t.stages == 1 ? wanted : static_cast<double>(t.nonzero) / 4;
    EXPECT_NEAR(t.stage[i].wanted, first * std::pow(wanted / first, part), 1e-6 * first);
  }
}

TEST(SidcoTrace, CountsMatchBruteForce) {
  for (const Shape shape : {Shape::laplace, Shape::gaussian, Shape::heavy, Shape::layered}) {
    std::vector<float> x = draw(shape, 60001, 7);
    for (size_t i = 0; i < x.size(); i += 5) x[i] = 0;
    for (const Law law : kLaws) {
      for (const uint8_t stages : std::initializer_list<uint8_t>{0, 1, 2, 3, 5}) {
        for (const bool guard : {false, true}) {
          const Sidco::Params p{0.001, static_cast<uint8_t>(law), 1, stages, guard};
          std::vector<uint8_t> payload;
          const Trace t = traced(p, x, &payload);
          EXPECT_EQ(t.nonzero, 48000U);
          EXPECT_EQ(t.wanted, 60U);
          ASSERT_EQ(t.stages, stages == 0 ? 1U : stages);
          expect_stages(t, x, 60);
          EXPECT_EQ(t.fitted, t.stage[t.stages - 1].selected);
          EXPECT_TRUE(guard || t.corrections == 0);
        }
      }
    }
  }
}

// A trace reports what a receiver finds.
TEST(SidcoTrace, ThresholdMatchesPayload) {
  for (const Shape shape : {Shape::laplace, Shape::gaussian, Shape::gamma_half}) {
    const std::vector<float> x = draw(shape, 100000, 3);
    for (const Law law : kLaws) {
      for (const bool guard : {false, true}) {
        SparseDriver<Sidco> d;
        d.params = {0.01, static_cast<uint8_t>(law), 1, 2, guard};
        std::vector<uint8_t> payload;
        const Trace t = traced(d.params, x, &payload);
        EXPECT_EQ(payload, d.encode(x));
        EXPECT_EQ(load<uint32_t>(payload.data() + 4), t.fitted);
        const std::vector<float> y = d.decode(payload, vector_unit(x.size()));
        EXPECT_EQ(nonzeros(y), t.sent);
        EXPECT_EQ(t.corrections != 0, guard && (t.fitted < 800 || t.fitted > 1200));
        if (t.exact) continue;
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_EQ(y[i], std::fabs(x[i]) > t.eta.value ? x[i] : 0.0F);
        }
      }
    }
  }
}

TEST(SidcoTrace, StageMomentsMatchItsExceedances) {
  const std::vector<float> x = draw(Shape::gamma_half, 50000, 2);
  std::vector<uint8_t> payload;
  const Trace t = traced({0.001, static_cast<uint8_t>(Law::pareto), 1, 4, true}, x, &payload);
  ASSERT_EQ(t.stages, 4U);
  for (uint32_t i = 0; i < t.stages; ++i) {
    std::vector<float> a = magnitudes(x);
    if (i != 0) a.erase(a.begin(), std::upper_bound(a.begin(), a.end(), t.stage[i - 1].eta.value));
    const double low = i == 0 ? 0 : static_cast<double>(a.front());
    const Moments m = moments(a, low);
    EXPECT_EQ(t.stage[i].of.count, m.count);
    EXPECT_NEAR(t.stage[i].low * t.unit, low, 1e-12);
    EXPECT_NEAR(t.stage[i].of.mean * t.unit, m.mean, 1e-4 * m.mean);
    EXPECT_NEAR(t.stage[i].of.variance * t.unit * t.unit, m.variance, 1e-4 * m.variance);
  }
}

TEST(SidcoTrace, PassesOverMemoryAreCounted) {
  const std::vector<float> x = draw(Shape::laplace, 200000, 1);
  std::vector<uint8_t> payload;
  // Moments; the count of a small selection lists it for the writing.
  EXPECT_EQ(traced({0.001, 0, 1, 1, true}, x, &payload).memory_passes, 2U);
  // Moments; those above the first threshold; the list of the second stage's selection.
  EXPECT_EQ(traced({0.001, 0, 1, 2, true}, x, &payload).memory_passes, 3U);
}

TEST(SidcoTrace, DegenerateInputFitsNoStage) {
  std::vector<uint8_t> payload;
  for (const size_t n : {size_t{0}, size_t{1}, size_t{7}}) {
    const Trace t = traced({1, 2, 1, 3, true}, std::vector<float>(n, 2.0F), &payload);
    EXPECT_EQ(t.stages, 0U);
    EXPECT_EQ(t.sent, n);
  }
  const Trace zeros = traced({0.01, 0, 1, 2, true}, std::vector<float>(5000), &payload);
  EXPECT_EQ(zeros.stages, 0U);
  EXPECT_EQ(zeros.sent, 0U);
  const Trace equal = traced({0.01, 0, 1, 2, true}, std::vector<float>(5000, 2.0F), &payload);
  EXPECT_TRUE(equal.exact);
  EXPECT_EQ(equal.sent, 50U);
}

}  // namespace
}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sidco/sidco.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>

#include "codecs/sidco/exceedances.h"
#include "codecs/sidco/sidco_fit.h"
#include "codecs/sparse/sparse_payload.h"
#include "unit/codecs/sparse_driver.h"

namespace laconic::codecs {
namespace {

using Driver = SparseDriver<Sidco>;
using sidco::Adaptation;
using sidco::Law;
using sidco::Mode;

uint32_t sent(const std::vector<uint8_t>& payload) { return load<uint32_t>(payload.data()); }
uint32_t fitted(const std::vector<uint8_t>& payload) { return load<uint32_t>(payload.data() + 4); }

Driver driver(double ratio, Law law, uint8_t stages, bool guard) {
  Driver d;
  d.params = {ratio, static_cast<uint8_t>(law), 1, stages, guard};
  return d;
}

constexpr Law kLaws[] = {Law::exponential, Law::gamma_pareto, Law::pareto};

// ---- formulas ----

TEST(SidcoFit, InverseGammaIsAnInverse) {
  for (const double delta : {0.5, 0.1, 1e-3, 1e-6}) {
    EXPECT_NEAR(sidco::inverse_upper_gamma(1, delta), -std::log(delta), 1e-9);
    const double two = sidco::inverse_upper_gamma(2, delta);  // Q(2, x) = (1 + x) e^-x
    EXPECT_NEAR((1 + two) * std::exp(-two) / delta, 1, 1e-9);
    const double half = sidco::inverse_upper_gamma(0.5, delta);  // Q(1/2, x) = erfc(sqrt x)
    EXPECT_NEAR(std::erfc(std::sqrt(half)) / delta, 1, 1e-9);
  }
  EXPECT_NEAR(sidco::inverse_upper_gamma(5000, 0.5), 4999.6667, 1e-3);  // median α - 1/3
}

TEST(SidcoFit, ThresholdsMatchThreeDistributions) {
  const double delta = 0.01;
  const double length = std::log(1 / delta);
  EXPECT_DOUBLE_EQ(first_threshold(Law::exponential, {100, 2, 0, 0}, delta), 2 * length);
  // Variance μ² is ξ = 0: the exponential law.
  EXPECT_NEAR(first_threshold(Law::pareto, {100, 2, 4, 0}, delta), 2 * length, 1e-6);
  // Moments of a generalised Pareto law with ξ = 0.2, β = 1: mean 1.25, variance 2.6041666….
  EXPECT_NEAR(first_threshold(Law::pareto, {100, 1.25, 1.25 * 1.25 / 0.6, 0}, delta),
              (std::pow(delta, -0.2) - 1) / 0.2, 1e-9);
  // α = 1: mean of ln a is -γ; the closed form of α is an approximation.
  EXPECT_NEAR(first_threshold(Law::gamma_pareto, {100, 1, 1, -0.57721566490153}, delta), length,
              0.03 * length);
}

TEST(SidcoFit, DegenerateMomentsFallBack) {
  EXPECT_DOUBLE_EQ(first_threshold(Law::pareto, {100, 2, 0, 0}, 0.1), 2 * std::log(10));
  EXPECT_DOUBLE_EQ(first_threshold(Law::pareto, {1, 2, 0, 0}, 0.1), 2 * std::log(10));
  EXPECT_DOUBLE_EQ(first_threshold(Law::gamma_pareto, {9, 2, 0, std::log(2)}, 0.1),
                   2 * std::log(10));
}

TEST(SidcoFit, StageLimitFollowsRatio) {
  EXPECT_EQ(sidco::max_stages(0.1), 4U);
  EXPECT_EQ(sidco::max_stages(0.01), 7U);
  EXPECT_EQ(sidco::max_stages(0.001), 10U);
  EXPECT_EQ(sidco::max_stages(1), 1U);
}

TEST(SidcoFit, FixedStagesKeepASixteenthEach) {
  EXPECT_EQ(sidco::fixed_stages(1), 1U);
  EXPECT_EQ(sidco::fixed_stages(0.1), 1U);
  EXPECT_EQ(sidco::fixed_stages(0.01), 2U);
  EXPECT_EQ(sidco::fixed_stages(0.001), 3U);
  EXPECT_EQ(sidco::fixed_stages(1e-4), 4U);
  EXPECT_EQ(sidco::fixed_stages(1e-9), 8U);
}

// ---- adaptation ----

float stages_after(Mode mode, std::initializer_list<double> means, uint32_t most = 7) {
  Adaptation a;
  for (const double mean : means) {
    for (int call = 0; call < 5; ++call) a.observe(mode, mean, most);
  }
  return a.stages;
}

TEST(SidcoAdaptation, FaithfulModeFollowsPaper) {
  EXPECT_EQ(stages_after(Mode::faithful, {0.5}), 2);
  EXPECT_EQ(stages_after(Mode::faithful, {0.5, 0.5, 1.5}), 2);
  EXPECT_EQ(stages_after(Mode::faithful, {0.5, 1.1, 0.9}), 2);
  EXPECT_EQ(stages_after(Mode::faithful, {1.5, 1.5}), 1);  // the lock-up of a heavy tail
  EXPECT_EQ(stages_after(Mode::faithful, {0.5, 0.5, 0.5}, 3), 3);
}

TEST(SidcoAdaptation, SignedModeTurnsWhereTheErrorDoesNotShrink) {
  EXPECT_EQ(stages_after(Mode::signed_direction, {1.5}), 1);            // M -= 1, clamped
  EXPECT_EQ(stages_after(Mode::signed_direction, {1.5, 1.5}), 2);       // turned: M += 1
  EXPECT_EQ(stages_after(Mode::signed_direction, {1.5, 1.5, 1.3}), 3);  // better: keeps on
  EXPECT_EQ(stages_after(Mode::signed_direction, {0.5, 0.6, 0.7}), 4);
}

TEST(SidcoAdaptation, SettingChangesOnlyEveryFifthCall) {
  Adaptation a;
  for (int call = 0; call < 4; ++call) a.observe(Mode::faithful, 0.1, 7);
  EXPECT_EQ(a.stages, 1);
  a.observe(Mode::faithful, 0.1, 7);
  EXPECT_EQ(a.stages, 2);
  std::vector<float> state(Adaptation::kFloats);
  a.write(state);
  EXPECT_EQ(Adaptation::read(state).stages, 2);
  EXPECT_EQ(Adaptation::read(std::vector<float>(Adaptation::kFloats)).stages, 1);  // zeros
}

TEST(SidcoAdaptation, CommitLearnsFromTheUncorrectedCount) {
  const std::vector<float> x = draw(Shape::gaussian, 100000, 1);
  Driver d = driver(0.01, Law::exponential, 0, true);
  const Unit unit = vector_unit(x.size());
  d.state.resize(Sidco::plan(d.params, unit, 1).state_floats);
  Sidco::init(d.params, unit, d.place, d.state);
  Work work;
  for (int call = 0; call < 5; ++call) {
    const std::vector<uint8_t> payload = d.encode(x);
    EXPECT_LT(fitted(payload), 200U);  // one stage selects a fifth at most
    EXPECT_GE(sent(payload), 800U);
    Sidco::commit({&d.params, d.state, unit, d.place, 0, work}, d.state, payload, {}, 1);
  }
  EXPECT_EQ(Adaptation::read(d.state).stages, 2);
}

TEST(SidcoTest, DefaultUsesStagesOfItsRatio) {
  const std::vector<float> x = draw(Shape::heavy, 100000, 1);
  for (const double ratio : {0.1, 0.01, 0.001}) {
    Driver d;
    d.params.ratio = ratio;
    const auto stages = static_cast<uint8_t>(sidco::fixed_stages(ratio));
    EXPECT_EQ(d.encode(x), driver(ratio, Law::pareto, stages, true).encode(x)) << ratio;
    EXPECT_NE(d.encode(x), driver(ratio, Law::pareto, stages + 1, true).encode(x)) << ratio;
  }
}

// ---- the last threshold ----

/// The part after `last`, by the format page: an ascending list of indices; none where the fit is
/// repeated.
std::optional<std::vector<size_t>> after(float last, const std::vector<float>& x, uint64_t k) {
  std::vector<size_t> reach;
  for (size_t i = 0; i < x.size(); ++i) {
    if (std::fabs(x[i]) >= last) reach.push_back(i);
  }
  const uint64_t room = std::min<uint64_t>(x.size(), std::max(4 * k + 4096, x.size() / 28));
  const auto count = static_cast<double>(reach.size());
  const auto wanted = static_cast<double>(k);
  if (last == 0 || count < 0.8 * wanted || reach.size() > room) return std::nullopt;
  if (count <= 1.2 * wanted) return reach;
  std::stable_sort(reach.begin(), reach.end(),
                   [&](size_t a, size_t b) { return std::fabs(x[a]) > std::fabs(x[b]); });
  reach.resize(k);
  std::sort(reach.begin(), reach.end());
  return reach;
}

TEST(SidcoTest, SearchBeginsAtLastThreshold) {
  ThreadPool pool(2);
  const uint64_t n = 150001;
  for (const double ratio : {0.05, 0.01, 0.001}) {
    Driver d;
    d.params.ratio = ratio;
    const Unit unit = vector_unit(n);
    ASSERT_EQ(Sidco::plan(d.params, unit, 1).state_floats, 1U);
    d.state.assign(1, 7.0F);
    Sidco::init(d.params, unit, d.place, d.state);
    Driver fresh = d;
    Work work;
    int began = 0, largest = 0, fitted_again = 0;
    const float scales[] = {1, 1.02F, 0.99F, 1.3F, 1.3F, 0.2F, 0.2F, 40, 1, 1};
    for (uint64_t step = 0; step < std::size(scales); ++step) {
      std::vector<float> x = draw(Shape::heavy, n, step);
      for (float& v : x) v *= scales[step];
      const auto expected = after(d.state[0], x, kept_of(ratio, n));
      const std::vector<uint8_t> payload = d.encode(x);
      for (const Isa isa : available_isas()) {
        Driver other = d;
        other.isa = isa;
        other.pool = isa == best_isa() ? &pool : nullptr;
        EXPECT_EQ(other.encode(x), payload);
      }
      if (expected) {
        std::vector<float> wanted(n);
        for (const size_t i : *expected) wanted[i] = x[i];
        EXPECT_EQ(d.decode(payload, unit), wanted) << "step " << step;
        ++began;
        largest += expected->size() == kept_of(ratio, n) ? 1 : 0;
      } else {
        EXPECT_EQ(payload, fresh.encode(x)) << "step " << step;
        ++fitted_again;
      }
      float smallest = std::numeric_limits<float>::max();
      for (const float v : d.decode(payload, unit)) {
        if (v != 0) smallest = std::min(smallest, std::fabs(v));
      }
      Sidco::commit({&d.params, d.state, unit, d.place, 0, work}, d.state, payload, {}, 1);
      EXPECT_EQ(d.state[0], smallest);
    }
    EXPECT_GE(began, 4) << ratio;
    EXPECT_GE(largest, 1) << ratio;
    EXPECT_GE(fitted_again, 3) << ratio;
  }
}

TEST(SidcoTest, NonFiniteIsFoundAtLastThreshold) {
  std::vector<float> x = draw(Shape::laplace, 100000, 1);
  Driver d;
  const Unit unit = vector_unit(x.size());
  d.state.assign(1, 0.0F);
  Work none;
  Sidco::commit({&d.params, d.state, unit, d.place, 0, none}, d.state, d.encode(x), {}, 1);
  const Plan plan = Sidco::plan(d.params, unit, 1);
  const LentMemory scratch(plan.scratch_bytes);
  Work work{{}, {scratch.data.get(), scratch.size}, best_isa(), nullptr};
  std::vector<uint8_t> out(plan.round[0].bytes);
  const auto finite = [&] {
    return Sidco::encode({&d.params, d.state, unit, d.place, 0, work}, {x.data(), nullptr}, out)
        .finite;
  };
  EXPECT_TRUE(finite());
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
    x[x.size() - 1] = bad;
    EXPECT_FALSE(finite());
  }
}

// Through calls that begin at the last threshold, and others that fit.
TEST(SidcoTest, SumsWithResidualAreEncodedLikeValues) {
  ThreadPool three(3);
  for (const uint64_t n : {100U, 65537U, 150001U}) {
    for (const Mode mode : {Mode::fixed, Mode::faithful}) {
      Driver d;
      d.params.ratio = 0.01;
      d.params.mode = static_cast<uint8_t>(mode);
      const Unit unit = vector_unit(n);
      d.state.assign(Sidco::plan(d.params, unit, 1).state_floats, 0.0F);
      Sidco::init(d.params, unit, d.place, d.state);
      const float scales[] = {1, 1.02F, 1.3F, 0.2F, 0.2F, 40};
      for (uint64_t step = 0; step < std::size(scales); ++step) {
        const std::vector<float> residual = draw(Shape::layered, n, 100 + step);
        std::vector<float> x = draw(Shape::heavy, n, step), sum(n);
        for (uint64_t i = 0; i < n; ++i) x[i] = i % 500 == 7 ? -residual[i] : x[i] * scales[step];
        std::transform(x.begin(), x.end(), residual.begin(), sum.begin(), std::plus<>());
        const std::vector<uint8_t> wanted = d.encode(sum);
        std::vector<float> rest = sum;
        const Term own{wanted, -1.0F};
        d.decode({&own, 1}, unit, {rest.data(), true});
        for (const Isa isa : available_isas()) {
          Driver other = d;
          other.isa = isa;
          other.pool = isa == best_isa() ? &three : nullptr;
          std::vector<float> e = residual;
          ASSERT_EQ(other.encode_sum(x, &e), wanted) << n << ", step " << step;
          ASSERT_EQ(e, rest) << n << ", step " << step;
        }
        Work none;
        Sidco::commit({&d.params, d.state, unit, d.place, 0, none}, d.state, wanted, {}, 1);
      }
    }
  }
}

TEST(SidcoTest, NonFiniteSumsChangeNothing) {
  const uint64_t n = 70001;
  const std::vector<float> before = draw(Shape::laplace, n, 2);
  Driver fitting;
  const Unit unit = vector_unit(n);
  fitting.state.assign(1, 0.0F);
  std::vector<float> good = before;
  const std::vector<uint8_t> sums = fitting.encode_sum(draw(Shape::laplace, n, 3), &good);
  Work none;
  Sidco::commit({&fitting.params, fitting.state, unit, fitting.place, 0, none}, fitting.state, sums,
                {}, 1);
  const float right = fitting.state[0];
  ASSERT_GT(right, 0);
  for (const float last : {0.0F, right, 0.7F * right, right / 100, 100 * right}) {
    for (const float bad : {std::nanf(""), INFINITY, -INFINITY, 3e38F}) {
      Driver d;
      d.state.assign(1, last);
      std::vector<float> x = draw(Shape::laplace, n, 3), e = before;
      x[n / 3] = bad;
      if (bad == 3e38F) e[n / 3] = bad;  // overflows
      const std::vector<float> kept = e;
      EXPECT_TRUE(d.encode_sum(x, &e).empty()) << last << ", " << bad;
      EXPECT_EQ(e, kept) << last << ", " << bad;
    }
  }
}

// ---- quality gates ----

TEST(SidcoTest, GuardKeepsTheCountWithinTwentyPercent) {
  for (const Shape shape : {Shape::laplace, Shape::gaussian, Shape::gamma_half, Shape::heavy,
                            Shape::layered, Shape::pareto}) {
    const std::vector<float> x = draw(shape, 150001, 3);
    for (const double ratio : {0.1, 0.01, 0.001}) {
      for (const Law law : kLaws) {
        for (const uint8_t stages : std::initializer_list<uint8_t>{1, 2, 4, 10}) {
          const double k = static_cast<double>(kept_of(ratio, x.size()));
          const uint32_t count = sent(driver(ratio, law, stages, true).encode(x));
          EXPECT_GE(count, 0.8 * k) << static_cast<int>(shape) << " " << ratio;
          EXPECT_LE(count, 1.2 * k) << static_cast<int>(shape) << " " << ratio;
        }
      }
    }
  }
}

void expect_ratio(const std::vector<float>& x, double ratio, Law law, uint8_t stages, double aim,
                  double tolerance) {
  const double k = static_cast<double>(kept_of(ratio, x.size()));
  EXPECT_NEAR(fitted(driver(ratio, law, stages, false).encode(x)) / k, aim, tolerance)
      << "law " << static_cast<int>(law) << " stages " << int{stages} << " ratio " << ratio;
}

// Section 7 of the reference table: selected / wanted at 0.01 for 1, 2, 4 stages.
TEST(SidcoTest, UnguardedCountsMatchReferenceTable) {
  struct Row {
    Shape shape;
    double expected[3][3];
  };
  const Row rows[] = {
      {Shape::laplace, {{1.00, 1.00, 1.00}, {0.98, 1.00, 1.00}, {1.00, 1.00, 1.00}}},
      {Shape::gaussian, {{0.02, 0.63, 1.30}, {0.15, 1.06, 1.08}, {1.63, 0.91, 0.94}}},
      {Shape::gamma_half, {{3.17, 1.10, 0.90}, {0.97, 1.04, 1.00}, {1.09, 1.10, 1.06}}}};
  for (const Row& row : rows) {
    const std::vector<float> x = draw(row.shape, 1000000, 11);
    for (int law = 0; law < 3; ++law) {
      for (int m = 0; m < 3; ++m) {
        const auto stages = static_cast<uint8_t>(1 << m);
        expect_ratio(x, 0.01, kLaws[law], stages, row.expected[law][m], 0.045);
      }
    }
  }
}

TEST(SidcoTest, ParetoFitsItsOwnDistribution) {
  const std::vector<float> x = draw(Shape::pareto, 1000000, 2);
  expect_ratio(x, 0.01, Law::pareto, 1, 1.0, 0.05);
  expect_ratio(x, 0.01, Law::pareto, 2, 1.0, 0.05);
}

// ---- edge cases of section 6 ----

TEST(SidcoTest, ZerosSelectNothing) {
  const std::vector<float> x(5000);
  for (const Law law : kLaws) {
    for (const bool guard : {false, true}) {
      const Driver d = driver(0.01, law, 2, guard);
      EXPECT_EQ(sent(d.encode(x)), 0U);
      EXPECT_EQ(nonzeros(d.round_trip(x)), 0U);
    }
  }
}

TEST(SidcoTest, EqualMagnitudesKeepTheCount) {
  std::vector<float> x(5000, 2.0F);
  for (size_t i = 0; i < x.size(); i += 2) x[i] = -2.0F;
  for (const Law law : kLaws) {
    const std::vector<float> y = driver(0.01, law, 2, true).round_trip(x);
    for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(y[i], i < 50 ? x[i] : 0.0F);
    const uint32_t unguarded = sent(driver(0.01, law, 2, false).encode(x));
    EXPECT_GE(unguarded, 1U);
    EXPECT_LE(unguarded, 60U);
  }
}

TEST(SidcoTest, FewNonZerosAreSentWhole) {
  std::vector<float> x(100000);
  for (size_t i = 0; i < 37; ++i) x[i * 2000 + 3] = static_cast<float>(i + 1);
  for (const Law law : kLaws) EXPECT_EQ(driver(0.001, law, 1, true).round_trip(x), x);
}

TEST(SidcoTest, ManyZerosDoNotSpoilTheFit) {
  std::vector<float> x = draw(Shape::laplace, 400000, 4);
  for (size_t i = 0; i < x.size(); ++i) {
    if (i % 4 != 0) x[i] = 0;
  }
  for (const Law law : kLaws) expect_ratio(x, 0.01, law, 1, 1.0, 0.08);
}

TEST(SidcoTest, ScaleDoesNotMatter) {
  const std::vector<float> x = draw(Shape::laplace, 100000, 4);
  for (const Law law : kLaws) {
    const std::vector<uint8_t> base = driver(0.01, law, 2, false).encode(x);
    for (const int power : {-110, -60, 60, 120}) {  // normal floats all, squares are not
      std::vector<float> y = x;
      for (float& v : y) v = std::ldexp(v, power);
      const std::vector<uint8_t> scaled = driver(0.01, law, 2, false).encode(y);
      EXPECT_NEAR(sent(scaled), sent(base), law == Law::gamma_pareto ? 1 : 0) << power;
    }
    std::vector<float> tiny = x;
    for (float& v : tiny) v *= 1e-38F;  // denormals: coarse, but a selection
    const uint32_t count = sent(driver(0.01, law, 2, true).encode(tiny));
    EXPECT_GE(count, 800U);
    EXPECT_LE(count, 1200U);
  }
}

TEST(SidcoTest, PayloadStaysWithinBound) {
  // gamma(1/2) at a small ratio selects three times too many with one exponential stage.
  const std::vector<float> x = draw(Shape::gamma_half, 100000, 4);
  const Driver d = driver(0.01, Law::exponential, 1, false);
  const std::vector<uint8_t> payload = d.encode(x);
  EXPECT_EQ(sent(payload), 1200U);
  EXPECT_GT(fitted(payload), 2500U);
  EXPECT_EQ(payload.size(), Sidco::plan(d.params, vector_unit(x.size()), 1).round[0].bytes);
  // The largest elements are sent.
  std::vector<float> magnitudes = x;
  for (float& v : magnitudes) v = std::fabs(v);
  std::nth_element(magnitudes.begin(), magnitudes.begin() + 1199, magnitudes.end(),
                   std::greater<>());
  const std::vector<float> y = d.decode(payload, vector_unit(x.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    ASSERT_EQ(y[i] != 0, std::fabs(x[i]) >= magnitudes[1199]);
  }
}

TEST(SidcoTest, PayloadHasAtLeastOneElement) {
  std::vector<float> x(1000, 1.0F);
  x[500] = 1.5F;
  const std::vector<float> y = driver(0.001, Law::exponential, 1, false).round_trip(x);
  EXPECT_EQ(nonzeros(y), 1U);
  EXPECT_EQ(y[500], 1.5F);
}

TEST(SidcoTest, SmallUnitsAreEncoded) {
  for (uint64_t n = 1; n < 70; ++n) {
    const std::vector<float> x = draw(Shape::laplace, n, n);
    for (const Law law : kLaws) {
      for (const uint8_t stages : std::initializer_list<uint8_t>{0, 1, 3}) {
        EXPECT_EQ(sent(driver(0.001, law, stages, true).encode(x)), 1U) << n;
      }
    }
  }
}

// ---- sameness ----

TEST(SidcoTest, InstructionSetsAndThreadsChangeNoByte) {
  const std::vector<float> x = draw(Shape::layered, 400001, 6);
  ThreadPool two(2);
  ThreadPool three(3);
  for (const Law law : kLaws) {
    for (const uint8_t stages : std::initializer_list<uint8_t>{1, 2, 5}) {
      for (const bool guard : {false, true}) {
        Driver d = driver(0.01, law, stages, guard);
        d.isa = Isa::scalar;
        const std::vector<uint8_t> base = d.encode(x);
        for (const Isa isa : available_isas()) {
          d.isa = isa;
          for (ThreadPool* pool : {static_cast<ThreadPool*>(nullptr), &two, &three}) {
            d.pool = pool;
            EXPECT_EQ(d.encode(x), base);
          }
        }
      }
    }
  }
}

TEST(SidcoTest, ListAndMemoryGiveSameMoments) {
  const std::vector<float> x = draw(Shape::layered, 200003, 8);
  const sidco::Threshold eta = sidco::threshold_at(0.05);
  for (const Law law : {Law::exponential, Law::pareto}) {
    const LentMemory scratch(sidco::Exceedances::scratch_bytes(x.size(), x.size()));
    const Work work{{}, {scratch.data.get(), scratch.size}, best_isa(), nullptr};
    sidco::Exceedances memory({x.data(), nullptr}, x.size(), x.size(), law, work);
    (void)memory.all();
    double low_memory = 0;
    const sidco::Moments a = memory.above(eta, &low_memory);
    memory.expect_only_above(sidco::threshold_at(0.01), 0);
    double low_list = 0;
    const sidco::Moments b = memory.above(eta, &low_list);
    EXPECT_EQ(a.count, b.count);
    EXPECT_EQ(a.mean, b.mean);
    if (law == Law::pareto) {
      EXPECT_EQ(a.variance, b.variance);
    }
    EXPECT_EQ(low_memory, low_list);
  }
}

// A list of the largest answers for thresholds above its floor, memory for those below.
TEST(SidcoTest, RefinementChangesNoCount) {
  const std::vector<float> x = draw(Shape::heavy, 200003, 8);
  const uint64_t wanted = 2000;
  ThreadPool pool(2);
  for (ThreadPool* threads : {static_cast<ThreadPool*>(nullptr), &pool}) {
    const LentMemory scratch(sidco::Exceedances::scratch_bytes(x.size(), wanted));
    const Work work{{}, {scratch.data.get(), scratch.size}, best_isa(), threads};
    sidco::Exceedances unit({x.data(), nullptr}, x.size(), wanted, Law::exponential, work);
    (void)unit.all();
    unit.expect_about(wanted);
    std::vector<float> sorted(x.size());
    std::transform(x.begin(), x.end(), sorted.begin(), [](float v) { return std::fabs(v); });
    std::sort(sorted.begin(), sorted.end(), std::greater<>());
    for (const uint64_t rank : {20000U, 10U, 4000U, 150000U, 2000U, 1U}) {
      const float value = sorted[rank];
      const auto exceeding = static_cast<uint64_t>(
          std::count_if(sorted.begin(), sorted.end(), [&](float a) { return a > value; }));
      EXPECT_EQ(unit.count(sidco::threshold_at(static_cast<double>(value))), exceeding) << rank;
    }
  }
}

TEST(SidcoTest, NonCanonicalPayloadsAreRefused) {
  const std::vector<float> x = draw(Shape::laplace, 10000, 1);
  const Driver d = driver(0.01, Law::exponential, 1, true);
  const std::vector<uint8_t> good = d.encode(x);
  const auto check = [&](const std::vector<uint8_t>& p) {
    return Sidco::check(d.params, vector_unit(x.size()), 0, p);
  };
  for (size_t n = 0; n < good.size(); ++n) {
    EXPECT_NE(check({good.begin(), good.begin() + static_cast<long>(n)}), Errc::ok);
  }
  std::vector<uint8_t> bad = good;
  store(bad.data(), uint32_t{0xFFFFFFFF});
  EXPECT_EQ(check(bad), Errc::bound_exceeded);
  store(bad.data(), sent(good) - 1);
  EXPECT_EQ(check(bad), Errc::payload_malformed);
  bad = good;
  store(bad.data() + bad.size() - 4, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(check(bad), Errc::payload_malformed);
}

}  // namespace
}  // namespace laconic::codecs

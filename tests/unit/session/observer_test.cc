// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/observer.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <vector>

#include "support/ranks.h"

namespace laconic::session {
namespace {

using control::Duration;
using control::Ratio;
using control::Report;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

TEST(Observer, ReportsCoverPreviousStep) {
  Observer o;
  o.begin_step(7, 100.0, 0xABCD);
  EXPECT_TRUE(o.report().report.missing());
  o.encode(0.5);
  o.batch({100.5, 101.5});
  o.decode(0.125);
  o.encode(0.25);
  o.norms(16, 3);
  o.norms(20, 1);
  o.begin_step(9, 104.0, 0x1111);
  const auto& own = o.report();
  EXPECT_EQ(own.step, 7U);
  EXPECT_EQ(own.turn, 0U);
  EXPECT_EQ(own.report.network, Duration::of(1));
  EXPECT_EQ(own.report.encode, Duration::of(0.75));
  EXPECT_EQ(own.report.decode, Duration::of(0.125));
  EXPECT_EQ(own.report.step, Duration::of(4));
  EXPECT_EQ(own.report.residual, Ratio::of(3));
  EXPECT_EQ(own.report.settings, 0xABCD);
  o.carried();
  EXPECT_EQ(own.turn, 1U);
  o.begin_step(10, 104.5);
  EXPECT_TRUE(o.report().report.missing()) << "nothing was exchanged";
  EXPECT_EQ(o.report().report.step, Duration::of(0.5));
  EXPECT_TRUE(o.report().report.residual.missing());
  EXPECT_EQ(o.report().report.settings, 0x1111);
}

/// Two in flight share the network: the second counts from the end of the first.
TEST(Observer, BatchesInFlightAreCountedOnce) {
  Observer o;
  o.begin_step(0, 0);
  o.batch({1, 3});
  o.batch({2, 4.5});  // 1.5 of it alone
  o.batch({2.5, 4});  // was there before the other one: none
  o.batch({6, 7});    // after a pause
  o.begin_step(1, 10);
  EXPECT_EQ(o.report().report.network, Duration::of(2 + 1.5 + 1));
  o.carried();
  o.batch({6.5, 7.5});  // of the last step's end
  o.begin_step(2, 11);
  EXPECT_EQ(o.report().report.network, Duration::of(0.5));
}

/// A clock that goes back by more than a batch takes leaves nothing of it.
TEST(Observer, NegativeIntervalIsNotMeasured) {
  Observer o;
  o.begin_step(0, 100);
  o.batch({101, 102});
  o.begin_step(1, 103);
  EXPECT_EQ(o.report().report.network, Duration::of(1));
  o.carried();
  o.batch({51, 50});
  o.begin_step(2, 52);
  EXPECT_TRUE(o.report().report.network.missing());
  EXPECT_TRUE(o.report().report.step.missing());
  o.carried();
  o.batch({53, 55});  // the clock goes on from there, before all that was seen
  o.begin_step(3, 60);
  EXPECT_EQ(o.report().report.network, Duration::of(2));
  EXPECT_EQ(o.report().report.step, Duration::of(8));
  o.carried();
  o.batch({61, 61});
  o.begin_step(4, 60);
  EXPECT_TRUE(o.report().report.network.missing()) << "a clock that stands";
  EXPECT_TRUE(o.report().report.step.missing());
  o.carried();
  o.batch({61, 63});
  o.batch({31, 32});  // back within a step: its time is not below zero
  o.begin_step(5, 33);
  EXPECT_EQ(o.report().report.network, Duration::of(2));
  EXPECT_TRUE(o.report().report.step.missing());
  o.carried();
  o.batch({34, 35});
  o.begin_step(6, 36);
  EXPECT_EQ(o.report().report.network, Duration::of(1));
}

TEST(Observer, UnknownFiguresAreMissing) {
  for (const Timing& t :
       {Timing{}, Timing{1, kNan}, Timing{kNan, 1}, Timing{2, 1}, Timing{1, INFINITY}}) {
    Observer o;
    o.begin_step(0, 0);
    o.batch({0, 0.5});
    o.batch(t);
    o.batch({5, 6});
    o.begin_step(1, 10);
    EXPECT_TRUE(o.report().report.missing()) << t.issued << ' ' << t.completed;
    o.carried();
    o.batch({11, 12});
    o.begin_step(2, 9);  // a clock that jumps
    EXPECT_EQ(o.report().report.network, Duration::of(1));
    EXPECT_TRUE(o.report().report.step.missing());
  }
  Observer o;
  o.begin_step(0, 0);
  o.norms(0, 0);
  o.begin_step(1, 1);
  EXPECT_TRUE(o.report().report.residual.missing());
  o.carried();
  o.norms(kNan, 1);
  o.begin_step(2, 1);
  EXPECT_TRUE(o.report().report.residual.missing());
}

TEST(Observer, WaitForOthersIsNotNetworkTime) {
  Observer o;
  o.begin_step(0, 0);
  o.carried();
  o.heard({}, 3);  // before the first step there are no reports
  EXPECT_EQ(o.missing(), 0U);
  o.batch({0, 0.184});
  o.begin_step(1, 1);
  o.carried();
  std::vector<Report> said(3, o.report().report);
  said[1].network = Duration::of(0.143);
  o.heard({0, said}, 3);
  EXPECT_EQ(o.missing(), 0U);
  EXPECT_DOUBLE_EQ(o.network_seconds(), Duration::of(0.143).value());
  EXPECT_DOUBLE_EQ(o.straggler_seconds(),
                   Duration::of(0.184).value() - Duration::of(0.143).value());
  o.batch({1, 1.5});
  o.begin_step(2, 2);
  o.carried();
  said[2] = {};
  o.heard({0, said}, 3);
  EXPECT_EQ(o.missing(), 1U);
  o.begin_step(3, 3);
  o.carried();
  o.lost(3);
  o.lost(3);  // counted once
  EXPECT_EQ(o.missing(), 4U);
}

/// This rank exchanged nothing in between: the only sums to report are other ranks'.
TEST(Observer, StepsWithoutReportUseMedians) {
  Observer o;
  o.begin_step(0, 0);
  const std::vector<double> seconds{0.5, 9, 0.25, 0.375, 0.125};
  for (uint64_t s = 0; s < seconds.size(); ++s) {
    const auto at = static_cast<double>(10 * s);
    o.batch({at, at + seconds[s]});
    o.begin_step(s + 1, at + 10);
  }
  o.batch({50, kNan});
  o.begin_step(6, 52);  // its network is not known: the median is that of the others
  EXPECT_EQ(o.report().report.network, Duration::of(0.375));
  EXPECT_EQ(o.report().report.step, Duration::of(10));
  EXPECT_EQ(o.report().step, 5U);
  o.carried();
  std::vector<Report> said(2, o.report().report);
  said[0].network = Duration::of(0.25);
  o.heard({0, said}, 2);
  EXPECT_NEAR(o.network_seconds(), 6 * 0.25, 0.001);
  EXPECT_NEAR(o.straggler_seconds(), 6 * 0.125, 0.001);
  o.batch({52, 54});
  o.begin_step(7, 55);
  EXPECT_EQ(o.report().report.network, Duration::of(2)) << "of the step since alone";
  for (uint64_t s = 0; s < 3 * Observer::kKept; ++s) {  // the last ones are kept
    const auto at = static_cast<double>(100 + s);
    o.batch({at, at + (s < 2 * Observer::kKept ? 0.75 : 0.5)});
    o.begin_step(8 + s, at + 1);
  }
  EXPECT_EQ(o.report().report.network, Duration::of(0.5));
}

// ---- of a session ----

const std::vector<test::Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 9000, 1}};

class Sessions {
 public:
  Sessions(std::string spec, test::StrategyKind strategy, bool reports = true)
      : hub_(2, std::chrono::seconds(60)) {
    for (uint32_t r = 0; r < 2; ++r) {
      test::Options o;
      o.rank = r;
      o.world = 2;
      o.small_elements = 16;
      o.strategy = strategy;
      o.caps.sums = kAllSums;
      o.window = 2;
      o.reports = reports;
      o.now = [this, r] { return now_[r]; };
      auto made = Session::create(spec, kModel, o);
      EXPECT_TRUE(made) << made.error().message;
      sessions_.push_back(*std::move(made));
    }
  }

  /// Two buckets; rank r's batches take `seconds[r]` each, one after the other.
  void step(uint64_t step, std::array<double, 2> seconds) {
    test::on_all(2, [&](uint32_t r) {
      for (const auto& order : {std::vector<uint32_t>{0}, std::vector<uint32_t>{1, 2}}) {
        const test::Layout layout = test::back_to_back(kModel, order);
        std::vector<float> buffer = test::normal_numbers(layout.elements, step + r);
        test::Bucket bucket;
        bucket.buffer = buffer.data();
        bucket.step = step;
        auto exchange = sessions_[r]->begin(bucket, layout);
        ASSERT_TRUE(exchange) << exchange.error().message;
        std::array<Step, kMaxBatch> batch;
        Timing timing;
        for (;;) {
          const auto steps = sessions_[r]->next(**exchange, batch, timing);
          ASSERT_TRUE(steps) << steps.error().message;
          if (*steps == 0) break;
          timing.issued = now_[r];
          ASSERT_TRUE(hub_.engine(r).run({batch.data(), *steps}));
          now_[r] += seconds[r];
          timing.completed = now_[r];
        }
      }
      now_[r] += 1;
    });
  }
  Session& operator[](uint32_t r) { return *sessions_[r]; }

 private:
  LoopbackHub hub_;
  std::array<double, 2> now_{1000, 5000};  // no two ranks' clocks agree
  std::vector<std::unique_ptr<Session>> sessions_;
};

TEST(SessionReports, WireTimeIsSplitByFasterRank) {
  for (const auto& [spec, strategy, rounds] :
       {std::tuple{"topk:ratio=0.1", test::StrategyKind::gather_all, 1},
        {"topk:ratio=0.1", test::StrategyKind::two_shot, 2},
        {"fp16+ef", test::StrategyKind::native_sum, 2}}) {
    Sessions s(spec, strategy);
    for (uint64_t step = 0; step < 5; ++step) s.step(step, {0.25, 0.375});
    const double taken = (strategy == test::StrategyKind::native_sum ? 2 : 2 * rounds) * 4;
    for (uint32_t r = 0; r < 2; ++r) {
      const Stats stats = s[r].stats();
      EXPECT_EQ(stats.reports_missing, 0U);
      EXPECT_NEAR(stats.network_seconds, taken * 0.25, 0.01) << spec;
      EXPECT_NEAR(stats.straggler_seconds, r == 0 ? 0 : taken * 0.125, 0.01) << spec;
    }
  }
}

TEST(SessionReports, DriverWithoutTimesIsMissing) {
  Sessions s("topk:ratio=0.1", test::StrategyKind::gather_all);
  s.step(0, {kNan, 0.25});
  s.step(1, {0.25, 0.25});
  EXPECT_EQ(s[0].stats().reports_missing, 1U);
  EXPECT_EQ(s[1].stats().reports_missing, 1U);
}

TEST(SessionReports, ReportsMayBeDisabled) {
  Sessions s("topk:ratio=0.1", test::StrategyKind::gather_all, false);
  for (uint64_t step = 0; step < 3; ++step) s.step(step, {0.25, 0.25});
  EXPECT_EQ(s[0].stats().reports_missing, 0U);
  EXPECT_EQ(s[0].stats().network_seconds, 0);
}

// ---- norms ----

TEST(NormSample, SampleHasFixedStrideForAnyBuckets) {
  const std::vector<test::Parameter> model{{"a", 100, 100}, {"small", 5, 1}, {"b", 20000, 3}};
  test::Options o;
  o.world = 2;
  o.small_elements = 16;
  auto session = *Session::create("topk:ratio=0.1", model, o);
  const collective::Model& m = session->model();
  feedback::Store store;
  pipeline::UnitCodec codec(m.spec(), best_isa(), nullptr);
  auto state = *collective::RankState::create(m, {&codec, 1}, store);
  uint64_t k = 0;
  for (const uint32_t p : {0U, 2U}) {
    for (uint64_t i = 0; i < model[p].count(); ++i)
      state->parameter(p).memory.values[i] = static_cast<float>(k++ % 977);
  }
  const NormSample norms(*state);
  const auto look = [&](const std::vector<uint32_t>& order, DType dtype) {
    const test::Layout layout = test::back_to_back(model, order);
    std::vector<float> g(layout.elements);
    std::vector<uint16_t> half(layout.elements);
    for (size_t i = 0; i < order.size(); ++i) {
      for (uint64_t j = 0; j < model[order[i]].count(); ++j) {
        const auto x = static_cast<float>((j + 3 * order[i]) % 31);
        g[layout.offsets[i] + j] = x;
        half[layout.offsets[i] + j] = dtype == DType::f16 ? float_to_f16(x) : float_to_bf16(x);
      }
    }
    return norms.of(*state, layout,
                    dtype == DType::f32 ? static_cast<void*>(g.data()) : half.data(), dtype);
  };
  // 70,000 elements with a residual: every 18th.
  double residual = 0;
  double gradient = 0;
  for (uint64_t at = 0; at < 70000; at += 18) {
    const double e = static_cast<double>(at % 977);
    const uint64_t p = at < 10000 ? 0 : 2;
    const auto g = static_cast<double>((at - (p == 0 ? 0 : 10000) + 3 * p) % 31);
    residual += e * e;
    gradient += g * g;
  }
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    const auto all = look({0, 1, 2}, dtype);
    EXPECT_EQ(all.elements, 3889U);
    EXPECT_LE(all.elements, NormSample::kMost);
    EXPECT_EQ(all.residual, residual);
    EXPECT_EQ(all.gradient, gradient);
    const auto b = look({2}, dtype);
    const auto a = look({1, 0}, dtype);
    EXPECT_EQ(a.residual + b.residual, residual);
    EXPECT_EQ(a.gradient + b.gradient, gradient);
  }
  EXPECT_EQ(look({1}, DType::f32).elements, 0U);
}

}  // namespace
}  // namespace laconic::session

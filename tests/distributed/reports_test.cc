// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Reports in exchanges: all ranks receive what all ranks sent, and gradients, rounds and the bytes
// of an exchange without reports are unchanged.
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "support/impatient.h"
#include "support/ranks.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

using collective::Exchange;
using collective::HeardReports;
using collective::OwnReport;
using control::Report;

const std::vector<Parameter> kModel{{"a", 60, 50}, {"bias", 9, 1}, {"b", 3000, 1}};

struct Case {
  std::string spec;
  StrategyKind strategy;
  uint32_t sums = kAllSums;
  std::vector<uint32_t> bucket{0, 1, 2};
  DType dtype = DType::f32;
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.spec << " by " << collective::strategy_name(c.strategy);
}

const std::vector<Case> kWays{
    {"topk:ratio=0.05", StrategyKind::gather_all},
    {"topk:ratio=0.05", StrategyKind::two_shot},
    {"3lc", StrategyKind::gather_all},
    {"3lc", StrategyKind::two_shot},
    {"fp16", StrategyKind::native_sum},                    // lanes of f32 and of f16
    {"fp16", StrategyKind::native_sum, kAllSums, {0, 2}},  // of f16 alone
    {"bf16", StrategyKind::native_sum, kAllSums, {0, 2}},  // of bf16 alone
    {"fp16+ef", StrategyKind::native_sum, kAllSums, {2, 0}},
    {"none", StrategyKind::native_sum},  // the bucket is the lanes
    {"powersgd:rank=2", StrategyKind::native_sum},
    {"thc", StrategyKind::native_sum},  // of int32
    {"thc", StrategyKind::server_sum},
    {"thc", StrategyKind::server_sum, kAllSums, {1}},  // fixed point alone
};

Report report_of(uint32_t rank, uint64_t step) {
  return {.network = control::Duration::of(0.001 * (rank + 1.0)),
          .encode = control::Duration::of(1e-5 * static_cast<double>(step + 1)),
          .decode = control::Duration::of(7e-6),
          .step = control::Duration::of(0.25),
          .residual = control::Ratio::of(3.5 * rank),
          .settings = static_cast<uint16_t>(0xFF00 + rank)};
}

/// Exchanges that sessions have nothing to do with.
class Exchanges {
 public:
  Exchanges(const Case& c, uint32_t world, bool reports, const LeavesOut& leaves_out = {})
      : hub_(world, std::chrono::seconds(60), caps(c)), layout_(back_to_back(kModel, c.bucket)) {
    for (uint32_t r = 0; r < world; ++r) {
      auto rank = std::make_unique<Rank>();
      Options o;
      o.rank = r;
      o.world = world;
      o.small_elements = 16;
      o.strategy = c.strategy;
      o.caps = hub_.engine(r).caps();
      o.reports = reports;
      auto model = collective::Model::create(*Spec::parse(c.spec), kModel, o);
      EXPECT_TRUE(model) << model.error().message;
      rank->model = std::make_unique<collective::Model>(*std::move(model));
      rank->codec = std::make_unique<pipeline::UnitCodec>(rank->model->spec(), best_isa(), nullptr);
      rank->state =
          *collective::RankState::create(*rank->model, {rank->codec.get(), 1}, rank->store);
      auto made = Exchange::create(*rank->state, layout_, c.dtype, rank->counters);
      EXPECT_TRUE(made) << made.error().message;
      rank->exchange = *std::move(made);
      if (leaves_out) rank->impatient = std::make_unique<Impatient>(hub_.engine(r), leaves_out);
      if (o.caps.aggregates) {
        EXPECT_TRUE(hub_.engine(r).join(rank->model->aggregation_job(), {}));
      }
      ranks_.push_back(std::move(rank));
    }
  }

  using Buffers = std::vector<std::vector<float>>;
  /// `own`: null, or every rank's. Returns what every rank received.
  std::vector<std::vector<Report>> step(Buffers& buffers, uint64_t step,
                                        const std::vector<OwnReport>* own) {
    std::vector<std::vector<Report>> heard(ranks_.size());
    on_all(static_cast<uint32_t>(ranks_.size()), [&](uint32_t r) {
      Exchange& exchange = *ranks_[r]->exchange;
      Bucket bucket;
      bucket.buffer = buffers[r].data();
      bucket.step = step;
      exchange.prepare(bucket, static_cast<uint32_t>(step), {}, own ? &(*own)[r] : nullptr);
      std::array<Step, kMaxBatch> batch;
      for (;;) {
        auto steps = exchange.next(batch);
        ASSERT_TRUE(steps) << steps.error().message;
        if (*steps == 0) break;
        Engine& engine = ranks_[r]->impatient ? *ranks_[r]->impatient : hub_.engine(r);
        ASSERT_TRUE(engine.run({batch.data(), *steps}));
      }
      const HeardReports got = exchange.heard().reports;
      if (r == 0) first_ = got.first;
      heard[r].assign(got.reports.begin(), got.reports.end());
    });
    return heard;
  }
  [[nodiscard]] const collective::Counters& counters(uint32_t r) const {
    return ranks_[r]->counters;
  }
  /// The first rank whose report came last.
  [[nodiscard]] uint32_t first() const { return first_; }
  [[nodiscard]] uint64_t elements() const { return layout_.elements; }

 private:
  static EngineCaps caps(const Case& c) {
    EngineCaps caps{c.sums, false};
    caps.aggregates = c.strategy == StrategyKind::server_sum;
    return caps;
  }
  struct Rank {
    std::unique_ptr<collective::Model> model;
    std::unique_ptr<pipeline::UnitCodec> codec;
    feedback::Store store;
    std::unique_ptr<collective::RankState> state;
    collective::Counters counters;
    std::unique_ptr<Exchange> exchange;
    std::unique_ptr<Impatient> impatient;
  };
  LoopbackHub hub_;
  uint32_t first_ = 0;
  Layout layout_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

class Reports : public testing::TestWithParam<Case> {};

TEST_P(Reports, EveryRankReceivesAllReports) {
  for (const uint32_t world : {2U, 3U, 5U}) {
    Exchanges with(GetParam(), world, true);
    Exchanges without(GetParam(), world, false);
    for (uint64_t step = 0; step < 6; ++step) {
      auto a = gradients(world, with.elements(), 10 + step);
      auto b = a;
      std::vector<OwnReport> own;
      for (uint32_t r = 0; r < world; ++r) own.push_back({report_of(r, step), step + 99, step});
      const bool now = step % 3 != 1;  // the others are further buckets of a step
      const auto heard = with.step(a, step, now ? &own : nullptr);
      (void)without.step(b, step, nullptr);
      for (uint32_t r = 0; r < world; ++r) {
        ASSERT_EQ(heard[r].size(), now ? world : 0) << step;
        for (uint32_t from = 0; now && from < world; ++from)
          EXPECT_EQ(heard[r][from], own[from].report) << step;
        EXPECT_TRUE(same_bits(a[r], b[r])) << step;
      }
    }
    EXPECT_EQ(with.counters(0).rounds, without.counters(0).rounds);
  }
}

TEST_P(Reports, ExchangeWithoutReportsSendsSameBytes) {
  const bool bundles = !collective::sums_lanes(GetParam().strategy);
  Exchanges with(GetParam(), 3, true);
  Exchanges without(GetParam(), 3, false);
  std::array<uint64_t, 2> sent{};
  for (uint64_t step = 0; step < 4; ++step) {
    auto a = gradients(3, with.elements(), step);
    auto b = a;
    const std::vector<OwnReport> own(3, {report_of(1, step), step, step});
    (void)with.step(a, step, step == 3 ? &own : nullptr);
    (void)without.step(b, step, nullptr);
    if (step == 2) {
      EXPECT_EQ(with.counters(1).wire_bytes, without.counters(1).wire_bytes);
    }
    sent = {with.counters(1).wire_bytes, without.counters(1).wire_bytes};
  }
  EXPECT_EQ(sent[0] == sent[1], bundles);
  EXPECT_LE(sent[0] - sent[1], uint64_t{4} * 12 * 3 + 64);
}

TEST_P(Reports, SilentRankIsMissing) {
  Exchanges ranks(GetParam(), 3, true);
  for (uint64_t step = 0; step < 3; ++step) {
    auto buffers = gradients(3, ranks.elements(), step);
    std::vector<OwnReport> own(3, {report_of(1, step), 5, step});
    own[1].report = {};
    const auto heard = ranks.step(buffers, step, &own);
    for (uint32_t r = 0; r < 3; ++r) {
      ASSERT_EQ(heard[r].size(), 3U);
      EXPECT_TRUE(heard[r][1].missing());
      EXPECT_EQ(heard[r][2], own[2].report);
    }
  }
}

/// A gradient that is not finite goes out another way; what was said before holds or is missing,
/// the same on all ranks.
TEST_P(Reports, ReportsTravelWithNonFiniteGradient) {
  Exchanges ranks(GetParam(), 3, true);
  for (uint64_t step = 0; step < 3; ++step) {
    auto buffers = gradients(3, ranks.elements(), step);
    if (step == 1) buffers[2][3] = std::numeric_limits<float>::quiet_NaN();
    const std::vector<OwnReport> own(3, {report_of(1, step), 5, step});
    const auto heard = ranks.step(buffers, step, &own);
    for (uint32_t r = 0; r < 3; ++r) {
      EXPECT_EQ(heard[r], heard[0]);
      EXPECT_TRUE(same_bits(buffers[r], buffers[0]));
      if (step == 1) {
        for (const Report& report : heard[r])
          EXPECT_TRUE(report.missing() || report == own[0].report);
      } else {
        EXPECT_EQ(heard[r], std::vector<Report>(3, own[0].report));
      }
    }
  }
}

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string name = info.param.spec + "_" +
                     std::string(collective::strategy_name(info.param.strategy)) + "_" +
                     std::to_string(info.index);
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, Reports, testing::ValuesIn(kWays), name_of);

TEST(ReportsUnderAQuorum, ExcludedRankIsMissing) {
  // Rank 1 is left out of every granule, then of the last alone: reports have one of their own.
  for (const uint64_t from : {0U, 25U}) {
    const LeavesOut rank_1 = [&](uint32_t rank, uint64_t exchange, uint64_t granule) {
      return rank == 1 && exchange == 1 && granule >= from;
    };
    Exchanges ranks({"thc:block=256", StrategyKind::server_sum}, 3, true, rank_1);
    for (uint64_t step = 0; step < 3; ++step) {
      auto buffers = gradients(3, ranks.elements(), step);
      std::vector<OwnReport> own;
      for (uint32_t r = 0; r < 3; ++r) own.push_back({report_of(r, step), 5, step});
      const auto heard = ranks.step(buffers, step, &own);
      for (uint32_t r = 0; r < 3; ++r) {
        ASSERT_EQ(heard[r].size(), 3U);
        EXPECT_EQ(heard[r][0], own[0].report);
        EXPECT_EQ(heard[r][1], step == 1 ? Report() : own[1].report) << step;
        EXPECT_EQ(heard[r][2], own[2].report);
        EXPECT_TRUE(same_bits(buffers[r], buffers[0]));
      }
    }
  }
}

/// 24 slots of 3 lanes: more than the 64 of a granule. And 70 ranks, which take turns.
TEST(ReportsOfManyRanks, ReportsOf24And70RanksAllArrive) {
  for (const auto& [c, world] :
       {std::pair{Case{"thc:block=256,bits=2", StrategyKind::server_sum}, 24U},
        {Case{"fp16", StrategyKind::native_sum, kAllSums, {1, 2}}, 70U}}) {
    Exchanges ranks(c, world, true);
    for (uint64_t step = 0; step < (kSanitized ? 2 : 3); ++step) {
      auto buffers = gradients(world, ranks.elements(), step);
      std::vector<OwnReport> own;
      for (uint32_t r = 0; r < world; ++r) own.push_back({report_of(r, step), 5, step});
      const auto heard = ranks.step(buffers, step, &own);
      const uint32_t first = ranks.first();
      EXPECT_EQ(first, world > 64 && step == 1 ? 64U : 0U);
      for (uint32_t r = 0; r < world; ++r) {
        EXPECT_EQ(heard[r].size(), first == 64 ? world - 64 : std::min(world, 64U));
        for (uint32_t i = 0; i < heard[r].size(); ++i)
          ASSERT_EQ(heard[r][i], own[first + i].report) << "of rank " << first + i;
      }
    }
  }
}

/// All ranks report, or none does: lanes of some alone would not add up.
TEST(ReportsOfSomeRanks, PartialReportsAreRefused) {
  Options o;
  o.world = 2;
  o.strategy = StrategyKind::native_sum;
  o.caps.sums = kAllSums;
  LoopbackHub hub(2, std::chrono::seconds(60));
  const Layout layout = back_to_back(kModel, {0, 1, 2});
  on_all(2, [&](uint32_t r) {
    Options mine = o;
    mine.rank = r;
    mine.reports = r == 1;
    auto session = Session::create("fp16", kModel, mine);
    ASSERT_TRUE(session);
    std::vector<float> buffer(layout.elements, 1.0F);
    Bucket bucket;
    bucket.buffer = buffer.data();
    const auto result = session::drive(**session, bucket, layout, hub.engine(r));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, Errc::ranks_disagree) << result.error().message;
  });
}

}  // namespace
}  // namespace laconic::test

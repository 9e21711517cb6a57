// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The reference engine passes the table, and the table notices an engine that does not.
#include "engines/engine_table.h"

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "laconic/loopback.h"
#include "support/on_all.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

std::vector<TableOutcome> run_on_all(uint32_t world, const TableOptions& options,
                                     const std::function<Engine&(uint32_t)>& engine) {
  std::vector<TableOutcome> outcomes(world);
  on_all(world, [&](uint32_t r) { outcomes[r] = run_engine_table(engine(r), options); });
  return outcomes;
}

class EngineTable : public testing::TestWithParam<std::tuple<uint32_t, bool>> {};

TEST_P(EngineTable, LoopbackPassesTable) {
  const auto [world, short_sends] = GetParam();
  LoopbackHub hub(world, std::chrono::seconds(60), {kAllSums, short_sends});
  const TableOptions options{.stride = kOnlyDefaults ? 15U : kOneWorld ? 3U : 1U};
  for (const TableOutcome& outcome :
       run_on_all(world, options, [&](uint32_t r) -> Engine& { return hub.engine(r); })) {
    EXPECT_TRUE(outcome.passed()) << outcome.failures << " of " << outcome.cases << " cases; "
                                  << outcome.first_failure;
    EXPECT_GT(outcome.cases, kOneWorld ? 50U : 120U);
  }
}

const std::vector<uint32_t> kWorlds =
    kOneWorld ? std::vector<uint32_t>{3} : std::vector<uint32_t>{1, 2, 3, 4, 5};
INSTANTIATE_TEST_SUITE_P(All, EngineTable,
                         testing::Combine(testing::ValuesIn(kWorlds), testing::Bool()));

/// An engine over another, with one fault.
class Faulty final : public Engine {
 public:
  enum class Fault { none, flipped_byte, last_place, sums_not_alike };
  Faulty(Engine& engine, Fault fault) : engine_(engine), fault_(fault) {}
  ~Faulty() override { stop(); }
  [[nodiscard]] uint32_t rank() const noexcept override { return engine_.rank(); }
  [[nodiscard]] uint32_t world() const noexcept override { return engine_.world(); }
  [[nodiscard]] EngineCaps caps() const noexcept override { return engine_.caps(); }
  Result<void> run(std::span<const Step> batch) override {
    if (auto done = engine_.run(batch); !done) return done;
    for (const Step& step : batch) spoil(step);
    return {};
  }

 private:
  void spoil(const Step& step) const {
    const bool sum =
        step.kind == StepKind::all_reduce && step.count > 5 && step.dtype != DType::i32;
    if (fault_ == Fault::flipped_byte && step.kind == StepKind::all_gather && rank() == 1 &&
        step.recv_counts[0] > 100)
      step.recv[step.recv_offsets[0] + 90] ^= 1;
    // Sums of engines may be off by one unit in the last place, the same on all ranks, or not.
    if ((fault_ == Fault::last_place || (fault_ == Fault::sums_not_alike && rank() == 0)) && sum)
      step.recv[0] ^= 1;
  }
  Engine& engine_;
  Fault fault_;
};

TableOutcome with(Faulty::Fault fault, bool rank_order_sums) {
  LoopbackHub hub(2);
  std::vector<std::unique_ptr<Faulty>> engines;
  for (uint32_t r = 0; r < 2; ++r)
    engines.push_back(std::make_unique<Faulty>(hub.engine(r), fault));
  const TableOptions options{.rank_order_sums = rank_order_sums, .stride = kSanitized ? 40U : 4U};
  const auto outcomes = run_on_all(2, options, [&](uint32_t r) -> Engine& { return *engines[r]; });
  return outcomes[1];
}

TEST(EngineTableItself, TableDetectsFaults) {
  if (kOnlyDefaults) GTEST_SKIP() << "of threads it says nothing";
  EXPECT_TRUE(with(Faulty::Fault::none, true).passed());
  EXPECT_FALSE(with(Faulty::Fault::flipped_byte, false).passed());
  EXPECT_FALSE(with(Faulty::Fault::last_place, true).passed());
  const auto own_sums = with(Faulty::Fault::last_place, false);
  EXPECT_TRUE(own_sums.passed()) << own_sums.first_failure;
  EXPECT_FALSE(with(Faulty::Fault::sums_not_alike, false).passed());
}

/// Sessions of a stride, beginning with the first; all bare steps.
TEST(EngineTableItself, TableTakesEveryNthSession) {
  if (kOnlyDefaults) GTEST_SKIP() << "of threads it says nothing";
  const auto with_stride = [](uint32_t stride) {
    LoopbackHub hub(1);
    return run_engine_table(hub.engine(0), {.stride = stride});
  };
  const TableOutcome all = with_stride(1), some = with_stride(7), one = with_stride(1'000'000);
  EXPECT_EQ(one.sessions, 1U);
  EXPECT_EQ(some.sessions, (all.sessions + 6) / 7);
  for (const TableOutcome& part : {some, one})
    EXPECT_EQ(part.cases - part.sessions, all.cases - all.sessions);
}

}  // namespace
}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The NCCL engine over a recording NCCL: which calls its steps become, and what they do.
#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "engines/engine_table.h"
#include "engines/nccl_group.h"
#include "support/subset.h"

namespace laconic::test {
namespace {

/// The calls of rank 1 of three for a batch of all ranks, after one that has allocated the memory.
std::string calls_of(const std::function<void(NcclEngine&)>& run) {
  const Fake fake;
  Group group(fake, 3);
  EXPECT_TRUE(group.all());
  on_all(3, [&](uint32_t r) {
    std::vector<float> lanes(1000);
    const Step first = sum_of(lanes);
    EXPECT_TRUE(group[r].run({&first, 1}));
  });
  EXPECT_NE(fake.calls(1), "");
  on_all(3, [&](uint32_t r) { run(group[r]); });
  return fake.calls(1);
}
void run_one(NcclEngine& engine, const Step& step) { EXPECT_TRUE(engine.run({&step, 1})); }
/// A group of calls, after a copy of this number of bytes and before another.
std::string between_copies(uint64_t bytes, const std::string& calls) {
  return "cuMemcpyHtoDAsync " + std::to_string(bytes) + "\nncclGroupStart\n" + calls +
         "ncclGroupEnd\ncuMemcpyDtoHAsync " + std::to_string(bytes) + "\n";
}

// ---- steps as calls ----

TEST(NcclCallsOf, SumUsesExpectedCalls) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> lanes(100);
              run_one(engine, sum_of(lanes));
            }),
            between_copies(512, "ncclAllReduce 100 float32 in place\n"));
}

TEST(NcclCallsOf, GatherOfEqualLengthsUsesExpectedCalls) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3, [](uint32_t, uint32_t) { return 20; });
              run_one(engine, moves.all_gather());
            }),
            between_copies(256, "ncclAllGather 20\n"));
}

TEST(NcclCallsOf, RaggedGatherWithEmptyRankUsesExpectedCalls) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3, [](uint32_t from, uint32_t) { return 10 * from; });
              run_one(engine, moves.all_gather());
            }),
            between_copies(256,
                           "ncclSend 10 to 0\n"
                           "ncclSend 10 to 2\n"
                           "ncclRecv 20 from 2\n"));
}

TEST(NcclCallsOf, AllToAllUsesExpectedCalls) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              Moves moves(engine.rank(), 3,
                          [](uint32_t from, uint32_t to) { return 1 + 10 * from + to; });
              run_one(engine, moves.all_to_all());
            }),
            between_copies(512,
                           "ncclSend 11 to 0\n"
                           "ncclRecv 2 from 0\n"
                           "ncclSend 13 to 2\n"
                           "ncclRecv 22 from 2\n"));
}

TEST(NcclCallsOf, OneWayMessagesUseExpectedCalls) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {  // a ring
              Bytes out(300), in(300);
              const uint32_t next = (engine.rank() + 1) % 3, before = (engine.rank() + 2) % 3;
              const std::vector<Message> messages{{next, out.data(), 300, nullptr, 0},
                                                  {before, nullptr, 0, in.data(), 300}};
              run_one(engine, {.kind = StepKind::messages, .messages = messages});
            }),
            between_copies(512,
                           "ncclSend 300 to 2\n"
                           "ncclRecv 300 from 0\n"));
}

TEST(NcclCallsOf, BatchUsesOneGroupAndOneCopyEachWay) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> lanes(3);
              std::vector<uint16_t> halves(7);
              auto* const half = reinterpret_cast<uint8_t*>(halves.data());
              Moves gather(engine.rank(), 3, [](uint32_t, uint32_t) { return 20; });
              Moves all(engine.rank(), 3, [](uint32_t, uint32_t) { return 8; });
              const std::array<Step, 4> batch{
                  gather.all_gather(), sum_of(lanes), all.all_to_all(),
                  Step{.dtype = DType::bf16, .count = 7, .send = half, .recv = half}};
              EXPECT_TRUE(engine.run(batch));
            }),
            between_copies(1280,  // three things sent, two sums
                           "ncclAllGather 20\n"
                           "ncclAllReduce 3 float32 in place\n"
                           "ncclSend 8 to 0\n"
                           "ncclRecv 8 from 0\n"
                           "ncclSend 8 to 2\n"
                           "ncclRecv 8 from 2\n"
                           "ncclAllReduce 7 bfloat16 in place\n"));
}

TEST(NcclCallsOf, EmptyBatchMakesNoCall) {
  EXPECT_EQ(calls_of([](NcclEngine& engine) {
              std::vector<float> none;
              Moves empty(engine.rank(), 3, [](uint32_t, uint32_t) { return 0; });
              const std::array<Step, 4> batch{sum_of(none), empty.all_gather(), empty.all_to_all(),
                                              Step{.kind = StepKind::messages}};
              EXPECT_TRUE(engine.run(batch));
              EXPECT_TRUE(engine.run({}));
            }),
            "");
}

TEST(NcclCallsOf, EngineLifetimeUsesExpectedCalls) {
  const Fake fake;
  {
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    EXPECT_EQ(fake.calls(1), "ncclCommInitRankConfig 1 of 2 nonblocking\n");
    EXPECT_EQ(fake.calls(-1), "ncclGetUniqueId\n");
    for (const size_t lanes : {10U, 1U << 18U, (1U << 18U) + 1, 10U}) {
      on_all(2, [&](uint32_t r) {
        std::vector<float> x(lanes);
        const Step step = sum_of(x);
        EXPECT_TRUE(group[r].run({&step, 1}));
        EXPECT_TRUE(fake.no_context());
      });
    }
    const std::string calls = fake.calls(1);
    std::string memory;
    for (size_t at = 0; at < calls.size(); at = calls.find('\n', at) + 1) {
      const std::string line = calls.substr(at, calls.find('\n', at) - at);
      if (line.find("Alloc") != std::string::npos || line.find("Free") != std::string::npos)
        memory += line + "\n";
    }
    EXPECT_EQ(memory,
              "cuMemAlloc 1048576\ncuMemHostAlloc 1048576\n"
              "cuMemFree\ncuMemFreeHost\ncuMemAlloc 2097152\ncuMemHostAlloc 2097152\n");
  }
  EXPECT_EQ(fake.calls(1), "ncclCommFinalize\nncclCommDestroy\ncuMemFree\ncuMemFreeHost\n");
  EXPECT_EQ(fake.alive(), 0U);
}

// ---- results ----

class NcclTable : public testing::TestWithParam<std::tuple<int, uint32_t>> {};

TEST_P(NcclTable, FakeLibraryPassesTable) {
  const auto [version, world] = GetParam();
  const Fake fake(version);
  {
    Group group(fake, world);
    ASSERT_TRUE(group.all()) << group.created(0).error().message;
    std::vector<TableOutcome> outcomes(world);
    const TableOptions options{.stride = kOnlyDefaults                   ? 25U
                                         : kOneWorld                     ? 5U
                                         : version == kOld || world != 3 ? 3U
                                                                         : 1U};
    on_all(world, [&](uint32_t r) { outcomes[r] = run_engine_table(group[r], options); });
    for (const TableOutcome& outcome : outcomes) {
      EXPECT_TRUE(outcome.passed())
          << outcome.failures << " of " << outcome.cases << " cases; " << outcome.first_failure;
      EXPECT_GT(outcome.cases, 30U);
    }
  }
  EXPECT_EQ(fake.alive(), 0U);
}
using Versioned = std::tuple<int, uint32_t>;
const std::vector<Versioned> kTables =
    kOnlyDefaults ? std::vector<Versioned>{{kNew, 3}}
                  : std::vector<Versioned>{{kNew, 1}, {kNew, 2}, {kNew, 3}, {kNew, 4}, {kOld, 3}};
INSTANTIATE_TEST_SUITE_P(All, NcclTable, testing::ValuesIn(kTables));

constexpr uint32_t kWithoutBfloat16 = kAllSums & ~(1U << static_cast<uint32_t>(DType::bf16));

TEST(NcclEngine, Bfloat16IsAddedSinceVersionTen) {
  for (const auto& [version, sums] : {std::pair(kOld, kWithoutBfloat16),
                                      {20999, kWithoutBfloat16},
                                      {21003, kAllSums},
                                      {kNew, kAllSums}}) {
    const Fake fake(version);
    Group group(fake, 2);
    ASSERT_TRUE(group.all()) << group.created(0).error().message;
    EXPECT_EQ(group[0].caps().sums, sums) << version;
    EXPECT_FALSE(group[0].caps().short_sends);
    on_all(2, [&, sums = sums](uint32_t r) {
      std::array<uint16_t, 3> lanes{};
      auto* const at = reinterpret_cast<uint8_t*>(lanes.data());
      const Step step{.dtype = DType::bf16, .count = 3, .send = at, .recv = at};
      const auto result = group[r].run({&step, 1});
      EXPECT_EQ(result.ok(), sums == kAllSums);
      EXPECT_EQ(result.error().code == Errc::unsupported, sums != kAllSums);
    });
  }
}

TEST(NcclEngine, ImpossibleStepsAreRefused) {
  uint8_t byte = 0;
  const std::vector<uint64_t> two(2, 1), one(1, 1), zeros(2, 0), more{2, 2};
  const std::vector<Message> to_itself{{0, &byte, 1, nullptr, 0}},
      to_nobody{{2, &byte, 1, nullptr, 0}};
  const std::vector<Step> wrong{
      {.kind = StepKind::all_gather,
       .send = &byte,
       .recv = &byte,
       .send_counts = one,
       .send_offsets = zeros,
       .recv_counts = two,
       .recv_offsets = zeros},
      {.kind = StepKind::all_to_all,
       .send = &byte,
       .recv = &byte,
       .send_counts = more,
       .send_offsets = zeros,
       .recv_counts = two,
       .recv_offsets = zeros},
      {.kind = StepKind::messages, .messages = to_itself},
      {.kind = StepKind::messages, .messages = to_nobody},
      {.kind = StepKind::messages, .short_sends = true},
  };
  for (const Step& step : wrong) {
    const Fake fake;
    Group group(fake, 2);
    ASSERT_TRUE(group.all());
    EXPECT_EQ(group[0].run({&step, 1}).error().code, Errc::exchange_order);
  }
}

}  // namespace
}  // namespace laconic::test

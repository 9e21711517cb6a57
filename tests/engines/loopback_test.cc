// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/loopback.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <thread>
#include <vector>

#include "support/on_all.h"

namespace laconic {
namespace {

using test::on_all;

TEST(Loopback, SumsInRankOrderOnEveryRank) {
  LoopbackHub hub(3);
  std::array<std::vector<float>, 3> x{{{1e8F, 1.0F}, {-1e8F, 2.0F}, {0.5F, 4.0F}}};
  on_all(3, [&](uint32_t r) {
    auto* at = reinterpret_cast<uint8_t*>(x[r].data());
    const Step step{.dtype = DType::f32, .count = 2, .send = at, .recv = at};
    ASSERT_TRUE(hub.engine(r).run({&step, 1}));
  });
  for (const auto& v : x)
    EXPECT_EQ(v, (std::vector<float>{0.5F, 7.0F}));  // (1e8 − 1e8) + 0.5, in this order
  EXPECT_EQ(hub.rounds(0), 1U);
}

TEST(Loopback, SumsOfHalvesRoundAfterEachAddition) {
  LoopbackHub hub(3);
  std::array<uint16_t, 3> x{float_to_bf16(256.0F), float_to_bf16(1.0F), float_to_bf16(1.0F)};
  on_all(3, [&](uint32_t r) {
    auto* at = reinterpret_cast<uint8_t*>(&x[r]);
    const Step step{.dtype = DType::bf16, .count = 1, .send = at, .recv = at};
    ASSERT_TRUE(hub.engine(r).run({&step, 1}));
  });
  EXPECT_EQ(bf16_to_float(x[0]), 256.0F);  // 256 + 1 rounds to even, twice
}

TEST(Loopback, RaggedAllToAllCountsItsBytes) {
  LoopbackHub hub(2);
  std::array<std::vector<uint8_t>, 2> send{{{1, 2, 3}, {4, 5, 6, 7}}};
  std::array<std::vector<uint8_t>, 2> recv{{std::vector<uint8_t>(3), std::vector<uint8_t>(4)}};
  const std::array<std::array<uint64_t, 2>, 2> counts{{{1, 2}, {2, 2}}};  // [from][to]
  on_all(2, [&](uint32_t r) {
    const std::array<uint64_t, 2> s{counts[r][0], counts[r][1]}, so{0, counts[r][0]};
    const std::array<uint64_t, 2> g{counts[0][r], counts[1][r]}, go{0, counts[0][r]};
    const Step step{.kind = StepKind::all_to_all,
                    .send = send[r].data(),
                    .recv = recv[r].data(),
                    .send_counts = s,
                    .send_offsets = so,
                    .recv_counts = g,
                    .recv_offsets = go};
    ASSERT_TRUE(hub.engine(r).run({&step, 1}));
  });
  EXPECT_EQ(recv[0], (std::vector<uint8_t>{1, 4, 5}));
  EXPECT_EQ(recv[1], (std::vector<uint8_t>{2, 3, 6, 7}));
  EXPECT_EQ(hub.sent_bytes(0), 2U);
}

TEST(Loopback, DifferentCollectivesAreErrorOnEveryRank) {
  LoopbackHub hub(2);
  std::atomic<int> errors{0};
  on_all(2, [&](uint32_t r) {
    std::vector<float> x(4);
    auto* at = reinterpret_cast<uint8_t*>(x.data());
    const Step step{.dtype = DType::f32, .count = r + 1, .send = at, .recv = at};
    const auto result = hub.engine(r).run({&step, 1});
    if (!result && result.error().code == Errc::exchange_order) ++errors;
  });
  EXPECT_EQ(errors, 2);
}

TEST(Loopback, LostPeerFailsAllRanks) {
  LoopbackHub hub(2);
  hub.break_off(1);
  float x = 1;
  auto* at = reinterpret_cast<uint8_t*>(&x);
  const Step step{.dtype = DType::f32, .count = 1, .send = at, .recv = at};
  const auto result = hub.engine(0).run({&step, 1});
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, Errc::peer_failed);
  EXPECT_EQ(result.error().message, "loopback: rank 1 is gone");
}

TEST(Loopback, GroupMayEndWhileRankWaits) {
  float x = 1;
  auto* at = reinterpret_cast<uint8_t*>(&x);
  const Step step{.dtype = DType::f32, .count = 1, .send = at, .recv = at};
  LoopbackHub hub(2, std::chrono::hours(1));
  ASSERT_TRUE(hub.engine(0).start({&step, 1}));
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
}

TEST(Loopback, AbsentRanksAreNamedToAllOthers) {
  LoopbackHub hub(3, std::chrono::milliseconds(20));
  for (const uint32_t r : {1U, 0U}) {  // in this order: the first may be late for the second
    float x = 1;
    auto* at = reinterpret_cast<uint8_t*>(&x);
    const Step step{.dtype = DType::f32, .count = 1, .send = at, .recv = at};
    const auto result = hub.engine(r).run({&step, 1});
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().message, "loopback: ranks 0 and 2 did not arrive within 20 ms");
  }
}

}  // namespace
}  // namespace laconic

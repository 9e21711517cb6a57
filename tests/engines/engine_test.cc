// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Duties of every engine: the loopback, one that only moves messages, and both with batches on
// their own thread.
#include "laconic/engine.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <semaphore>
#include <thread>
#include <vector>

#include "laconic/loopback.h"
#include "support/forked.h"
#include "support/lanes.h"
#include "support/letters.h"
#include "support/mailboxes.h"
#include "support/on_all.h"

namespace laconic {
namespace {

using Bytes = std::vector<uint8_t>;

using test::lane;
using test::letter;
using test::on_all;
using test::Ragged;

/// Both kinds of engine, and how a batch gets to them.
enum class Kind { loopback, messages, loopback_started, messages_started };

class Group {
 public:
  Group(Kind kind, uint32_t world, bool short_sends = false)
      : started_(kind == Kind::loopback_started || kind == Kind::messages_started) {
    if (kind == Kind::loopback || kind == Kind::loopback_started) {
      hub_ = std::make_unique<LoopbackHub>(world, std::chrono::seconds(100),
                                           EngineCaps{kAllSums, short_sends});
    } else {
      mailboxes_ = std::make_unique<test::Mailboxes>(world, short_sends);
    }
  }
  Engine& engine(uint32_t rank) { return hub_ ? hub_->engine(rank) : mailboxes_->engine(rank); }
  Result<void> run(uint32_t rank, std::span<const Step> batch) {
    if (!started_) return engine(rank).run(batch);
    auto ticket = engine(rank).start(batch);
    if (!ticket) return std::move(ticket).error();
    return engine(rank).wait(*ticket, std::chrono::steady_clock::now() + std::chrono::seconds(100));
  }

 private:
  bool started_;
  std::unique_ptr<LoopbackHub> hub_;
  std::unique_ptr<test::Mailboxes> mailboxes_;
};

class EngineLaw : public testing::TestWithParam<std::tuple<Kind, uint32_t>> {
 protected:
  [[nodiscard]] Group group(bool short_sends = false) const {
    return {std::get<0>(GetParam()), world(), short_sends};
  }
  [[nodiscard]] static uint32_t world() { return std::get<1>(GetParam()); }
};

TEST_P(EngineLaw, RaggedAllToAllReachesItsBuffers) {
  Group all = group();
  on_all(world(), [&](uint32_t me) {
    Ragged send, recv, expected;
    for (uint32_t r = 0; r < world(); ++r) {
      send.add(letter(me, r, 0));
      recv.add(letter(r, me, 0).size());
      expected.add(letter(r, me, 0));
    }
    const Step step{.kind = StepKind::all_to_all,
                    .send = send.memory.data(),
                    .recv = recv.memory.data(),
                    .send_counts = send.counts,
                    .send_offsets = send.offsets,
                    .recv_counts = recv.counts,
                    .recv_offsets = recv.offsets};
    ASSERT_TRUE(all.run(me, {&step, 1}));
    EXPECT_EQ(recv.memory, expected.memory) << me;  // what lies between is not touched
  });
}

TEST_P(EngineLaw, AllGatherHasBytesOfEveryRankOfAnyLength) {
  Group all = group();
  on_all(world(), [&](uint32_t me) {
    Bytes own = letter(me, 0, 1);
    Ragged recv, expected;
    for (uint32_t r = 0; r < world(); ++r) {
      recv.add(letter(r, 0, 1).size());
      expected.add(letter(r, 0, 1));
    }
    const std::vector<uint64_t> counts(world(), own.size()), zeros(world(), 0);
    const Step step{.kind = StepKind::all_gather,
                    .send = own.data(),
                    .recv = recv.memory.data(),
                    .send_counts = counts,
                    .send_offsets = zeros,
                    .recv_counts = recv.counts,
                    .recv_offsets = recv.offsets};
    ASSERT_TRUE(all.run(me, {&step, 1}));
    EXPECT_EQ(recv.memory, expected.memory) << me;
  });
}

TEST_P(EngineLaw, MessagesReachListedRanks) {
  Group all = group();
  on_all(world(), [&](uint32_t me) {
    // A ring: to the next rank only, which sends to its next; two ranks send each other.
    const uint32_t next = (me + 1) % world(), before = (me + world() - 1) % world();
    const Bytes out = letter(me, next, 2);
    Bytes in(letter(before, me, 2).size());
    std::vector<Message> messages;
    if (world() == 2) {
      messages = {{next, out.data(), out.size(), in.data(), in.size()}};
    } else if (world() > 2) {
      messages = {{next, out.data(), out.size(), nullptr, 0},
                  {before, nullptr, 0, in.data(), in.size()}};
    }
    const Step step{.kind = StepKind::messages, .messages = messages};
    ASSERT_TRUE(all.run(me, {&step, 1}));
    EXPECT_EQ(in, world() > 1 ? letter(before, me, 2) : Bytes(in.size()));
  });
}

TEST_P(EngineLaw, ShortMessageArrivesInLongBuffer) {
  Group all = group(true);
  ASSERT_TRUE(all.engine(0).caps().short_sends);
  on_all(world(), [&](uint32_t me) {
    std::vector<Bytes> out(world()), in(world(), Bytes(64, 0xEE));
    std::vector<Message> messages;
    for (uint32_t r = 0; r < world(); ++r) {
      out[r] = Bytes(1 + me + r, static_cast<uint8_t>(me));
      if (r != me)
        messages.push_back({r, out[r].data(), out[r].size(), in[r].data(), in[r].size()});
    }
    const Step step{.kind = StepKind::messages, .short_sends = true, .messages = messages};
    ASSERT_TRUE(all.run(me, {&step, 1}));
    for (uint32_t r = 0; r < world(); ++r) {
      if (r == me) continue;
      Bytes expected(64, 0xEE);
      std::fill_n(expected.begin(), 1 + me + r, static_cast<uint8_t>(r));
      EXPECT_EQ(in[r], expected);
    }
  });
}

TEST_P(EngineLaw, SumsAreTakenInRankOrderInTheirType) {
  for (const DType type : {DType::f32, DType::f16, DType::bf16}) {
    for (const uint64_t count : {0U, 1U, 2U, 7U, 1001U}) {
      Group all = group();
      on_all(world(), [&](uint32_t me) {
        const uint64_t size = dtype_size(type);
        Bytes lanes(count * size);
        for (uint64_t i = 0; i < count; ++i)
          test::store_lane(type, lanes.data() + i * size, lane(me, i));
        const Step step{.dtype = type, .count = count, .send = lanes.data(), .recv = lanes.data()};
        ASSERT_TRUE(all.run(me, {&step, 1}));
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(test::load_lane(type, lanes.data() + i * size),
                    test::sum_of_lanes(type, world(), i))
              << "lane " << i << " of type " << static_cast<int>(type);
        }
      });
    }
  }
}

TEST_P(EngineLaw, StepsOfABatchAndBatchesKeepTheirOrder) {
  Group all = group();
  on_all(world(), [&](uint32_t me) {
    for (uint32_t turn = 0; turn < 5; ++turn) {
      std::array<float, kMaxBatch> x{};
      std::vector<Step> batch;
      for (uint32_t i = 0; i < kMaxBatch; ++i) {
        x[i] = static_cast<float>(turn * kMaxBatch + i);
        auto* at = reinterpret_cast<uint8_t*>(&x[i]);
        batch.push_back({.dtype = DType::f32, .count = 1, .send = at, .recv = at});
      }
      ASSERT_TRUE(all.run(me, batch));
      for (uint32_t i = 0; i < kMaxBatch; ++i)
        EXPECT_EQ(x[i], static_cast<float>((turn * kMaxBatch + i) * world()));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(All, EngineLaw,
                         testing::Combine(testing::Values(Kind::loopback, Kind::messages,
                                                          Kind::loopback_started,
                                                          Kind::messages_started),
                                          testing::Values(1U, 2U, 3U, 5U)));

TEST(Loopback, MismatchedMessagesAreErrorOnEveryRank) {
  using List = std::vector<Message>;
  uint8_t byte = 0, room[2] = {};
  const std::array<std::array<List, 2>, 5> wrong{{
      {{{{1, &byte, 1, nullptr, 0}}, {}}},                          // no rank receives it
      {{{{1, nullptr, 0, room, 1}}, {}}},                           // no rank sends it
      {{{{1, &byte, 1, nullptr, 0}}, {{0, nullptr, 0, room, 2}}}},  // exact sizes
      {{{{1, &byte, 1, nullptr, 0}, {1, &byte, 1, nullptr, 0}},
        {{0, nullptr, 0, room, 1}}}},    // twice
      {{{{0, &byte, 1, room, 1}}, {}}},  // to itself
  }};
  for (const auto& lists : wrong) {
    LoopbackHub hub(2);
    on_all(2, [&](uint32_t r) {
      const Step step{.kind = StepKind::messages, .messages = lists[r]};
      const auto result = hub.engine(r).run({&step, 1});
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().code, Errc::exchange_order);
    });
  }
}

// ---- tickets ----

constexpr auto kSoon = std::chrono::milliseconds(30);
constexpr auto kLong = std::chrono::seconds(100);
Deadline in(std::chrono::milliseconds time) { return std::chrono::steady_clock::now() + time; }

/// Waits for permission before each batch; `fail_at` fails.
class Gated : public Engine {
 public:
  explicit Gated(int fail_at = -1) : fail_at_(fail_at) {}
  ~Gated() override {
    gate.release(100);
    stop();
  }
  [[nodiscard]] uint32_t rank() const noexcept override { return 0; }
  [[nodiscard]] uint32_t world() const noexcept override { return 1; }
  Result<void> run(std::span<const Step> batch) override {
    gate.acquire();
    order.push_back(batch[0].tag);
    if (++runs == fail_at_) return Error{Errc::engine_failed, "the cable is cut", {}};
    if (throws) throw 1;
    return {};
  }
  Result<Ticket> begin(uint32_t tag) {
    const Step step{.tag = tag};
    return start({&step, 1});
  }
  std::counting_semaphore<> gate{0};
  std::vector<uint32_t> order;
  std::atomic<int> runs{0};
  bool throws = false;

 private:
  int fail_at_;
};

TEST(Tickets, ForkedChildEndsWithoutEngineThread) {
  auto engine = std::make_unique<Gated>();
  const Ticket ticket = *engine->begin(1);
  engine->gate.release();
  ASSERT_TRUE(engine->wait(ticket, in(kLong)));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));  // it waits for the next batch
  EXPECT_TRUE(test::ends_in_a_child([&] { engine.reset(); }));
  const Ticket next = *engine->begin(2);
  engine->gate.release();
  EXPECT_TRUE(engine->wait(next, in(kLong)));
}

TEST(Tickets, BatchesRunInOrderOfStartForAnyOrderOfWaits) {
  Gated engine;
  std::array<Ticket, 3> tickets;
  for (uint32_t i = 0; i < 3; ++i) tickets[i] = *engine.begin(10 + i);
  EXPECT_EQ(engine.runs, 0);  // start does not wait
  engine.gate.release(3);
  for (const uint32_t i : {2U, 0U, 1U}) EXPECT_TRUE(engine.wait(tickets[i], in(kLong)));
  EXPECT_EQ(engine.order, (std::vector<uint32_t>{10, 11, 12}));
}

TEST(Tickets, EachTicketIsAwaitedOnce) {
  Gated engine;
  engine.gate.release(2);
  const Ticket first = *engine.begin(0), second = *engine.begin(1);
  EXPECT_TRUE(engine.wait(second, in(kLong)));
  EXPECT_FALSE(engine.wait(second, in(kLong)));
  EXPECT_TRUE(engine.wait(first, in(kLong)));
  for (const Ticket ticket : {first, second, Ticket{99}}) {
    const auto again = engine.wait(ticket, in(kLong));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().code, Errc::exchange_order);
  }
  EXPECT_EQ(Gated().wait({1}, in(kLong)).error().code, Errc::exchange_order);
}

TEST(Tickets, TicketsAreBoundedAndReused) {
  Gated engine;
  engine.gate.release(50);
  for (uint32_t turn = 0; turn < 2; ++turn) {
    std::vector<Ticket> tickets;
    for (uint32_t i = 0; i < kMaxTickets; ++i) tickets.push_back(*engine.begin(i));
    const auto refused = engine.begin(99);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Errc::exchange_order);
    for (const Ticket ticket : tickets) EXPECT_TRUE(engine.wait(ticket, in(kLong)));
  }
  EXPECT_EQ(engine.runs, 2 * static_cast<int>(kMaxTickets));
}

/// A driver with eight exchanges in flight waits for the last one's batch after many later ones.
TEST(Tickets, TicketIsAwaitedAfterAnyNumberOfOthers) {
  Gated engine;
  engine.gate.release(1000);
  const Ticket first = *engine.begin(0);
  for (uint32_t i = 1; i <= 3 * kMaxTickets; ++i) {
    const auto later = engine.begin(i);
    ASSERT_TRUE(later) << i << " " << later.error().message;
    EXPECT_TRUE(engine.wait(*later, in(kLong)));
    EXPECT_FALSE(engine.wait(*later, in(kLong)));
  }
  EXPECT_TRUE(engine.wait(first, in(kLong)));
}

TEST(Tickets, DeadlineEndsWaitAndNotBatch) {
  Gated engine;
  const Ticket ticket = *engine.begin(0);
  const auto late = engine.wait(ticket, in(kSoon));
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code, Errc::timed_out);
  EXPECT_EQ(engine.wait(ticket, in(std::chrono::milliseconds(0))).error().code, Errc::timed_out);
  engine.gate.release();
  EXPECT_TRUE(engine.wait(ticket, in(kLong)));
}

TEST(Tickets, BatchesAfterFailureFailWithoutRunning) {
  Gated engine(2);
  engine.gate.release(4);
  std::array<Ticket, 4> tickets;
  for (uint32_t i = 0; i < 4; ++i) tickets[i] = *engine.begin(i);
  EXPECT_TRUE(engine.wait(tickets[0], in(kLong)));
  for (const uint32_t i : {1U, 2U, 3U}) {
    const auto failed = engine.wait(tickets[i], in(kLong));
    ASSERT_FALSE(failed);
    EXPECT_EQ(failed.error().message, "the cable is cut");
  }
  EXPECT_EQ(engine.runs, 2);
}

TEST(Tickets, ThrowingEngineCountsAsFailed) {
  Gated engine;
  engine.throws = true;
  engine.gate.release();
  const auto failed = engine.wait(*engine.begin(0), in(kLong));
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code, Errc::engine_failed);
}

TEST(Tickets, EndingEngineFailsPendingBatches) {
  struct Ending final : Gated {
    void end() { gate.release(), stop(); }
  } engine;
  const Ticket first = *engine.begin(0), second = *engine.begin(1);
  engine.end();
  EXPECT_LE(engine.runs, 1);
  const auto later = engine.wait(second, in(kLong));
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().code, Errc::engine_failed);
  EXPECT_EQ(engine.wait(first, in(kLong)).ok(), engine.runs == 1);
}

TEST(Tickets, MemoryOfBatchLivesAsLongAsEngine) {
  std::weak_ptr<void> seen;
  {
    Gated engine;
    auto memory = std::make_shared<int>(7);
    seen = memory;
    engine.keep_until_end(std::move(memory));
    EXPECT_FALSE(seen.expired());
  }
  EXPECT_TRUE(seen.expired());
}

TEST(Tickets, BatchIsBounded) {
  Gated engine;
  const std::vector<Step> steps(kMaxBatch + 1);
  const auto refused = engine.start(steps);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
}

}  // namespace
}  // namespace laconic

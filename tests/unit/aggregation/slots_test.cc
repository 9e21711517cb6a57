// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The rules of the slot machine, one by one.
#include "aggregation/server/slots.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <span>
#include <vector>

namespace laconic::aggregation {
namespace {

constexpr Time kDeadline = 20000000;  // 20 ms

protocol::JobSettings settings(uint8_t world, uint8_t needed) {
  protocol::JobSettings s;
  s.world = world;
  s.needed = needed;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = 8;
  s.values = 4;
  s.lanes = 8;
  s.deadline_us = 20000;
  s.timeout_ms = 1000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  return s;
}

/// All codes of worker w are w + 1.
struct Machine {
  explicit Machine(const protocol::JobSettings& s) : slots(s), world(s.world) {
    const std::vector<Holding> fresh(s.world);
    EXPECT_EQ(slots.restore(fresh), -1);
  }
  Verdict add(uint32_t worker, uint64_t number, Time now = 0, uint8_t flags = 0) {
    const auto code = static_cast<uint8_t>(17 * (worker + 1));
    payload.assign((flags & protocol::kEmpty) != 0 ? 0 : 4, code);
    return slots.add(now, {worker, number, 7, static_cast<uint16_t>(worker), flags, payload});
  }
  void all(uint64_t number, Time now = 0) {
    for (uint32_t w = 0; w < world; ++w) add(w, number, now);
  }
  bool closed(uint64_t number) const {
    return slots.ring().slot(number).number == number &&
           slots.ring().slot(number).state == SlotState::closed;
  }
  uint32_t lane(uint64_t number) const { return slots.ring().sum(slots.ring().slot(number))[0]; }

  Slots slots;
  uint32_t world;
  std::vector<uint8_t> payload;
};

TEST(Slots, LastContributionClosesSum) {
  Machine m(settings(3, 3));
  EXPECT_EQ(m.add(0, 0), Verdict::added);
  EXPECT_EQ(m.add(2, 0), Verdict::added);
  EXPECT_TRUE(m.slots.newly_closed().empty());
  EXPECT_EQ(m.add(1, 0), Verdict::added);
  ASSERT_EQ(m.slots.newly_closed().size(), 1U);
  const Slot& slot = m.slots.ring().slot(0);
  EXPECT_EQ(m.slots.newly_closed()[0], 0U);
  EXPECT_EQ(slot.bitmap, 7U);
  EXPECT_EQ(slot.added, 3);
  EXPECT_EQ(slot.norm, 2);
  for (const uint8_t lane : m.slots.ring().sum(slot)) EXPECT_EQ(lane, 1 + 2 + 3);
}

TEST(Slots, DuplicateIsNotAdded) {
  Machine m(settings(2, 2));
  m.add(0, 0);
  EXPECT_EQ(m.add(0, 0), Verdict::duplicate);
  m.add(1, 0);
  EXPECT_EQ(m.lane(0), 3U);
}

TEST(Slots, ReusedSlotStartsAtZero) {
  Machine m(settings(2, 2));
  for (uint64_t number = 0; number < 24; ++number) {
    m.all(number);
    EXPECT_EQ(m.lane(number), 1U + 2U);
    for (uint32_t w = 0; w < 2; ++w) m.slots.acknowledge(w, number + 1);
    m.slots.forget_closed();
  }
}

TEST(Slots, ConsecutiveSumsAreContiguous) {
  Machine m(settings(2, 2));
  for (uint64_t number = 0; number < 3; ++number) m.all(number);
  const MutBytes first = m.slots.ring().datagram(m.slots.ring().slot(0));
  const MutBytes second = m.slots.ring().datagram(m.slots.ring().slot(1));
  EXPECT_EQ(first.size(), protocol::kDownHeaderBytes + 8);
  EXPECT_EQ(first.data() + protocol::kDownHeaderBytes,
            m.slots.ring().sum(m.slots.ring().slot(0)).data());
  // The longest sum is one of values: 16 bytes.
  EXPECT_EQ(second.data() - first.data(), static_cast<long>(protocol::kDownHeaderBytes + 16));
}

TEST(Slots, SumsMissingAtAWorkerAreKept) {
  Machine m(settings(2, 2));
  for (const uint64_t number : {0U, 1U, 3U}) m.all(number);
  m.add(0, 2);
  EXPECT_EQ(m.slots.ring().kept(), 3U);
  m.slots.acknowledge(0, 2);
  EXPECT_EQ(m.slots.ring().kept(), 3U);
  m.slots.acknowledge(1, 1);
  EXPECT_EQ(m.slots.ring().kept(), 2U);
}

TEST(Slots, ClosedSumNeverChanges) {
  Machine m(settings(3, 2));
  m.add(0, 0, 0);
  m.add(1, 0, 1);
  m.slots.tick(kDeadline);
  ASSERT_TRUE(m.closed(0));
  const Slot before = m.slots.ring().slot(0);
  EXPECT_EQ(m.add(2, 0, kDeadline + 1), Verdict::stored);
  EXPECT_EQ(m.add(0, 0, kDeadline + 1), Verdict::stored);
  EXPECT_EQ(m.slots.ring().slot(0).bitmap, before.bitmap);
  EXPECT_EQ(m.slots.ring().slot(0).norm, before.norm);
  EXPECT_EQ(m.slots.ring().slot(0).added, 2);
  EXPECT_EQ(m.lane(0), 3U);
}

TEST(Slots, EmptyContributionCountsOnlyInDivisor) {
  Machine m(settings(3, 3));
  m.add(0, 0);
  m.add(1, 0, 0, protocol::kEmpty);
  m.add(2, 0, 0, protocol::kEmpty | protocol::kTrouble);
  const Slot& slot = m.slots.ring().slot(0);
  EXPECT_TRUE(m.closed(0));
  EXPECT_EQ(slot.bitmap, 7U);
  EXPECT_EQ(slot.added, 1);
  EXPECT_EQ(slot.flags, protocol::kTrouble);
  EXPECT_EQ(m.lane(0), 1U);
}

TEST(Slots, SumOfNothingIsEmpty) {
  Machine m(settings(2, 2));
  m.add(0, 0, 0, protocol::kEmpty);
  m.add(1, 0, 0, protocol::kEmpty);
  EXPECT_EQ(m.slots.ring().slot(0).flags, protocol::kEmpty);
  EXPECT_TRUE(m.slots.ring().sum(m.slots.ring().slot(0)).empty());
}

TEST(Slots, SlotsAboveRingStayClosed) {
  Machine m(settings(2, 2));
  EXPECT_EQ(m.add(0, 7), Verdict::added);
  EXPECT_EQ(m.add(0, 8), Verdict::beyond);
  m.all(0);
  EXPECT_TRUE(m.slots.acknowledge(0, 1));
  EXPECT_EQ(m.add(0, 8), Verdict::beyond);  // worker 1 may still want sum 0
  EXPECT_TRUE(m.slots.acknowledge(1, 1));
  EXPECT_EQ(m.slots.ring().floor(), 1U);
  EXPECT_EQ(m.add(0, 8), Verdict::added);
}

TEST(Slots, ClosedSumIsKeptUntilAllHaveIt) {
  Machine m(settings(2, 2));
  for (uint64_t number = 0; number < 8; ++number) m.all(number);
  EXPECT_TRUE(m.slots.acknowledge(0, 8));
  for (uint64_t number = 0; number < 8; ++number) {
    EXPECT_EQ(m.slots.pull(1, number), Verdict::stored);
    EXPECT_EQ(m.slots.pull(0, number), Verdict::stale);
  }
  EXPECT_EQ(m.slots.pull(1, 8), Verdict::beyond);
}

TEST(Slots, AckAboveClosedSumsIsRefused) {
  Machine m(settings(2, 2));
  m.all(0);
  EXPECT_FALSE(m.slots.acknowledge(0, 2));
  EXPECT_EQ(m.slots.ring().ack(0), 0U);
  EXPECT_TRUE(m.slots.acknowledge(0, 1));
  EXPECT_TRUE(m.slots.acknowledge(0, 0));  // an old one is no contradiction
  EXPECT_EQ(m.slots.ring().ack(0), 1U);
}

TEST(Slots, QuorumWaitsForDeadline) {
  Machine m(settings(3, 2));
  m.add(0, 0, 100);
  m.add(1, 0, 200);
  EXPECT_EQ(m.slots.next_deadline(), 100 + kDeadline);
  m.slots.tick(100 + kDeadline - 1);
  EXPECT_FALSE(m.closed(0));
  m.slots.tick(100 + kDeadline);
  EXPECT_TRUE(m.closed(0));
  EXPECT_EQ(m.slots.ring().slot(0).bitmap, 3U);
}

TEST(Slots, QuorumClosesSumAfterDeadline) {
  Machine m(settings(3, 2));
  m.add(0, 0, 0);
  m.slots.tick(kDeadline);
  EXPECT_FALSE(m.closed(0));
  m.add(1, 0, kDeadline + 5);
  EXPECT_TRUE(m.closed(0));
}

TEST(Slots, QuorumOfOneHasNoDeadline) {
  Machine m(settings(3, 3));
  m.add(0, 0);
  m.add(1, 0);
  EXPECT_EQ(m.slots.next_deadline(), kNever);
  m.slots.tick(1000 * kDeadline);
  EXPECT_FALSE(m.closed(0));
}

TEST(Slots, DeadlineIsPaidOncePerExchange) {
  Machine m(settings(3, 2));
  m.add(0, 0, 0, protocol::kFirst);
  m.add(1, 0, 0);
  m.add(0, 1, 5);  // opened later, and lacks a worker that is in time
  m.add(0, 2, 5);
  m.add(1, 2, 5);
  m.slots.tick(kDeadline);
  EXPECT_TRUE(m.closed(0));
  EXPECT_TRUE(m.closed(2)) << "it lacks nobody but the late one";
  EXPECT_FALSE(m.closed(1));
  EXPECT_EQ(m.slots.late(), 4U);
  m.add(1, 1, kDeadline + 1);
  EXPECT_TRUE(m.closed(1)) << "not after another deadline";
}

TEST(Slots, LateWorkerIsAwaitedAgainOnceCaughtUp) {
  Machine m(settings(3, 2));
  m.add(0, 0, 0);
  m.add(1, 0, 0);
  m.slots.tick(kDeadline);
  ASSERT_EQ(m.slots.late(), 4U);
  m.slots.acknowledge(2, 1);
  EXPECT_EQ(m.slots.late(), 0U);
  m.add(0, 1, kDeadline + 1);
  m.add(1, 1, kDeadline + 1);
  EXPECT_FALSE(m.closed(1));
  m.add(2, 1, kDeadline + 2);
  EXPECT_EQ(m.slots.ring().slot(1).bitmap, 7U);
}

TEST(Slots, LateWorkerMayStillContribute) {
  Machine m(settings(3, 2));
  m.add(0, 0, 0);
  m.add(1, 0, 0);
  m.slots.tick(kDeadline);
  m.add(2, 1, kDeadline);
  m.add(0, 1, kDeadline);
  EXPECT_FALSE(m.closed(1));  // worker 1 is waited for
  m.add(1, 1, kDeadline);
  EXPECT_EQ(m.slots.ring().slot(1).bitmap, 7U);
}

TEST(Slots, LateWorkerIsAwaitedAgainAfterFourExchanges) {
  Machine m(settings(3, 2));
  Time now = 0;
  for (uint64_t exchange = 0; exchange < 4; ++exchange) {
    m.add(0, 2 * exchange, now, protocol::kFirst);
    m.add(1, 2 * exchange, now);
    if (exchange == 0) m.slots.tick(now += kDeadline);
    EXPECT_TRUE(m.closed(2 * exchange));
    EXPECT_EQ(m.slots.late(), exchange < 3 ? 4U : 0U);
    m.add(0, 2 * exchange + 1, now);
    m.add(1, 2 * exchange + 1, now);
    EXPECT_EQ(m.closed(2 * exchange + 1), exchange < 3);
  }
}

TEST(Slots, DifferentSettingsAreNotSummed) {
  Machine m(settings(2, 2));
  m.add(0, 0);
  const std::vector<uint8_t> codes(4), few(3);
  EXPECT_EQ(m.slots.add(0, {1, 0, 8, 0, 0, codes}), Verdict::differs);
  EXPECT_EQ(m.slots.add(0, {1, 0, 7, 0, 0, few}), Verdict::differs);
  EXPECT_EQ(m.slots.add(0, {1, 0, 7, 0, protocol::kValues, codes}), Verdict::differs);
  EXPECT_EQ(m.slots.ring().slot(0).bitmap, 1U);
}

TEST(Slots, ValuesAreAddedModulo32Bits) {
  Machine m(settings(2, 2));
  const std::vector<uint8_t> a{0xFF, 0xFF, 0xFF, 0xFF, 1, 0, 0, 0};
  const std::vector<uint8_t> b{2, 0, 0, 0, 0, 0, 0, 0x80};
  const std::vector<uint8_t> more(20), odd(6);
  EXPECT_EQ(m.slots.add(0, {0, 0, 7, 0, protocol::kValues, a}), Verdict::added);
  EXPECT_EQ(m.slots.add(0, {1, 0, 7, 0, protocol::kValues, odd}), Verdict::differs);
  EXPECT_EQ(m.slots.add(0, {1, 0, 7, 0, protocol::kValues, b}), Verdict::added);
  const Bytes sum = m.slots.ring().sum(m.slots.ring().slot(0));
  EXPECT_EQ(std::vector<uint8_t>(sum.begin(), sum.end()),
            (std::vector<uint8_t>{1, 0, 0, 0, 1, 0, 0, 0x80}));
  EXPECT_EQ(m.slots.add(0, {0, 1, 7, 0, protocol::kValues, more}), Verdict::differs) << "too many";
}

// ---- restart ----

struct Restart {
  explicit Restart(uint32_t world)
      : bits(world, std::vector<uint8_t>(1)), acks(world), kept(world) {}
  int into(Slots& slots) {
    std::vector<Holding> holdings;
    for (std::size_t w = 0; w < bits.size(); ++w) holdings.push_back({acks[w], kept[w], bits[w]});
    return slots.restore(holdings);
  }
  std::vector<std::vector<uint8_t>> bits;
  std::vector<uint64_t> acks, kept;
};

TEST(Slots, HeldSumIsFetchedAndNeverRecomputed) {
  Slots slots(settings(3, 2));
  Restart r(3);
  r.acks = {4, 2, 2};
  r.bits[2][0] = 0b1000;  // worker 2 has 5
  ASSERT_EQ(r.into(slots), -1);
  EXPECT_EQ(slots.ring().floor(), 2U);
  EXPECT_EQ(slots.fetching(), 3U);  // 2, 3 from worker 0; 5 from worker 2
  EXPECT_EQ(slots.ring().front(), 4U);
  const std::vector<uint8_t> codes(4, 0x11);
  EXPECT_EQ(slots.add(1, {1, 2, 7, 0, 0, codes}), Verdict::waiting);
  EXPECT_EQ(slots.add(1, {1, 4, 7, 0, 0, codes}), Verdict::added);
  EXPECT_EQ(slots.add(1, {1, 5, 7, 0, 0, codes}), Verdict::waiting);
  Fetch fetch;
  std::vector<std::pair<uint64_t, uint32_t>> asked;
  while (slots.next_fetch(10, 100, &fetch)) asked.emplace_back(fetch.number, fetch.worker);
  EXPECT_EQ(asked, (std::vector<std::pair<uint64_t, uint32_t>>{{2, 0}, {3, 0}, {5, 2}}));
  EXPECT_TRUE(slots.next_fetch(110, 100, &fetch)) << "asked again";

  protocol::DownHeader header;
  header.bitmap = 5;
  header.added = 2;
  header.settings = 7;
  const std::vector<uint8_t> sum(8, 0x42);
  EXPECT_FALSE(slots.take_held(1, 2, header, sum)) << "it does not hold it";
  EXPECT_FALSE(slots.take_held(0, 2, header, codes)) << "another length";
  EXPECT_TRUE(slots.take_held(0, 2, header, sum));
  EXPECT_FALSE(slots.take_held(0, 2, header, sum)) << "only once";
  ASSERT_EQ(slots.newly_closed().size(), 1U);
  EXPECT_EQ(slots.ring().slot(2).bitmap, 5U);
  EXPECT_EQ(slots.ring().sum(slots.ring().slot(2))[7], 0x42);
  EXPECT_EQ(slots.pull(1, 2), Verdict::stored);
}

TEST(Slots, WorkerWithoutItsResultsIsNamed) {
  Slots slots(settings(3, 3));
  Restart r(3);
  r.acks = {100, 0, 100};
  r.kept = {92, 0, 92};
  EXPECT_EQ(r.into(slots), 1);
  r.acks = {10, 10, 7};
  r.kept = {8, 9, 0};
  EXPECT_EQ(r.into(slots), 2) << "7 is with nobody";
}

TEST(Slots, HoldersAreAskedInTurn) {
  Slots slots(settings(3, 3));
  Restart r(3);
  r.acks = {1, 0, 1};
  ASSERT_EQ(r.into(slots), -1);
  std::vector<uint32_t> asked;
  Fetch fetch;
  for (Time now = 100; now < 500; now += 100) {
    ASSERT_TRUE(slots.next_fetch(now, 100, &fetch));
    asked.push_back(fetch.worker);
  }
  EXPECT_EQ(asked, (std::vector<uint32_t>{0, 2, 0, 2}));
}

// ---- payloads that stay ----

/// Settings whose sums of `world` workers fit into their lanes.
protocol::JobSettings small_sums(uint8_t world, uint8_t needed) {
  protocol::JobSettings s = settings(world, needed);
  s.table_size = 4;
  s.code_bits = 2;
  s.lanes = 16;
  return s;
}

TEST(Slots, UnsettledPayloadsJoinSumWhenItCloses) {
  Machine m(settings(3, 3));
  std::vector<std::vector<uint8_t>> payloads;
  for (const uint8_t code : std::to_array<uint8_t>({0x11, 0x22, 0x33}))
    payloads.emplace_back(4, code);
  const auto stays = [&](uint32_t worker, uint64_t number) {
    return m.slots.add(0, {worker, number, 7, 0, 0, payloads[worker], true});
  };
  for (uint32_t w = 0; w < 3; ++w) EXPECT_EQ(stays(w, 0), Verdict::added);
  EXPECT_FALSE(m.slots.owes());
  EXPECT_EQ(m.lane(0), 1U + 2U + 3U);
  EXPECT_EQ(stays(0, 1), Verdict::added);
  EXPECT_EQ(stays(1, 1), Verdict::added);
  EXPECT_EQ(stays(1, 1), Verdict::duplicate);
  EXPECT_TRUE(m.slots.owes());
  EXPECT_EQ(m.slots.ring().slot(1).added, 2);
  m.slots.settle();
  EXPECT_FALSE(m.slots.owes());
  for (auto& payload : payloads) std::fill(payload.begin(), payload.end(), 0xFF);
  EXPECT_EQ(m.add(2, 1), Verdict::added);
  EXPECT_EQ(m.lane(1), 1U + 2U + 3U);
  EXPECT_EQ(m.lane(0), 1U + 2U + 3U);
}

TEST(Slots, DeadlineClosesWithUnsettledPayloads) {
  Machine m(settings(3, 2));
  const std::vector<uint8_t> one(4, 0x11), two(4, 0x22);
  m.slots.add(0, {0, 0, 7, 0, 0, one, true});
  m.slots.add(1, {1, 0, 7, 0, 0, two, true});
  m.slots.tick(kDeadline);
  ASSERT_TRUE(m.closed(0));
  EXPECT_EQ(m.lane(0), 3U);
  EXPECT_FALSE(m.slots.owes());
}

/// The same contributions to two machines: payloads of one are gone after each call, those of the
/// other stay until it settles.
TEST(Slots, SettlingTimeChangesNoResult) {
  std::mt19937 random(17);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  for (int round = 0; round < 200; ++round) {
    const auto world = static_cast<uint8_t>(1 + below(20));
    const auto needed = static_cast<uint8_t>(1 + below(world));
    Machine now(small_sums(world, needed)), later(small_sums(world, needed));
    std::vector<std::vector<uint8_t>> staying;
    staying.reserve(400);
    Time time = 0;
    for (int step = 0; step < 400; ++step) {
      time += below(4) == 0 ? kDeadline / 4 : 1;
      const uint32_t w = below(world);
      const uint64_t number = now.slots.ring().floor() + below(10);
      const uint8_t kinds[] = {0, 0, 0, 0, protocol::kEmpty, protocol::kTrouble};
      const bool values = number % 4 == 3;
      const auto flags = static_cast<uint8_t>(kinds[below(6)] | (values ? protocol::kValues : 0));
      const bool empty = (flags & protocol::kEmpty) != 0;
      std::vector<uint8_t> payload(empty ? 0 : values ? 16 : 4);
      for (auto& byte : payload) byte = static_cast<uint8_t>(random());
      staying.push_back(payload);
      const Verdict verdict = now.slots.add(time, {w, number, 7, 3, flags, payload});
      const bool stays = below(8) != 0;
      ASSERT_EQ(later.slots.add(time, {w, number, 7, 3, flags, staying.back(), stays}), verdict);
      if (below(10) == 0) {
        later.slots.settle();
        for (auto& gone : staying) std::fill(gone.begin(), gone.end(), 0xEE);
      }
      if (below(6) == 0) {
        now.slots.tick(time);
        later.slots.tick(time);
      }
      ASSERT_TRUE(std::ranges::equal(now.slots.newly_closed(), later.slots.newly_closed()));
      for (const uint64_t closed : now.slots.newly_closed()) {
        const Slot &a = now.slots.ring().slot(closed), &b = later.slots.ring().slot(closed);
        ASSERT_TRUE(std::ranges::equal(now.slots.ring().sum(a), later.slots.ring().sum(b)))
            << closed;
        ASSERT_EQ(a.bitmap, b.bitmap);
        ASSERT_EQ(a.added, b.added);
        ASSERT_EQ(a.flags, b.flags);
      }
      now.slots.forget_closed();
      later.slots.forget_closed();
      const uint32_t reader = below(world);
      const bool taken = now.slots.acknowledge(reader, now.slots.ring().front());
      ASSERT_EQ(later.slots.acknowledge(reader, later.slots.ring().front()), taken);
    }
  }
}

// ---- the sum itself ----

/// Codes read from one string of bits.
uint32_t code_of(const std::vector<uint8_t>& codes, uint32_t bits, std::size_t i) {
  uint32_t code = 0;
  for (std::size_t b = i * bits; b < (i + 1) * bits; ++b) {
    code = 2 * code + (uint32_t{codes[b / 8]} >> (7 - b % 8) & 1U);
  }
  return code;
}

void check_sums(const protocol::JobSettings& s, Isa isa, std::mt19937& random) {
  const Adder adder(s, isa);
  std::vector<std::vector<uint8_t>> all;
  std::vector<uint8_t> lanes(s.lane_bytes(), 0xEE), codes(s.code_bytes());  // from a sum before
  std::vector<uint32_t> want(s.lanes);
  for (int worker = 0; worker < s.world; ++worker) {
    for (auto& byte : codes) byte = static_cast<uint8_t>(random());
    all.push_back(codes);
    if (worker == 0) adder.set_codes(codes.data(), lanes.data());
    if (worker != 0) adder.add_codes(codes.data(), lanes.data());
    for (std::size_t i = 0; i < s.lanes; ++i) {
      const uint32_t code = code_of(codes, s.code_bits, i);
      want[i] += s.table_size == 0 ? code : s.table[code];
    }
  }
  for (std::size_t i = 0; i < s.lanes; ++i) {
    const uint32_t got = s.lane_bits == 8 ? lanes[i] : load<uint16_t>(lanes.data() + 2 * i);
    ASSERT_EQ(got, want[i]) << s.code_bits << " bits, lane " << i << " of " << s.lanes;
  }
  // In one part, and in two.
  std::vector<const uint8_t*> places;
  for (const auto& one : all) places.push_back(one.data());
  for (std::size_t first = 1; first <= all.size(); ++first) {
    std::vector<uint8_t> together(s.lane_bytes(), 0xEE);
    adder.add_all(std::span(places).first(first), true, together.data());
    if (first < all.size()) adder.add_all(std::span(places).subspan(first), false, together.data());
    ASSERT_EQ(together, lanes) << s.code_bits << " bits, " << first << " first";
  }
}

TEST(Adder, AdderEqualsTableSumOnEveryIsa) {
  std::mt19937 random(5);
  for (const uint8_t bits : {uint8_t{2}, uint8_t{3}, uint8_t{4}, uint8_t{8}}) {
    for (const uint8_t lane_bits : {uint8_t{8}, uint8_t{16}}) {
      for (const uint32_t most : {85U, 20000U}) {  // 20,000 is no byte
        if ((lane_bits == 8) != (most == 85)) continue;
        for (const uint32_t lanes : {8U, 16U, 24U, 40U, 256U, 1000U, 1024U}) {
          protocol::JobSettings s = settings(lane_bits == 8 && bits == 8 ? 1 : 3, 1);
          s.code_bits = bits;
          s.lane_bits = lane_bits;
          s.lanes = lanes;
          s.table_size = bits == 8 ? uint8_t{0} : static_cast<uint8_t>(1U << bits);
          s.table = {};
          for (uint32_t i = 0; i < s.table_size; ++i) {
            s.table[i] = static_cast<uint16_t>(random() % (most + 1));
          }
          ASSERT_EQ(protocol::judge_settings(s), protocol::Reason::none);
          for (const Isa isa : available_isas()) check_sums(s, isa, random);
          if (lane_bits == 8) continue;
          for (auto& entry : s.table) entry = static_cast<uint16_t>(entry % 256);
          for (const Isa isa : available_isas()) check_sums(s, isa, random);
        }
      }
    }
  }
}

/// Three workers, by the default table of four bits.
TEST(Adder, AdderGivesKnownAnswer) {
  protocol::JobSettings s = settings(3, 3);
  s.table = {0, 3, 5, 7, 9, 11, 13, 14, 16, 17, 19, 21, 23, 25, 27, 30};
  // Values 7 23 0 30, 30 0 16 14, 16 14 30 30, and four zeros each.
  const uint8_t codes[3][4] = {{0x3C, 0x0F, 0, 0}, {0xF0, 0x87, 0, 0}, {0x87, 0xFF, 0, 0}};
  std::vector<uint8_t> lanes(8);
  const Adder adder(s);
  for (const auto& worker : codes) adder.add_codes(worker, lanes.data());
  EXPECT_EQ(lanes, (std::vector<uint8_t>{53, 37, 46, 74, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace laconic::aggregation

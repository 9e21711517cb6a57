// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which senders a server accepts, what it answers strangers, and that hostile datagrams change
// nothing.
#include "aggregation/server/server.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <span>
#include <string>
#include <vector>

#include "unit/aggregation/network.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

Plan plan_of(uint8_t world, uint8_t needed) {
  Plan plan;
  protocol::JobSettings& s = plan.job;
  s.world = world;
  s.needed = needed;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = 32;
  s.values = 16;
  s.lanes = 16;
  s.deadline_us = 2000;
  s.timeout_ms = 1000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  plan.seed = 3;
  plan.exchanges = 3;
  plan.granules = 24;
  for (std::size_t i = 0; i < plan.token.size(); ++i) plan.token[i] = static_cast<uint8_t>(3 * i);
  return plan;
}

/// All workers closed, with the same results from everybody.
void expect_whole(Network& network) {
  const Plan& plan = network.plan();
  const uint64_t all = ~uint64_t{0} >> (64U - plan.job.world);
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->end, WorkerEnd::closed) << worker->link().error().message;
    ASSERT_EQ(worker->got().size(), plan.exchanges * plan.granules);
    EXPECT_EQ(worker->got(), network.workers()[0]->got());
    for (uint64_t number = 0; number < worker->got().size(); ++number) {
      const Got& got = worker->got()[number];
      EXPECT_EQ(got.bitmap, all);
      if (!is_tally(number)) continue;
      for (uint32_t w = 0; w < plan.job.world; ++w) {
        EXPECT_EQ(load<uint32_t>(got.lanes.data() + 4 * w), 1U);
      }
    }
  }
}

uint8_t type_of(const std::vector<uint8_t>& bytes) { return bytes[2] & 15U; }

/// Keeps what the server sends.
struct Sent final : aggregation::Sender {
  void send(const aggregation::Address& to, Bytes header, Bytes payload, std::size_t) override {
    addresses.push_back(to);
    datagrams.emplace_back(header.begin(), header.end());
    datagrams.back().insert(datagrams.back().end(), payload.begin(), payload.end());
  }
  void flush() override {}
  std::vector<aggregation::Address> addresses;
  std::vector<std::vector<uint8_t>> datagrams;
};

std::vector<uint8_t> hello(uint64_t job, uint64_t instance, uint32_t attempt = 1) {
  std::vector<uint8_t> bytes(protocol::kHelloBytes);
  protocol::write_hello({job, instance, attempt, 0}, nullptr, bytes.data());
  return bytes;
}

aggregation::ServerSettings small_server(const Plan& plan) {
  aggregation::ServerSettings settings;
  settings.token = plan.token;
  settings.memory = 3 * aggregation::Job::memory(plan.job);
  settings.jobs = 100;
  return settings;
}

TEST(Network, NothingIsSentTwiceWithoutLoss) {
  Network network(plan_of(4, 4), {}, 1);
  ASSERT_TRUE(network.run(kSecond));
  expect_whole(network);
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().stats().resent_datagrams, 0U);
    EXPECT_EQ(worker->link().stats().duplicate_datagrams, 0U);
  }
  EXPECT_EQ(network.server().jobs()[0]->state(), aggregation::JobState::ended);
}

// A client of another system numbered the resends of its first window wrongly.
TEST(Network, LossOfFirstWindowIsRepaired) {
  for (const bool up : {true, false}) {
    Network network(plan_of(3, 3), {}, 2);
    int lost = 0;
    network.drop = [&](Time, uint32_t, uint32_t to, const std::vector<uint8_t>& bytes) {
      const bool mine = type_of(bytes) == (up ? 6 : 11) && (to == 0) == up;
      return mine && ++lost <= 24 * 3;
    };
    ASSERT_TRUE(network.run(10 * kSecond));
    EXPECT_GE(lost, 24 * 3);
    expect_whole(network);
  }
}

TEST(Network, ContributionRepeatedAfterClosingChangesNothing) {
  Network network(plan_of(3, 3), {}, 3);
  std::vector<std::pair<uint32_t, std::vector<uint8_t>>> recorded;
  network.drop = [&](Time, uint32_t from, uint32_t to, const std::vector<uint8_t>& bytes) {
    if (to == 0 && type_of(bytes) == 6) recorded.emplace_back(from, bytes);
    return false;
  };
  for (Time t = kMillisecond / 4; t < 3 * kMillisecond; t += kMillisecond / 8) {
    network.at(t, [&] {
      const auto all = recorded;
      for (const auto& [from, bytes] : all) network.inject(from, 0, bytes);
    });
  }
  ASSERT_TRUE(network.run(10 * kSecond));
  EXPECT_GT(
      network.server().jobs()[0]->stats().stored + network.server().jobs()[0]->stats().duplicates,
      20U);
  expect_whole(network);
}

TEST(Network, DatagramsOfEarlierEpochChangeNothing) {
  Plan plan = plan_of(3, 3);
  plan.exchanges = 6;
  Network network(plan, {}, 4);
  std::vector<std::tuple<uint32_t, uint32_t, std::vector<uint8_t>>> recorded;
  bool recording = true;
  network.drop = [&](Time, uint32_t from, uint32_t to, const std::vector<uint8_t>& bytes) {
    if (recording) recorded.emplace_back(from, to, bytes);
    return false;
  };
  network.at(kMillisecond / 2, [&] {
    network.stop_server();
    recording = false;
  });
  network.at(kMillisecond, [&] { network.start_server(); });
  for (Time t = kMillisecond; t < 40 * kMillisecond; t += kMillisecond) {
    network.at(t, [&] {
      for (const auto& [from, to, bytes] : recorded) network.inject(from, to, bytes);
    });
  }
  ASSERT_TRUE(network.run(10 * kSecond));
  ASSERT_GT(recorded.size(), 100U);
  expect_whole(network);
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().stats().aggregator_restarts, 1U);
  }
}

// Random, cut, extended and altered datagrams from strangers and under the workers' addresses.
TEST(Network, HostileDatagramsChangeNoSum) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    Plan plan = plan_of(3, 3);
    plan.job.full_tags = seed % 2 == 1;
    Network network(plan, {}, seed);
    Dice dice(seed + 99);
    std::vector<std::vector<uint8_t>> seen;
    network.drop = [&](Time, uint32_t, uint32_t, const std::vector<uint8_t>& bytes) {
      if (dice.one_in(3)) seen.push_back(bytes);
      return false;
    };
    for (Time t = 0; t < 2 * kMillisecond; t += 4 * kMicrosecond) {
      network.at(t, [&] {
        std::vector<uint8_t> bytes(dice.below(100));
        for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(dice.next());
        if (!seen.empty() && !dice.one_in(4)) {
          bytes = seen[dice.below(seen.size())];
          const uint64_t how = dice.below(4);
          // With header tags alone payloads are not protected: only headers are altered.
          const uint64_t size =
              plan.job.full_tags ? bytes.size() : std::min<uint64_t>(bytes.size(), 32);
          if (how == 0) bytes[dice.below(size)] ^= static_cast<uint8_t>(1U << dice.below(8));
          if (how == 1) bytes.resize(dice.below(bytes.size()));
          if (how == 2) bytes.push_back(0);
        }
        const auto from = static_cast<uint32_t>(dice.below(5));
        network.inject(from, static_cast<uint32_t>(dice.below(4)), bytes);
      });
    }
    ASSERT_TRUE(network.run(10 * kSecond));
    expect_whole(network);
    EXPECT_GT(network.server().stats().rejected[6] + network.server().stats().rejected[1], 10U);
  }
}

TEST(Network, WrongTokenIsRefusedAtAttach) {
  Plan plan = plan_of(1, 1);
  Network network(plan, {}, 5);
  Plan other = plan;
  other.token[31] ^= 1U;
  network.workers()[0] = std::make_unique<Worker>(other, 0, 77);
  network.workers()[0]->link().connect(0);
  ASSERT_TRUE(network.run(10 * kSecond));
  EXPECT_EQ(network.workers()[0]->link().error().code, Errc::ranks_disagree);
  EXPECT_EQ(network.workers()[0]->link().error().message,
            "aggregation server 10.0.0.9:7420: the token differs from the server's");
  EXPECT_EQ(network.server().memory_used(), 0U);
}

/// Nor any 8 bytes of it.
TEST(Network, TokenIsNeverSent) {
  Plan plan = plan_of(3, 3);
  for (uint8_t i = 0; i < plan.token.size(); ++i) plan.token[i] = static_cast<uint8_t>(37 * i + 11);
  Network network(plan, {}, 6);
  uint64_t seen = 0;
  network.drop = [&](Time, uint32_t, uint32_t, const std::vector<uint8_t>& bytes) {
    ++seen;
    for (size_t at = 0; at + 8 <= plan.token.size(); ++at) {
      const auto part = std::span(plan.token).subspan(at, 8);
      EXPECT_EQ(std::search(bytes.begin(), bytes.end(), part.begin(), part.end()), bytes.end());
    }
    return false;
  };
  network.at(kMillisecond, [&] { network.stop_server(); });  // and registers a second time
  network.at(2 * kMillisecond, [&] { network.start_server(); });
  ASSERT_TRUE(network.run(60 * kSecond));
  EXPECT_GT(seen, 50U);
}

TEST(Network, DifferentSettingsAreRefusedOnEveryRank) {
  const auto run = [](auto change) {
    const Plan plan = plan_of(3, 3);
    Network network(plan, {}, 6);
    Plan other = plan;
    change(other.job);
    network.workers()[2] = std::make_unique<Worker>(other, 2, 77);
    network.at(kMillisecond, [&] { network.workers()[2]->link().connect(kMillisecond); });
    EXPECT_TRUE(network.run(10 * kSecond));
    std::string text;
    for (const auto& worker : network.workers()) {
      EXPECT_EQ(worker->end, WorkerEnd::failed);
      EXPECT_EQ(worker->link().error().code, Errc::ranks_disagree);
      text = worker->link().error().message;
    }
    return text;
  };
  EXPECT_EQ(run([](auto& s) { s.world = 4; }),
            "aggregation server 10.0.0.9:7420: the workers of this job have different world sizes: "
            "expected 3, found 4");
  EXPECT_EQ(run([](auto& s) { s.needed = 2; }),
            "aggregation server 10.0.0.9:7420: the workers of this job have different quorums: "
            "expected 3, found 2");
  run([](auto& s) { s.spec = 1; });
  run([](auto& s) { s.lanes = 24; });
}

TEST(Network, TableTooLargeForTheWorldIsRefused) {
  Plan plan = plan_of(3, 3);
  plan.job.table[15] = 90;
  Network network(plan, {}, 7);
  ASSERT_TRUE(network.run(10 * kSecond));
  EXPECT_EQ(network.workers()[0]->link().error().message,
            "aggregation server 10.0.0.9:7420: the sum of this number of workers overflows its "
            "elements: at most 2 workers, found 3");
  EXPECT_EQ(network.server().memory_used(), 0U);
}

TEST(Network, ServerRequiringFullTagsInformsEveryRank) {
  Plan plan = plan_of(3, 3);
  plan.wants_full_tags = true;
  Network refused(plan, {}, 7);
  ASSERT_TRUE(refused.run(10 * kSecond));
  for (const auto& worker : refused.workers()) {
    EXPECT_EQ(worker->link().error().code, Errc::ranks_disagree);
    EXPECT_EQ(worker->link().error().message,
              "aggregation server 10.0.0.9:7420: the server requires tags over payloads, "
              "this job's tags cover headers only");
  }
  plan.job.full_tags = true;
  Network taken(plan, {}, 7);
  ASSERT_TRUE(taken.run(10 * kSecond));
  expect_whole(taken);
}

TEST(Network, MissingServerTimesOut) {
  Network network(plan_of(2, 2), {}, 8);
  network.stop_server();
  ASSERT_TRUE(network.run(10 * kSecond));
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().error().code, Errc::timed_out);
    EXPECT_EQ(worker->link().error().message,
              "aggregation server 10.0.0.9:7420: no answer within 1500 ms");
  }
  EXPECT_LT(network.now(), 2 * kSecond);
}

// ---- multicast ----

Plan multicast_plan(uint8_t world, uint8_t needed) {
  Plan plan = plan_of(world, needed);
  plan.multicast = true;
  return plan;
}

uint64_t results_sent(Network& network, const Plan& plan, uint64_t* to_group) {
  uint64_t results = 0;
  network.drop = [&](Time, uint32_t, uint32_t to, const std::vector<uint8_t>& bytes) {
    results += to != 0 && type_of(bytes) == 11;
    return false;
  };
  EXPECT_TRUE(network.run(10 * kSecond));
  expect_whole(network);
  *to_group = network.server().jobs()[0]->stats().together;
  EXPECT_LE(*to_group, plan.exchanges * plan.granules);
  return results;
}

TEST(Multicast, SumIsSentOnceForAllWithBytesOfUnicast) {
  Network one(plan_of(4, 4), {}, 21), other(multicast_plan(4, 4), {}, 21);
  uint64_t together = 0;
  results_sent(one, one.plan(), &together);
  EXPECT_EQ(together, 0U);
  EXPECT_EQ(one.to_group, 0U);
  const uint64_t sums = one.plan().exchanges * one.plan().granules;
  EXPECT_EQ(results_sent(other, other.plan(), &together), 4 * sums)
      << "what the network made of it";
  EXPECT_EQ(together, sums);
  EXPECT_GT(other.to_group, sums) << "tries, too";
  EXPECT_LE(other.to_group, sums + 4);
  for (uint32_t w = 0; w < 4; ++w) {
    EXPECT_EQ(one.workers()[w]->got(), other.workers()[w]->got());
    EXPECT_TRUE(other.workers()[w]->link().hears_group());
    EXPECT_EQ(other.workers()[w]->link().stats().multicast_datagrams, sums);
    EXPECT_EQ(other.workers()[w]->link().stats().resent_datagrams, 0U);
  }
}

TEST(Multicast, WorkerWithoutMulticastGetsEachSumAlone) {
  Network network(multicast_plan(4, 4), {}, 22);
  network.deaf = 4;
  uint64_t together = 0;
  results_sent(network, network.plan(), &together);
  const uint64_t sums = network.plan().exchanges * network.plan().granules;
  EXPECT_EQ(together, sums);
  auto& deaf = *network.workers()[2];
  EXPECT_FALSE(deaf.link().hears_group());
  EXPECT_EQ(deaf.link().stats().multicast_datagrams, 0U);
  EXPECT_EQ(deaf.link().stats().resent_datagrams, 0U) << "nothing had to be asked for";
}

TEST(Multicast, RegistrationDetectsMissingMulticast) {
  Network network(multicast_plan(3, 3), {}, 23);
  network.deaf = 7;
  uint64_t together = 0;
  results_sent(network, network.plan(), &together);
  EXPECT_EQ(together, 0U);
  EXPECT_LT(network.now(), kSecond) << "a trial is short";
}

TEST(Multicast, ServerWithoutGroupAnswersEachWorker) {
  Plan plan = multicast_plan(3, 3);
  Network network(plan, {}, 24);
  network.serve_group = false;
  network.start_server();
  uint64_t together = 0;
  results_sent(network, plan, &together);
  EXPECT_EQ(together, 0U);
  EXPECT_LT(network.now(), 100 * kMillisecond) << "nothing was tried";
}

// Its memberships may end at any time: a switch forgets them.
TEST(Multicast, WorkerThatLosesMulticastIsServedAlone) {
  Plan plan = multicast_plan(3, 3);
  plan.exchanges = 40;
  Network network(plan, {}, 25);
  network.at(5 * kMillisecond, [&] { network.deaf = 2; });
  uint64_t together = 0;
  results_sent(network, plan, &together);
  const Link& link = network.workers()[1]->link();
  EXPECT_GT(link.stats().multicast_datagrams, 0U);
  EXPECT_FALSE(link.hears_group());
  EXPECT_GT(link.stats().resent_datagrams, 0U);
  EXPECT_LT(link.stats().resent_datagrams, 4 * 32U) << "not all the time";
}

// An old status replayed from the server's address does not show that the group reaches this
// worker.
TEST(Multicast, ReplayedDatagramsDoNotDelayWorker) {
  Plan plan = multicast_plan(3, 3);
  plan.exchanges = 40;
  Network network(plan, {}, 32);
  std::vector<uint8_t> status;
  network.drop = [&](Time, uint32_t, uint32_t to, const std::vector<uint8_t>& bytes) {
    if (to == 2 && type_of(bytes) == 12 && status.empty()) status = bytes;
    return false;
  };
  network.at(5 * kMillisecond, [&] { network.deaf = 2; });
  for (Time t = 5 * kMillisecond; t < 500 * kMillisecond; t += 100 * kMicrosecond) {
    network.at(t, [&] { network.inject(0, 2, status, true); });
  }
  ASSERT_TRUE(network.run(10 * kSecond));
  expect_whole(network);
  ASSERT_FALSE(status.empty());
  EXPECT_FALSE(network.workers()[1]->link().hears_group());
  EXPECT_LT(network.workers()[1]->link().stats().resent_datagrams, 4 * 32U);
}

TEST(Multicast, GroupReceivedLaterIsUsedThen) {
  Plan plan = multicast_plan(3, 3);
  plan.exchanges = 16;
  Network network(plan, {}, 26);
  network.deaf = 1;
  network.compute = kSecond / 2;
  network.at(2 * kSecond, [&] { network.deaf = 0; });
  ASSERT_TRUE(network.run(60 * kSecond));
  expect_whole(network);
  EXPECT_TRUE(network.workers()[0]->link().hears_group());
  EXPECT_GT(network.workers()[0]->link().stats().multicast_datagrams, 0U);
}

TEST(Multicast, RestartKeepsMulticast) {
  Plan plan = multicast_plan(3, 3);
  plan.exchanges = 20;
  Network network(plan, {.loss_up = 0.01, .loss_down = 0.05}, 27);
  network.at(3 * kMillisecond, [&] { network.stop_server(); });
  network.at(5 * kMillisecond, [&] { network.start_server(); });
  ASSERT_TRUE(network.run(60 * kSecond));
  expect_whole(network);
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().stats().aggregator_restarts, 1U);
    EXPECT_TRUE(worker->link().hears_group());
  }
  EXPECT_GT(network.server().jobs()[0]->stats().together, 100U);
}

// Every member of the group receives every sum.
TEST(Multicast, SumsOfAnotherJobChangeNothing) {
  Plan plan = multicast_plan(3, 3), other_plan = plan;
  other_plan.seed = 77;
  other_plan.number = plan.number + (uint64_t{1} << 40);  // the same lower half, as headers have it
  Network other(other_plan, {}, 28), network(plan, {}, 28);
  std::vector<std::vector<uint8_t>> overheard;
  other.drop = [&](Time, uint32_t, uint32_t to, const std::vector<uint8_t>& bytes) {
    if (to == 1 && type_of(bytes) >= 10) overheard.push_back(bytes);
    return false;
  };
  ASSERT_TRUE(other.run(10 * kSecond));
  ASSERT_GT(overheard.size(), 72U);
  for (Time t = 0; t < 6 * kMillisecond; t += 200 * kMicrosecond) {
    network.at(t, [&] {
      for (const auto& bytes : overheard) network.inject(0, 1, bytes, true);
    });
  }
  ASSERT_TRUE(network.run(10 * kSecond));
  expect_whole(network);
  Network alone(plan, {}, 28);
  ASSERT_TRUE(alone.run(10 * kSecond));
  EXPECT_EQ(network.workers()[0]->got(), alone.workers()[0]->got());
  EXPECT_GE(network.workers()[0]->link().stats().rejected, overheard.size());
}

// The group carries sums and statuses: nothing else is accepted, even with a right tag, and nothing
// broken.
TEST(Multicast, ForeignDatagramsToGroupAreIgnored) {
  Plan plan = multicast_plan(3, 3);
  plan.exchanges = 6;
  Network network(plan, {}, 29);
  Dice dice(5);
  network.drop = [&](Time now, uint32_t from, uint32_t to, const std::vector<uint8_t>& bytes) {
    if (from != 0 || now == 0) return false;
    std::vector<uint8_t> broken = bytes;
    broken[dice.below(std::min<std::size_t>(broken.size(), 40))] ^=
        static_cast<uint8_t>(1U << dice.below(8));
    network.inject(0, to, broken, true);
    broken.resize(dice.below(broken.size()));
    network.inject(0, to, broken, true);
    if (type_of(bytes) < 10) network.inject(0, to, bytes, true);  // a welcome, say
    return false;
  };
  ASSERT_TRUE(network.run(10 * kSecond));
  expect_whole(network);
  EXPECT_GT(network.workers()[0]->link().stats().rejected, 2 * 6 * 24U);
}

TEST(Multicast, RepeatedTryIsAnsweredOncePerMillisecond) {
  Network network(multicast_plan(3, 3), {}, 31);
  std::vector<uint8_t> recorded;
  network.drop = [&](Time, uint32_t from, uint32_t, const std::vector<uint8_t>& bytes) {
    if (from == 1 && type_of(bytes) == 8 && (bytes[3] & protocol::kTry) != 0) recorded = bytes;
    return false;
  };
  uint64_t before = 0;
  network.at(2 * kMillisecond, [&] {
    before = network.to_group;
    for (int i = 0; i < 5000; ++i) network.inject(1, 0, recorded);
  });
  network.lag(0, 20 * kMillisecond);  // nothing else goes to the group
  network.at(10 * kMillisecond, [&] { EXPECT_EQ(network.to_group, before + 1); });
  ASSERT_TRUE(network.run(10 * kSecond));
  ASSERT_FALSE(recorded.empty());
  EXPECT_GT(before, 0U);
  expect_whole(network);
}

TEST(Multicast, FailureSentToGroupIsIgnored) {
  Plan plan = multicast_plan(2, 2);
  Network network(plan, {}, 30);
  ASSERT_TRUE(network.run(10 * kSecond));
  Link& link = network.workers()[0]->link();
  const aggregation::Job& job = *network.server().jobs()[0];
  protocol::DownHeader h;
  h.type = protocol::DatagramType::failed;
  h.job = job.id();
  h.granule = static_cast<uint32_t>(job.slots().ring().floor());
  h.epoch = static_cast<uint16_t>(job.epoch());
  h.added = 1;
  h.divisor = static_cast<uint8_t>(protocol::Reason::lost_worker);
  std::array<uint8_t, protocol::kDownHeaderBytes> header;
  protocol::write_down(h, job.key(), protocol::era_of(job.slots().ring().floor()), {},
                       header.data());
  const uint64_t rejected = link.stats().rejected;
  link.receive_from_group(network.now(), header);
  EXPECT_FALSE(link.failed());
  EXPECT_EQ(link.stats().rejected, rejected + 1);
}

void expect_lost(Network& network, std::initializer_list<uint32_t> told, const char* names) {
  for (const uint32_t w : told) {
    const Link& link = network.workers()[w]->link();
    EXPECT_EQ(link.error().code, Errc::peer_failed);
    EXPECT_EQ(link.error().message,
              std::string("aggregation server 10.0.0.9:7420: ") + names + " not respond");
  }
}

TEST(Network, LostWorkerIsNamedToAll) {
  for (const bool port : {false, true}) {
    Plan plan = plan_of(4, 3);
    plan.exchanges = 1000;
    Network network(plan, {}, 9);
    network.at(3 * kMillisecond, [&] { network.crash(2, port); });
    ASSERT_TRUE(network.run(20 * kSecond));
    EXPECT_LT(network.now(), port ? 10 * kMillisecond : 3 * kSecond);
    expect_lost(network, {0, 1, 3}, "rank 2: the worker does");
    for (const uint32_t w : {0U, 1U, 3U}) EXPECT_EQ(network.workers()[w]->link().blamed(), 2);
  }
}

// After a restart the server cannot tell which of the workers that did not come back was lost and
// which had ended: naming one of them may be wrong.
TEST(Network, WorkersMissingAfterRestartAreNamed) {
  Plan plan = plan_of(4, 3);
  plan.exchanges = 1000;
  Network network(plan, {}, 9);
  network.at(3 * kMillisecond, [&] {
    network.stop_server();
    network.crash(0, false);
    network.crash(3, false);
  });
  network.at(4 * kMillisecond, [&] { network.start_server(); });
  ASSERT_TRUE(network.run(20 * kSecond));
  expect_lost(network, {1, 2}, "ranks 0 and 3: the workers do");
}

TEST(Network, WorkersLostTogetherAreAllNamed) {
  Plan plan = plan_of(5, 3);
  plan.exchanges = 1000;
  Network network(plan, {}, 9);
  network.at(3 * kMillisecond, [&] {
    for (const uint32_t w : {1U, 2U, 4U}) network.crash(w, false);
  });
  ASSERT_TRUE(network.run(20 * kSecond));
  expect_lost(network, {0, 3}, "ranks 1, 2 and 4: the workers do");
}

TEST(Network, WorkerWithoutItsResultsIsNamedToAll) {
  Plan plan = plan_of(3, 3);
  plan.exchanges = 1000;
  Network network(plan, {}, 10);
  network.at(3 * kMillisecond, [&] {
    network.crash(1, false);
    network.rejoin(1);
  });
  ASSERT_TRUE(network.run(20 * kSecond));
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().blamed(), 1);
    EXPECT_EQ(worker->link().error().code, Errc::peer_failed);
  }
}

TEST(Network, WorkerLeavingTooEarlyIsNamed) {
  Plan plan = plan_of(3, 3), shorter = plan;
  shorter.exchanges = 1;
  Network network(plan, {}, 11);
  network.workers()[1] = std::make_unique<Worker>(shorter, 1, 5);
  network.workers()[1]->link().connect(0);
  network.at(1, [&] {});
  // It would begin what the others begin; here it closes after its first exchange.
  network.at(2 * kMillisecond, [&] { network.workers()[1]->begun = plan.exchanges; });
  network.lag(0, 10 * kMillisecond);
  network.lag(1, 5 * kMillisecond);
  network.lag(2, 10 * kMillisecond);
  ASSERT_TRUE(network.run(20 * kSecond));
  EXPECT_EQ(network.workers()[0]->link().blamed(), 1);
  EXPECT_EQ(
      network.workers()[0]->link().error().message,
      "aggregation server 10.0.0.9:7420: rank 1: the worker left while others were waiting for it");
}

TEST(Network, DifferentSumsOfOneRankAreRefusedOnAll) {
  Plan plan = plan_of(3, 3), other = plan;
  other.seed = 4;  // other settings hashes
  Network network(plan, {}, 12);
  network.workers()[1] = std::make_unique<Worker>(other, 1, 5);
  network.workers()[1]->link().connect(0);
  ASSERT_TRUE(network.run(20 * kSecond));
  for (const auto& worker : network.workers()) {
    EXPECT_EQ(worker->link().error().code, Errc::ranks_disagree);
  }
}

// Another server may have held its exchange up for longer than that.
TEST(Network, IdleWorkerHasFullTimeoutForRestart) {
  Plan plan = plan_of(2, 2);
  plan.exchanges = 2;
  Network network(plan, {}, 1);
  network.compute = 800 * kMillisecond;
  ASSERT_FALSE(network.run(400 * kMillisecond));  // one of two exchanges is done
  struct Nowhere final : aggregation::Sender {
    void send(const aggregation::Address&, Bytes, Bytes, std::size_t) override { ++sent; }
    void flush() override {}
    int sent = 0;
  } out;
  auto& link = network.workers()[0]->link();
  Time now = network.now() + 8 * kSecond;  // timeouts are of one
  link.keep(now);
  link.send(now, out);
  EXPECT_EQ(out.sent, 1);
  std::vector<uint8_t> stranger(protocol::kUpHeaderBytes);
  protocol::write_stranger(static_cast<uint32_t>(plan.number), stranger.data());
  now += 5 * kMillisecond;
  link.receive(now, stranger);
  link.keep(now);
  link.send(now, out);
  EXPECT_TRUE(link.waits());
  EXPECT_FALSE(link.failed()) << link.error().message;
  now += 1600 * kMillisecond;
  link.send(now, out);
  EXPECT_TRUE(link.failed());
}

/// Answers to 5,000 hellos in a second that no token vouches for.
std::size_t answers_to(uint64_t addresses) {
  aggregation::Server server({});
  Sent sent;
  for (uint64_t i = 0; i < 5000; ++i) {
    server.receive(kSecond + i * 200 * kMicrosecond, address_of(i % addresses), hello(1, 1), sent);
  }
  EXPECT_EQ(server.memory_used(), 0U);
  EXPECT_EQ(server.stats().unanswered + sent.datagrams.size(), 5000U);
  return sent.datagrams.size();
}

// A burst of this number of answers, and the same number during the second.
TEST(Server, StrangerGetsTenAnswersASecondAndAllGetAHundred) {
  EXPECT_LE(answers_to(1), 20U);
  EXPECT_GE(answers_to(1), 19U);
  EXPECT_LE(answers_to(500), 201U);
  EXPECT_GE(answers_to(500), 190U);
}

// After a restart, workers send whole windows of data before one of them says hello.
TEST(Server, DataOfUnknownJobLeavesAnswersToHellos) {
  aggregation::Server server({});
  Sent sent;
  std::vector<uint8_t> data(protocol::kUpHeaderBytes);
  protocol::write_up({}, {}, 0, {}, data.data());
  for (uint64_t i = 0; i < 1000; ++i) server.receive(kSecond, address_of(1 + i), data, sent);
  EXPECT_EQ(sent.datagrams.size(), 50U);
  server.receive(kSecond, address_of(0), hello(1, 2), sent);
  EXPECT_EQ(type_of(sent.datagrams.back()), 1) << "challenge";
}

/// Hellos of a worker that has the token.
std::vector<uint8_t> tagged_hello(const protocol::Token& token, uint32_t attempt) {
  const protocol::SipKey key = protocol::hello_key(token);
  std::vector<uint8_t> bytes(protocol::kHelloBytes);
  protocol::write_hello({1, 2, attempt, 0}, &key, bytes.data());
  return bytes;
}

/// 10,000 hellos from 10,000 addresses.
void flood(aggregation::Server& server, const std::vector<uint8_t>& bytes) {
  Sent sent;
  for (uint64_t i = 0; i < 10000; ++i) server.receive(kSecond, address_of(100 + i), bytes, sent);
  EXPECT_LE(sent.datagrams.size(), 100U);
}

TEST(Server, TokenOwnerIsAnsweredDuringFlood) {
  const Plan plan = plan_of(2, 2);
  protocol::Token other = plan.token;
  other[0] ^= 1;
  for (const auto& strangers : {hello(1, 2), tagged_hello(other, 1)}) {
    aggregation::Server server(small_server(plan));
    flood(server, strangers);
    Sent sent;
    for (uint32_t attempt = 1; attempt <= 1000; ++attempt) {
      server.receive(kSecond, address_of(1), tagged_hello(plan.token, attempt), sent);
    }
    ASSERT_EQ(sent.datagrams.size(), 1000U);
    protocol::Challenge challenge;
    ASSERT_EQ(protocol::parse_challenge(sent.datagrams.back(), &challenge),
              protocol::DatagramFault::none);
    EXPECT_EQ(challenge.to.attempt, 1000U);
    server.receive(kSecond, address_of(1), hello(1, 2), sent);
    EXPECT_EQ(sent.datagrams.size(), 1000U)
        << "a release that sends no tag has the strangers' share";
  }
}

// Anybody has the token that is none.
TEST(Server, FloodingStrangerBlocksNoOther) {
  aggregation::Server server({});
  Sent sent;
  const auto flooding = [&] {
    for (uint32_t i = 0; i < 10000; ++i) {
      server.receive(kSecond, address_of(1), tagged_hello({}, i), sent);
    }
  };
  flooding();
  EXPECT_EQ(sent.datagrams.size(), 10U);
  for (uint64_t worker = 0; worker < 8; ++worker) {
    sent.datagrams.clear();
    server.receive(kSecond, address_of(100 + worker), hello(1, 2), sent);
    EXPECT_EQ(sent.datagrams.size(), 1U) << worker;
    flooding();
  }
}

// A server of an earlier release drops hellos with a tag, a new one may have too many without.
TEST(Network, WorkersJoinByEitherHello) {
  for (const bool tagged : {false, true}) {
    Network network(plan_of(3, 3), {}, 41);
    int dropped = 0;
    network.drop = [&](Time, uint32_t, uint32_t to, const std::vector<uint8_t>& bytes) {
      const bool mine =
          to == 0 && type_of(bytes) == 0 && ((bytes[3] & protocol::kTagged) != 0) == tagged;
      dropped += mine ? 1 : 0;
      return mine;
    };
    ASSERT_TRUE(network.run(10 * kSecond));
    EXPECT_EQ(dropped > 0, tagged) << "the first one has a tag";
    expect_whole(network);
  }
}

TEST(Server, AnswerToStrangerIsNoLongerThanRequest) {
  Dice dice(1);
  aggregation::Server server({});
  Time now = kSecond;
  for (int i = 0; i < 3000; ++i) {
    std::vector<uint8_t> bytes(dice.below(200));
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(dice.next());
    if (bytes.size() > 3 && i % 3 != 0) {
      store(bytes.data(), protocol::kDatagramMagic);
      bytes[2] = static_cast<uint8_t>(dice.between(1, 2) << 4U | dice.below(16));
    }
    if (i % 7 == 0) bytes = hello(dice.next(), dice.next());
    Sent sent;
    server.receive(now += kSecond, address_of(dice.below(100)), bytes, sent);
    for (const auto& answer : sent.datagrams) EXPECT_LE(answer.size(), bytes.size());
  }
  EXPECT_EQ(server.memory_used(), 0U);
  EXPECT_GT(server.stats().rejected[1], 100U);
}

TEST(Server, OtherVersionIsReported) {
  aggregation::Server server({});
  auto bytes = hello(7, 8);
  bytes[2] = 0x20;
  Sent sent;
  server.receive(kSecond, address_of(1), bytes, sent);
  ASSERT_EQ(sent.datagrams.size(), 1U);
  protocol::Refusal refusal;
  ASSERT_EQ(protocol::parse_refusal(sent.datagrams[0], &refusal), protocol::DatagramFault::none);
  EXPECT_EQ(refusal.reason, protocol::Reason::version);
  EXPECT_EQ(refusal.expected, 1U);
  EXPECT_EQ(refusal.found, 2U);
}

/// Registers worker 0 of a job and returns the last answer.
std::vector<uint8_t> attach(aggregation::Server& server, const Plan& plan, uint64_t job, Time now,
                            bool right_nonce = true) {
  Sent sent;
  server.receive(now, address_of(job), hello(job, 5), sent);
  protocol::Challenge challenge;
  EXPECT_EQ(protocol::parse_challenge(sent.datagrams.back(), &challenge),
            protocol::DatagramFault::none);
  protocol::Enrolment e;
  e.from = {job, 5, 1, 0};
  e.epoch = challenge.epoch;
  e.nonce = challenge.nonce + (right_nonce ? 0 : 1);
  e.settings = plan.job;
  const std::vector<uint8_t> held(plan.job.ring / 8U);
  e.held = held;
  std::vector<uint8_t> bytes(protocol::kMaxEnrolmentBytes);
  const auto key = protocol::enrolment_key(plan.token, e.from, e.epoch, e.nonce);
  bytes.resize(protocol::write_enrolment(e, key, bytes.data()));
  server.receive(now, address_of(job), bytes, sent);
  return sent.datagrams.back();
}

TEST(Server, ExcessJobIsRefusedWithReason) {
  const Plan plan = plan_of(2, 2);
  aggregation::Server server(small_server(plan));
  for (uint64_t job = 1; job <= 3; ++job) {
    EXPECT_EQ(type_of(attach(server, plan, job, kSecond)), 3) << "welcome";
  }
  const auto answer = attach(server, plan, 4, kSecond);
  protocol::Refusal refusal;
  ASSERT_EQ(protocol::parse_refusal(answer, &refusal), protocol::DatagramFault::none);
  EXPECT_EQ(refusal.reason, protocol::Reason::memory);
  EXPECT_EQ(refusal.expected, 0U);
  EXPECT_EQ(refusal.found, aggregation::Job::memory(plan.job));
  EXPECT_EQ(server.jobs().size(), 3U);
}

TEST(Server, PayloadTagsAreRequiredIfConfigured) {
  Plan plan = plan_of(2, 2);
  aggregation::ServerSettings settings = small_server(plan);
  settings.full_tags = true;
  aggregation::Server server(settings);
  protocol::Refusal refusal;
  ASSERT_EQ(protocol::parse_refusal(attach(server, plan, 1, kSecond), &refusal),
            protocol::DatagramFault::none);
  EXPECT_EQ(refusal.reason, protocol::Reason::auth);
  EXPECT_EQ(server.memory_used(), 0U);
  plan.job.full_tags = true;
  EXPECT_EQ(type_of(attach(server, plan, 2, kSecond)), 3) << "welcome";
}

TEST(Server, NonceOfAnotherAddressIsRefused) {
  const Plan plan = plan_of(2, 2);
  aggregation::Server server(small_server(plan));
  EXPECT_EQ(type_of(attach(server, plan, 1, kSecond, false)), 5) << "stranger";
  EXPECT_EQ(server.memory_used(), 0U);
}

TEST(Server, ForgottenJobFreesItsMemory) {
  const Plan plan = plan_of(2, 2);
  aggregation::Server server(small_server(plan));
  attach(server, plan, 1, kSecond);
  EXPECT_GT(server.memory_used(), 0U);
  Sent sent;
  for (Time now = kSecond; now < 40 * kSecond; now = std::min(server.next_event(), 40 * kSecond)) {
    server.tick(now, sent);
  }
  EXPECT_EQ(server.memory_used(), 0U);
  EXPECT_TRUE(server.jobs().empty());
}

/// Reads what it was lent at flush(), as late as it may.
struct Late final : aggregation::Sender {
  void send(const aggregation::Address&, Bytes header, Bytes payload, std::size_t) override {
    unread.push_back({{header.begin(), header.end()}, payload});
    if (header.empty()) ++unread_sums;
  }
  void flush() override {
    for (const auto& [header, rest] : unread) {
      read.emplace_back(header);
      read.back().insert(read.back().end(), rest.begin(), rest.end());
    }
    unread.clear();
    unread_sums = 0;
  }
  std::vector<std::pair<std::vector<uint8_t>, Bytes>> unread;
  std::size_t unread_sums = 0;
  std::vector<std::vector<uint8_t>> read;
};

/// A worker without a link.
class Bare {
 public:
  Bare(aggregation::Server& server, const Plan& plan, uint64_t job, uint8_t worker)
      : server_(server), plan_(plan), me_{job, 100U + worker, 1, worker} {}
  [[nodiscard]] aggregation::Address address() const {
    return address_of(1000 * me_.job + me_.worker);
  }

  void say_hello(Time now) {
    std::vector<uint8_t> bytes(protocol::kHelloBytes);
    protocol::write_hello(me_, nullptr, bytes.data());
    Sent sent;
    server_.receive(now, address(), bytes, sent);
    ASSERT_EQ(protocol::parse_challenge(sent.datagrams.at(0), &challenge_),
              protocol::DatagramFault::none);
    key_ = protocol::job_key(plan_.token, me_.job, challenge_.epoch);
  }
  void enrol(Time now, aggregation::Sender& out, const aggregation::Address* from = nullptr) {
    protocol::Enrolment e;
    e.from = me_;
    e.epoch = challenge_.epoch;
    e.nonce = challenge_.nonce;
    e.settings = plan_.job;
    const std::vector<uint8_t> held(plan_.job.ring / 8U);
    e.held = held;
    std::vector<uint8_t> bytes(protocol::kMaxEnrolmentBytes);
    const auto key = protocol::enrolment_key(plan_.token, me_, e.epoch, e.nonce);
    bytes.resize(protocol::write_enrolment(e, key, bytes.data()));
    server_.receive(now, from != nullptr ? *from : address(), bytes, out);
  }
  void send_data(Time now, uint64_t number, aggregation::Sender& out, uint32_t settings = 7) {
    const std::vector<uint8_t> codes(plan_.job.code_bytes(), 0x11);
    protocol::UpHeader h;
    h.job = static_cast<uint32_t>(me_.job);
    h.granule = static_cast<uint32_t>(number);
    h.settings = settings;
    h.epoch = static_cast<uint16_t>(challenge_.epoch);
    h.ahead = static_cast<uint16_t>(number);
    h.worker = me_.worker;
    std::vector<uint8_t> bytes(protocol::kUpHeaderBytes);
    protocol::write_up(h, key_, protocol::era_of(number), codes, bytes.data());
    bytes.insert(bytes.end(), codes.begin(), codes.end());
    server_.receive(now, address(), bytes, out);
  }
  [[nodiscard]] const protocol::SipKey& key() const { return key_; }

 private:
  aggregation::Server& server_;
  Plan plan_;
  protocol::Applicant me_;
  protocol::Challenge challenge_;
  protocol::SipKey key_{};
};

/// All workers of a job, registered.
std::vector<Bare> registered(aggregation::Server& server, const Plan& plan, uint64_t job,
                             Time now) {
  std::vector<Bare> workers;
  Sent sent;
  for (uint8_t w = 0; w < plan.job.world; ++w) {
    workers.emplace_back(server, plan, job, w);
    workers.back().say_hello(now);
    workers.back().enrol(now, sent);
  }
  return workers;
}

/// Results with a right tag whose lanes are all `lane`.
std::size_t sums_of(const Late& out, const protocol::SipKey& key, uint8_t lane) {
  return static_cast<std::size_t>(std::ranges::count_if(out.read, [&](const auto& datagram) {
    const auto lanes = std::span(datagram).subspan(std::min<std::size_t>(40, datagram.size()));
    return type_of(datagram) == 11 && protocol::tag_is_right(datagram, 40, key, 0) &&
           std::ranges::all_of(lanes, [=](uint8_t b) { return b == lane; });
  }));
}

TEST(Server, SumsAreReadBeforeJobIsReplaced) {
  const Plan plan = plan_of(2, 2);
  aggregation::ServerSettings settings = small_server(plan);
  settings.jobs = 1;
  aggregation::Server server(settings);
  auto workers = registered(server, plan, 1, kSecond);
  Bare next(server, plan, 2, 0);
  next.say_hello(kSecond);
  Late out;
  uint32_t other_settings = 0;
  for (uint64_t number = 0; number < 4; ++number) {
    for (Bare& worker : workers) worker.send_data(kSecond, number, out);
  }
  for (Bare& worker : workers) worker.send_data(kSecond, 4, out, ++other_settings);
  ASSERT_EQ(server.jobs()[0]->state(), aggregation::JobState::failed);
  EXPECT_EQ(out.unread_sums, 8U);
  next.enrol(kSecond, out);
  EXPECT_EQ(server.jobs()[0]->number(), 2U);
  EXPECT_EQ(out.unread_sums, 0U) << "they point into what is gone";
  EXPECT_EQ(sums_of(out, workers[0].key(), 2), 8U);
  out.flush();
  EXPECT_EQ(type_of(out.read.back()), 3) << "welcome";
}

/// Bytes 2 and up of what a job says.
std::size_t sent_of_type(const Late& out, uint8_t type) {
  return static_cast<std::size_t>(
      std::ranges::count_if(out.read, [=](const auto& bytes) { return type_of(bytes) == type; }));
}

TEST(Server, PortClosedTwiceInARowIsLostWorker) {
  constexpr Time kProbe = 100 * kMillisecond;
  const Plan plan = plan_of(2, 2);
  struct Said {
    Time after;  // the first
    bool heard;  // between the two
    bool lost;
  };
  for (const Said said : {Said{0, false, true}, Said{kProbe, false, true},
                          Said{kProbe + 1, false, false}, Said{kProbe / 2, true, false}}) {
    aggregation::Server server(small_server(plan));
    auto workers = registered(server, plan, 1, kSecond);
    Late out;
    const Time now = 2 * kSecond;
    server.unreachable(now, workers[1].address(), out);
    out.flush();
    EXPECT_EQ(sent_of_type(out, 12), 1U) << "it is asked at once";
    EXPECT_EQ(server.jobs()[0]->state(), aggregation::JobState::running);
    if (said.heard) workers[1].send_data(now + said.after - 1, 0, out);
    server.unreachable(now + said.after, workers[1].address(), out);
    EXPECT_EQ(server.jobs()[0]->state() == aggregation::JobState::failed, said.lost) << said.after;
  }
}

// No worker waits for a result, and none sends anything.
TEST(Server, IdleJobIsForgottenAfterFourTimeouts) {
  const Plan plan = plan_of(2, 2);
  aggregation::Server server(small_server(plan));
  auto workers = registered(server, plan, 1, kSecond);
  Late out;
  for (uint64_t number = 0; number < 2; ++number) {
    for (Bare& worker : workers) worker.send_data(2 * kSecond, number, out);
  }
  const Time timeout = plan.job.timeout_ms * kMillisecond, last = 2 * kSecond + 4 * timeout;
  EXPECT_EQ(server.next_event(), last + 1);
  server.tick(last, out);
  ASSERT_EQ(server.jobs().size(), 1U);
  EXPECT_EQ(server.jobs()[0]->state(), aggregation::JobState::running);
  server.tick(last + 1, out);
  EXPECT_TRUE(server.jobs().empty());
  EXPECT_EQ(server.memory_used(), 0U);
}

// A server that stood still: what its deadline closes and the job's own end come in one tick.
TEST(Server, SumsAreReadBeforeJobIsForgotten) {
  const Plan plan = plan_of(3, 1);
  aggregation::Server server(small_server(plan));
  auto workers = registered(server, plan, 1, kSecond);
  Late out;
  for (uint64_t number = 0; number < 4; ++number) workers[0].send_data(kSecond, number, out);
  EXPECT_EQ(out.unread_sums, 0U);
  server.tick(100 * kSecond, out);
  EXPECT_TRUE(server.jobs().empty());
  EXPECT_EQ(out.unread_sums, 0U) << "they point into what is gone";
  EXPECT_EQ(sums_of(out, workers[0].key(), 1), 12U);
}

TEST(Server, EpochsAreNeverReused) {
  const Plan plan = plan_of(2, 2);
  aggregation::Server server(small_server(plan));
  attach(server, plan, 1, kSecond);
  attach(server, plan, 2, kSecond);
  EXPECT_NE(server.jobs()[0]->epoch(), server.jobs()[1]->epoch());
  EXPECT_NE(server.jobs()[0]->key().k0, server.jobs()[1]->key().k0);
}

}  // namespace
}  // namespace laconic::test

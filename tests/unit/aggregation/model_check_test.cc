// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Both machines against what an aggregation has to be, in 10,000 schedules with fixed seeds: the
// cross product of loss, direction, pattern, disturbance, stragglers, quorum and crash.
#include <gtest/gtest.h>

#include <array>
#include <bit>
#include <string>
#include <vector>

#include "support/sanitizer.h"
#include "unit/aggregation/network.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

#if defined(LACONIC_ASAN) || defined(LACONIC_TSAN)
constexpr uint64_t kSchedules = 400;
#else
constexpr uint64_t kSchedules = 10000;
#endif

enum class Crash : uint8_t { none, worker_port, worker_silent, worker_rejoins, restart, restarts };

struct Schedule {
  Plan plan;
  Weather weather;
  uint32_t stragglers = 0;
  uint64_t deaf = 0;      ///< workers that no multicast reaches
  uint64_t deafened = 0;  ///< the same from some time on
  uint64_t meetings = 0;
  Crash crash = Crash::none;
};

/// Mixed radix digits of the schedule's number; what is left is drawn.
Schedule schedule_of(uint64_t index) {
  Dice dice(index * 31 + 7);
  uint64_t digits = index;
  const auto digit = [&](uint64_t base) {
    const uint64_t value = digits % base;
    digits /= base;
    return value;
  };
  Schedule s;
  constexpr std::array<double, 5> kLoss{0, 0.0001, 0.001, 0.01, 0.05};
  const double loss = dice.one_in(16) ? 0.2 : kLoss[digit(5)];
  const uint64_t direction = digit(3);
  s.weather.loss_up = direction == 1 ? 0 : loss;
  s.weather.loss_down = direction == 0 ? 0 : loss;
  constexpr std::array<double, 4> kQuorum{1.0, 0.9, 0.8, 0.7};
  const double quorum = kQuorum[digit(4)];
  s.crash = static_cast<Crash>(digit(6));
  const uint64_t disturbance = digit(4);
  s.weather.duplicates = disturbance == 1 ? 0.01 : 0;
  if (disturbance == 2) s.weather.jitter = 400 * kMicrosecond;
  s.weather.spikes = disturbance == 3 ? 0.01 : 0;
  s.weather.bursts = digit(2) == 1 && loss < 0.1;  // otherwise one follows the other
  const uint32_t stragglers_of_ten = static_cast<uint32_t>(digit(4));

  protocol::JobSettings& job = s.plan.job;
  job.world = static_cast<uint8_t>(dice.one_in(20) ? 10 : dice.between(1, 5));
  job.needed = static_cast<uint8_t>(quorum * job.world + 0.999);
  s.stragglers = stragglers_of_ten * job.world / 10 + (dice.one_in(3) ? stragglers_of_ten / 2 : 0);
  constexpr std::array<uint8_t, 4> kBits{2, 3, 4, 8};
  job.code_bits = kBits[dice.below(4)];
  job.lane_bits = job.code_bits == 8 || dice.one_in(2) ? 16 : 8;
  job.table_size = job.code_bits == 8 ? uint8_t{0} : static_cast<uint8_t>(1U << job.code_bits);
  const uint32_t largest = ((1U << job.lane_bits) - 1) / job.world;
  for (uint32_t i = 0; i < job.table_size; ++i) {
    job.table[i] = static_cast<uint16_t>(dice.below(largest + 1));
  }
  job.lanes = 16;
  job.values = 16;
  job.ring = static_cast<uint16_t>(8 * dice.between(1, 4));
  job.deadline_us = 2000;
  job.timeout_ms = 1000;
  job.full_tags = dice.one_in(8);
  s.plan.pad = dice.one_in(8);
  s.plan.seed = index;
  s.plan.exchanges = static_cast<uint32_t>(dice.between(2, 6));
  s.plan.granules = static_cast<uint32_t>(dice.between(1, 30));
  Dice group(index * 37 + 5);
  s.plan.multicast = group.one_in(2);
  if (group.one_in(2)) s.deaf = group.next();
  if (group.one_in(3)) s.deafened = group.next();
  if (group.one_in(2)) s.meetings = group.next();
  return s;
}

void disturb(Network& network, const Schedule& s, Dice& dice) {
  for (uint32_t i = 0; i < s.stragglers; ++i) {
    network.lag(static_cast<uint32_t>(dice.below(s.plan.job.world)), 10 * kMillisecond);
  }
  network.lag_one_in = dice.one_in(2) ? 1 : 3;
  network.deaf = s.deaf;
  network.meetings = s.meetings;
  if (s.deafened != 0) {
    network.at((s.deafened >> 32U) % (20 * kMillisecond), [&] { network.deaf = s.deafened; });
  }
  const Time when = dice.below((dice.one_in(2) ? 2 : 20) * kMillisecond);
  const auto victim = static_cast<uint32_t>(dice.below(s.plan.job.world));
  const auto restart = [&network](Time at, Time down) {
    network.at(at, [&network] { network.stop_server(); });
    network.at(at + down, [&network] { network.start_server(); });
  };
  switch (s.crash) {
    case Crash::none:
      break;
    case Crash::worker_port:
      network.at(when, [&network, victim] { network.crash(victim, true); });
      break;
    case Crash::worker_silent:
      network.at(when, [&network, victim] { network.crash(victim, false); });
      break;
    case Crash::worker_rejoins:
      network.at(when, [&network, victim] { network.crash(victim, false); });
      network.at(when + 3 * kMillisecond, [&network, victim] { network.rejoin(victim); });
      break;
    case Crash::restart:
      restart(when, dice.below(3 * kMillisecond));
      break;
    case Crash::restarts:
      for (Time at = when, i = 0; i < 4; ++i) {
        const Time down = dice.below(2 * kMillisecond);
        restart(at, down);
        at += down + dice.below(6 * kMillisecond) + 1;
      }
  }
}

/// Codes are read bit by bit, as the format says.
uint32_t code_of(const std::vector<uint8_t>& payload, uint32_t bits, uint32_t index) {
  uint32_t code = 0;
  for (uint32_t b = 0; b < bits; ++b) {
    const uint32_t at = index * bits + b;
    code = 2 * code + (uint32_t{payload[at / 8]} >> (7 - at % 8) & 1U);
  }
  return code;
}

/// The sum of the contributors that a result names.
Got expected(const Plan& plan, uint64_t number, uint64_t bitmap) {
  Got got;
  got.bitmap = bitmap;
  std::vector<uint32_t> sums(is_tally(number) ? plan.job.values : plan.job.lanes);
  for (uint32_t w = 0; w < plan.job.world; ++w) {
    if ((bitmap >> w & 1U) == 0) continue;
    const Contents c = contents_of(plan, w, number);
    ++got.divisor;
    got.norm = std::max(got.norm, c.norm);
    got.flags |= c.flags & (protocol::kTrouble | protocol::kValues);
    if ((c.flags & protocol::kEmpty) != 0) continue;
    ++got.added;
    for (uint32_t i = 0; i < sums.size(); ++i) {
      if (is_tally(number)) {
        sums[i] += load<uint32_t>(c.payload.data() + 4 * i);
      } else {
        const uint32_t code = code_of(c.payload, plan.job.code_bits, i);
        sums[i] += plan.job.table_size == 0 ? code : plan.job.table[code];
      }
    }
  }
  if (got.added == 0) {
    got.flags |= protocol::kEmpty;
    return got;
  }
  const uint32_t bytes = is_tally(number) ? 4 : plan.job.lane_bits / 8U;
  for (const uint32_t sum : sums) {
    for (uint32_t b = 0; b < bytes; ++b) got.lanes.push_back(static_cast<uint8_t>(sum >> (8 * b)));
  }
  return got;
}

struct Report {
  std::vector<std::string> hangs, wrong_sums, counted_twice, different, untold, incomplete,
      failures;
  uint64_t by_group = 0, results = 0, partial = 0, restarts = 0, excluded = 0, datagrams = 0,
           resent = 0, kept = 0;
  std::size_t faults() const {
    return hangs.size() + wrong_sums.size() + counted_twice.size() + different.size() +
           untold.size() + incomplete.size() + failures.size();
  }
  uint64_t failed_workers = 0, closed_workers = 0, crashed = 0;
};

void check_schedule(uint64_t index, Report* report) {
  const Schedule s = schedule_of(index);
  Dice dice(index + 17);
  Network network(s.plan, s.weather, index);
  disturb(network, s, dice);
  const std::string name = "schedule " + std::to_string(index);
  if (!network.run(60 * kSecond)) report->hangs.push_back(name);
  report->datagrams += network.datagrams;
  report->kept += network.kept;
  const uint64_t all = ~uint64_t{0} >> (64U - s.plan.job.world);
  const Worker* longest = nullptr;
  for (uint32_t w = 0; w < network.workers().size(); ++w) {
    Worker& worker = *network.workers()[w];
    const auto stats = worker.link().stats();
    report->restarts += stats.aggregator_restarts;
    report->resent += stats.resent_datagrams;
    report->by_group += stats.multicast_datagrams;
    report->closed_workers += worker.end == WorkerEnd::closed;
    report->failed_workers += worker.end == WorkerEnd::failed;
    report->crashed += worker.end == WorkerEnd::crashed;
    const bool somebody_goes = s.crash == Crash::worker_port || s.crash == Crash::worker_silent ||
                               s.crash == Crash::worker_rejoins;
    if (worker.end == WorkerEnd::failed && !somebody_goes) {
      report->failures.push_back(name + ": " + worker.link().error().message);
    }
    uint64_t excluded = 0;
    for (uint64_t number = 0; number < worker.got().size(); ++number) {
      const Got& got = worker.got()[number];
      ++report->results;
      report->partial += got.bitmap != all;
      excluded += (got.bitmap >> w & 1U) == 0;
      if (got != expected(s.plan, number, got.bitmap)) {
        report->wrong_sums.push_back(name + ", granule " + std::to_string(number));
      }
      if (s.plan.job.needed == s.plan.job.world && got.bitmap != all) {
        report->incomplete.push_back(name + ", granule " + std::to_string(number));
      }
      if (static_cast<uint32_t>(std::popcount(got.bitmap)) < s.plan.job.needed) {
        report->incomplete.push_back(name + ", granule " + std::to_string(number));
      }
      if (is_tally(number)) {
        for (uint32_t v = 0; v < s.plan.job.world; ++v) {
          const auto times = load<uint32_t>(got.lanes.data() + 4 * v);
          if (times != (got.bitmap >> v & 1U)) {
            report->counted_twice.push_back(name + ", granule " + std::to_string(number));
          }
        }
      }
    }
    report->excluded += excluded;
    if (!worker.in_exchange && excluded != stats.excluded_granules) report->untold.push_back(name);
    if (longest == nullptr || worker.got().size() > longest->got().size()) longest = &worker;
  }
  for (const auto& worker : network.workers()) {
    if (!std::equal(worker->got().begin(), worker->got().end(), longest->got().begin())) {
      report->different.push_back(name);
    }
  }
}

/// All schedules are run once; each test looks at one law.
const Report& report() {
  static const Report once = [] {
    Report r;
    // Broken machines hang, which takes long: a few faults will do.
    for (uint64_t i = 0; i < kSchedules && r.faults() < 10; ++i) check_schedule(i, &r);
    return r;
  }();
  return once;
}

std::string first_of(const std::vector<std::string>& list) {
  return std::to_string(list.size()) + " times, first: " + (list.empty() ? "" : list.front());
}

TEST(ModelCheck, SumsAreExact) {
  EXPECT_TRUE(report().wrong_sums.empty()) << first_of(report().wrong_sums);
  EXPECT_GT(report().results, 50 * kSchedules);
}

TEST(ModelCheck, QuorumOfOneExcludesNoWorker) {
  EXPECT_TRUE(report().incomplete.empty()) << first_of(report().incomplete);
}

TEST(ModelCheck, EveryContributionCountsAtMostOnce) {
  EXPECT_TRUE(report().counted_twice.empty()) << first_of(report().counted_twice);
}

TEST(ModelCheck, AllWorkersGetTheSameBytes) {
  EXPECT_TRUE(report().different.empty()) << first_of(report().different);
}

TEST(ModelCheck, EveryRunEnds) { EXPECT_TRUE(report().hangs.empty()) << first_of(report().hangs); }

TEST(ModelCheck, WorkersFailOnlyIfOneLeaves) {
  EXPECT_TRUE(report().failures.empty()) << first_of(report().failures);
}

TEST(ModelCheck, ExcludedWorkersAreInformed) {
  EXPECT_TRUE(report().untold.empty()) << first_of(report().untold);
  EXPECT_GT(report().excluded, kSchedules / 100);
}

TEST(ModelCheck, SchedulesCoverEveryEvent) {
  EXPECT_GT(report().restarts, kSchedules / 4);
  EXPECT_GT(report().resent, kSchedules / 4);
  EXPECT_GT(report().kept, kSchedules / 20);
  EXPECT_GT(report().partial, kSchedules / 20);
  EXPECT_GT(report().by_group, 10 * kSchedules);
  EXPECT_GT(report().failed_workers, kSchedules / 20);
}

}  // namespace
}  // namespace laconic::test

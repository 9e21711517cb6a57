// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A job that floods the server, and its neighbour: the server itself, in virtual time.
#include "aggregation/server/turns.h"

#include <gtest/gtest.h>

#include <deque>
#include <memory>
#include <vector>

#include "unit/aggregation/network.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

constexpr uint32_t kWorkers = 4;
constexpr std::size_t kAtOnce = 256;      // datagrams that one read may take: four messages of 64
constexpr Time kDatagram = kMicrosecond;  // what the server needs for one

protocol::JobSettings settings_of(uint8_t world) {
  protocol::JobSettings s;
  s.world = s.needed = world;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = 256;
  s.values = 16;
  s.lanes = 16;
  s.timeout_ms = 60000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  return s;
}

Plan plan_of(uint8_t world, uint64_t number) {
  Plan plan;
  plan.job = settings_of(world);
  plan.seed = number;
  plan.number = number;
  plan.exchanges = 1000000;
  plan.granules = 200;
  return plan;
}

/// Datagrams that wait at one socket.
struct Inbox {
  aggregation::Address from;
  std::deque<std::vector<uint8_t>> datagrams;
  std::vector<uint8_t> flood;  ///< never ends
};
struct Group {
  std::vector<Inbox*> peers;
  aggregation::Turn turn;
};

/// A server with a job of four busy workers, and perhaps other jobs.
class Host final : public aggregation::Sender {
 public:
  Host() : server_({}), plan_(plan_of(kWorkers, 77)) {
    for (uint32_t w = 0; w < kWorkers; ++w) {
      inboxes_.push_back(std::make_unique<Inbox>(Inbox{address_of(w), {}, {}}));
      workers_.push_back(std::make_unique<Worker>(plan_, w, w + 1));
      workers_[w]->link().connect(0);
      groups_[0].peers.push_back(inboxes_[w].get());
    }
  }

  /// A group with one endless sender.
  void flood(std::vector<uint8_t> datagram) {
    inboxes_.push_back(std::make_unique<Inbox>(Inbox{address_of(900), {}, std::move(datagram)}));
    groups_.push_back({{inboxes_.back().get()}, {}});
  }

  /// A worker of another job: registers it, and returns its first contribution.
  std::vector<uint8_t> contribution_of_another_job() {
    other_ = std::make_unique<Worker>(other_plan_, 0, 5);
    other_->link().connect(0);
    Inbox inbox{address_of(900), {}, {}};
    for (;;) {
      if (other_->link().joined()) other_->begin(now_);
      send(*other_, inbox);
      if (other_->in_exchange) return inbox.datagrams.back();
      while (!inbox.datagrams.empty()) {
        server_.receive(now_, inbox.from, inbox.datagrams.front(), *this);
        inbox.datagrams.pop_front();
      }
      now_ += kMillisecond;
    }
  }

  /// Sums of the busy job until then.
  uint64_t run(Time until) {
    for (now_ += kMillisecond; now_ < until;) {
      for (uint32_t w = 0; w < kWorkers; ++w) drive(w);
      if (!aggregation::take_turns(groups_, [&](Inbox* inbox) { return read(*inbox); })) {
        now_ += 10 * kMicrosecond;
      }
    }
    return sums();
  }
  uint64_t sums() const {
    for (const auto& job : server_.jobs()) {
      if (job->number() == plan_.number) return job->stats().closed;
    }
    return 0;
  }
  const aggregation::Server& server() const { return server_; }

 private:
  void flush() override {}
  void send(const aggregation::Address& to, Bytes header, Bytes payload, std::size_t) override {
    ++answers_;
    for (uint32_t w = 0; w < kWorkers; ++w) {
      if (to == address_of(w)) deliver(*workers_[w], header, payload);
    }
    if (other_ != nullptr && to == address_of(900) && !other_->in_exchange) {
      deliver(*other_, header, payload);
    }
  }
  void deliver(Worker& worker, Bytes header, Bytes payload) {
    std::vector<uint8_t> bytes(header.begin(), header.end());
    bytes.insert(bytes.end(), payload.begin(), payload.end());
    worker.link().receive(now_, bytes);
  }
  void send(Worker& worker, Inbox& inbox) {
    struct Out final : aggregation::Sender {
      explicit Out(Inbox& to) : inbox(to) {}
      void send(const aggregation::Address&, Bytes header, Bytes payload, std::size_t) override {
        inbox.datagrams.emplace_back(header.begin(), header.end());
        inbox.datagrams.back().insert(inbox.datagrams.back().end(), payload.begin(), payload.end());
      }
      void flush() override {}
      Inbox& inbox;
    } out(inbox);
    worker.link().send(now_, out);
  }
  void drive(uint32_t w) {
    Worker& worker = *workers_[w];
    if (worker.in_exchange && worker.link().done()) worker.finish();
    if (worker.link().joined() && !worker.in_exchange) worker.begin(now_);
    send(worker, *inboxes_[w]);
  }
  uint64_t read(Inbox& inbox) {
    const uint64_t before = answers_;
    uint64_t taken = 0;
    for (; taken < kAtOnce; ++taken) {
      if (inbox.flood.empty() && inbox.datagrams.empty()) break;
      const auto one = inbox.flood.empty() ? inbox.datagrams.front() : inbox.flood;
      if (inbox.flood.empty()) inbox.datagrams.pop_front();
      server_.receive(now_, inbox.from, one, *this);
    }
    const uint64_t cost = taken + answers_ - before;
    now_ += cost * kDatagram;
    return cost;
  }

  aggregation::Server server_;
  Plan plan_, other_plan_ = plan_of(1, 78);
  std::vector<std::unique_ptr<Inbox>> inboxes_;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::unique_ptr<Worker> other_;
  std::vector<Group> groups_{1};
  Time now_ = 0;
  uint64_t answers_ = 0;
};

constexpr Time kRun = 200 * kMillisecond;

uint64_t sums_alone() {
  static const uint64_t sums = Host().run(kRun);
  return sums;
}

void expect_share(uint64_t sums) {
  EXPECT_GT(sums_alone(), 10000U);
  EXPECT_GE(sums * 10, sums_alone() * 4) << sums;
}

TEST(Fairness, JobIsServedDespiteRepeatedContributions) {
  Host host;
  host.flood(host.contribution_of_another_job());
  expect_share(host.run(kRun));
  const aggregation::JobStats& flooding = host.server().jobs()[0]->stats();
  EXPECT_GT(flooding.stored, 1000U) << "each was answered with the result";
}

TEST(Fairness, JobIsServedDespiteForgedDatagrams) {
  Host host;
  auto datagram = host.contribution_of_another_job();
  datagram[24] ^= 1U;
  host.flood(datagram);
  expect_share(host.run(kRun));
  EXPECT_GT(host.server().stats().rejected[static_cast<int>(protocol::DatagramFault::tag)], 1000U);
}

TEST(Fairness, JobIsServedDespiteRequestsOfStranger) {
  Host host;
  std::vector<uint8_t> hello(protocol::kHelloBytes);
  protocol::write_hello({1, 2, 3, 0}, nullptr, hello.data());
  host.flood(hello);
  expect_share(host.run(kRun));
  EXPECT_GT(host.server().stats().unanswered, 1000U);
}

/// The only job is read without waiting.
TEST(Turns, DebtDoesNotDelayJobAlone) {
  struct One {
    std::vector<int> peers;
    aggregation::Turn turn;
  };
  std::vector<One> jobs{{{7}, {}}};
  int reads = 0;
  for (int round = 0; round < 100; ++round) {
    EXPECT_TRUE(aggregation::take_turns(jobs, [&](int) {
      ++reads;
      return uint64_t{1000};
    }));
  }
  EXPECT_GE(reads, 50);
}

TEST(Turns, WorkersOfJobAreReadInTurn) {
  aggregation::Turn turn;
  std::vector<std::size_t> order;
  for (int round = 0; round < 6; ++round) {
    turn.take(3, [&](std::size_t i) {
      order.push_back(i);
      return uint64_t{aggregation::Turn::kQuantum};
    });
  }
  EXPECT_EQ(order, (std::vector<std::size_t>{1, 2, 0, 1, 2, 0}));
}

TEST(Turns, ExcessIsDeductedNextTime) {
  aggregation::Turn turn;
  const auto read = [](std::size_t) { return uint64_t{3 * aggregation::Turn::kQuantum}; };
  std::vector<uint64_t> spent;
  for (int round = 0; round < 7; ++round) spent.push_back(turn.take(1, read));
  const uint64_t much = 3 * aggregation::Turn::kQuantum;
  EXPECT_EQ(spent, (std::vector<uint64_t>{much, 0, 0, much, 0, 0, much}));
}

}  // namespace
}  // namespace laconic::test

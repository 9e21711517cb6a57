// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Both drivers over the loopback interface, with real threads.
#include <gtest/gtest.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/link/keeper.h"
#include "aggregation/link/udp_worker.h"
#include "support/forked.h"
#include "support/serving.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

using aggregation::UdpWorker;
using net::Io;
using Clock = UdpWorker::Clock;
using std::chrono::seconds;

constexpr auto kLong = seconds(100);  // nothing takes as long unless something is wrong

protocol::JobSettings job_of(uint8_t world) {
  protocol::JobSettings s;
  s.world = s.needed = world;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = 256;
  s.values = 256;
  s.lanes = 1024;
  s.deadline_us = 20000;
  s.timeout_ms = 60000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  return s;
}

aggregation::UdpSettings worker_settings(const std::vector<std::string>& servers, uint8_t rank,
                                         uint8_t world, uint64_t job, Io io,
                                         bool multicast = false) {
  aggregation::UdpSettings s;
  s.servers = servers;
  s.io = io;
  s.link.job = job_of(world);
  s.link.number = job;
  s.link.instance = 1000 * job + rank;
  s.link.worker = rank;
  s.link.multicast = multicast;
  return s;
}

/// `steps` exchanges of `granules`; rank w sends w + 1 in every lane.
void work(UdpWorker& worker, uint8_t rank, uint8_t world, int steps, std::size_t granules) {
  const std::vector<uint8_t> codes(512, static_cast<uint8_t>(17 * (rank + 1)));
  std::vector<uint8_t> sums(granules * 1024);
  for (int step = 0; step < steps; ++step) {
    std::vector<aggregation::Outgoing> out(granules, {codes, static_cast<uint32_t>(step), rank, 0});
    std::vector<aggregation::Incoming> in(granules);
    for (std::size_t i = 0; i < granules; ++i) in[i].lanes = MutBytes(sums).subspan(1024 * i, 1024);
    std::fill(sums.begin(), sums.end(), uint8_t{0});
    const auto done = worker.run(out, in, Clock::now() + kLong);
    ASSERT_TRUE(done) << done.error().message;
    const auto want = static_cast<uint8_t>(world * (world + 1) / 2);
    for (std::size_t i = 0; i < granules; ++i) {
      EXPECT_EQ(in[i].divisor, world);
      EXPECT_EQ(in[i].norm, world - 1);
    }
    EXPECT_EQ(std::count(sums.begin(), sums.end(), want), static_cast<long>(sums.size()));
  }
}

void run_job(const std::vector<std::string>& servers, uint8_t world, uint64_t job, Io io,
             int steps = 6, std::size_t granules = 400) {
  std::vector<std::thread> threads;
  for (uint8_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([=, &servers] {
      const auto settings = worker_settings(servers, rank, world, job, io);
      auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
      ASSERT_TRUE(worker) << worker.error().message;
      work(**worker, rank, world, steps, granules);
      (*worker)->close(Clock::now() + kLong);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class Udp : public testing::TestWithParam<Io> {
 protected:
  void SetUp() override {
    if (GetParam() == Io::gso && !net::has_gso()) GTEST_SKIP() << "no UDP GSO here";
  }
};
INSTANTIATE_TEST_SUITE_P(All, Udp, testing::Values(Io::gso, Io::mmsg),
                         [](const auto& which) { return which.param == Io::gso ? "gso" : "mmsg"; });

TEST_P(Udp, SumsOfFourWorkersAreExact) {
  Serving server(GetParam());
  run_job({server.address()}, 4, 7, GetParam());
}

TEST_P(Udp, TwoServersShareBlocks) {
  Serving a(GetParam()), b(GetParam(), "127.0.0.1:0", 2);
  run_job({a.address(), b.address()}, 3, 8, GetParam(), 5, 101);
}

/// Two workers that have joined, kept for `timeout` after their last call.
std::vector<std::unique_ptr<aggregation::Keeper>> kept_pair(const std::string& server, Io io,
                                                            Clock::duration timeout) {
  std::vector<std::unique_ptr<aggregation::Keeper>> pair(2);
  std::vector<std::thread> threads;
  for (uint8_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto worker =
          UdpWorker::attach(worker_settings({server}, rank, 2, 11, io), Clock::now() + kLong);
      ASSERT_TRUE(worker) << worker.error().message;
      pair[rank] = std::move(*aggregation::Keeper::create(*std::move(worker), timeout));
    });
  }
  for (std::thread& thread : threads) thread.join();
  return pair;
}

void work_of(const std::vector<std::unique_ptr<aggregation::Keeper>>& pair) {
  const auto work_as = [&](uint8_t rank) {
    pair[rank]->use([&](UdpWorker& w) {
      work(w, rank, 2, 2, 50);
      return true;
    });
  };
  std::thread other(work_as, 1);
  work_as(0);
  other.join();
}

// A rank that waits in its group for others whose server was started again.
TEST_P(Udp, IdleWorkersRegisterAgain) {
  auto server = std::make_unique<Serving>(GetParam());
  const std::string address = server->address();
  auto pair = kept_pair(address, GetParam(), kLong);
  server.reset();
  server = std::make_unique<Serving>(GetParam(), address, 2);
  const auto end = Clock::now() + kLong;
  for (auto& keeper : pair) {
    while (keeper->stats().aggregator_restarts == 0 && Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_EQ(keeper->stats().aggregator_restarts, 1U);
  }
  work_of(pair);
}

TEST_P(Udp, FinishedWorkersAreQuiet) {
  Serving server(GetParam());
  auto pair = kept_pair(server.address(), GetParam(), kLong);
  work_of(pair);
  uint64_t before = 0, now = pair[0]->stats().sent;
  for (const auto end = Clock::now() + kLong; now != before && Clock::now() < end;) {
    before = now;
    std::this_thread::sleep_for(seconds(1));
    now = pair[0]->stats().sent;
  }
  EXPECT_EQ(now, before);
}

TEST_P(Udp, LongSilentRankIsDropped) {
  auto server = std::make_unique<Serving>(GetParam());
  const std::string address = server->address();
  auto pair = kept_pair(address, GetParam(), Clock::duration(0));
  server.reset();
  server = std::make_unique<Serving>(GetParam(), address, 2);
  std::this_thread::sleep_for(seconds(1));
  EXPECT_EQ(pair[0]->stats().aggregator_restarts, 0U);
}

// It has no such thread, and the links are its parent's.
TEST_P(Udp, ForkedChildEndsAndLeavesLinks) {
  Serving server(GetParam());
  auto pair = kept_pair(server.address(), GetParam(), kLong);
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // the threads wait for their next look
  EXPECT_TRUE(ends_in_a_child([&] {
    for (auto& keeper : pair) (void)keeper->close(Clock::now() + std::chrono::milliseconds(100));
    pair.clear();
  }));
  work_of(pair);
}

TEST_P(Udp, TwoJobsRunAtOnce) {
  Serving server(GetParam());
  std::thread other([&] { run_job({server.address()}, 2, 9, GetParam()); });
  run_job({server.address()}, 3, 10, GetParam());
  other.join();
}

/// Multicast results of a job's ranks, and whether the group still reached them at its end.
struct Together {
  std::vector<uint64_t> got, servers;
};

/// `asks`: the ranks that want multicast, by bit.
Together run_multicast(const std::string& server, uint8_t world, uint64_t job, Io io, uint64_t asks,
                       const protocol::Token& token) {
  Together all{std::vector<uint64_t>(world), std::vector<uint64_t>(world)};
  std::vector<std::thread> threads;
  for (uint8_t rank = 0; rank < world; ++rank) {
    threads.emplace_back([&, rank] {
      auto settings = worker_settings({server}, rank, world, job, io, (asks >> rank & 1U) != 0);
      settings.link.token = token;
      auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
      ASSERT_TRUE(worker) << worker.error().message;
      work(**worker, rank, world, 6, 400);
      (*worker)->close(Clock::now() + kLong);
      const auto stats = (*worker)->stats();
      all.got[rank] = stats.multicast_datagrams;
      all.servers[rank] = stats.multicast_servers;
    });
  }
  for (std::thread& thread : threads) thread.join();
  return all;
}

/// A worker that requests multicast gets most sums by it, others get none. On a busy machine a
/// receive buffer overflows, and a rank that missed many in a row requests unicast, as it should:
/// one job of several has to show it.
void expect_multicast(const std::string& server, uint8_t world, uint64_t job, Io io, uint64_t asks,
                      const protocol::Token& token = {}) {
  constexpr uint64_t kJobs = 8, kNextJob = 1000;
  Together all;
  const auto shown = [&] {
    for (uint8_t rank = 0; rank < world; ++rank) {
      const bool wants = (asks >> rank & 1U) != 0;
      if (wants && (all.servers[rank] != 1 || all.got[rank] <= 6 * 400 / 2)) return false;
    }
    return true;
  };
  for (uint64_t i = 0; i < kJobs; ++i) {
    all = run_multicast(server, world, job + i * kNextJob, io, asks, token);
    for (uint8_t rank = 0; rank < world; ++rank) {
      if ((asks >> rank & 1U) != 0) continue;
      EXPECT_EQ(all.got[rank], 0U);
      EXPECT_EQ(all.servers[rank], 0U);
    }
    if (shown()) return;
  }
  for (uint8_t rank = 0; rank < world; ++rank) {
    ADD_FAILURE() << "rank " << int{rank} << " of " << int{world} << ": " << all.got[rank]
                  << " sums by multicast, hears " << all.servers[rank] << " groups";
  }
}

TEST_P(Udp, SumsAreMulticastOnceForAll) {
  Serving server(GetParam(), "127.0.0.1:0", 1, "239.7.4.2");
  expect_multicast(server.address(), 4, 21, GetParam(), 15);
}

// Loopback carries no multicast of IPv6: this test uses an interface of its own network.
TEST_P(Udp, SumsAreMulticastOverIpv6) {
  constexpr const char* kLink =
      "ip link add d0 type veth peer name d1 && ip link set lo up && ip link set d1 up && "
      "ip link set d0 up && ip -6 addr add fd00::1/64 dev d0 nodad";
  bool there = false;
  std::thread([&] {
    there = unshare(CLONE_NEWNET) == 0 && std::system(kLink) == 0;
    if (!there) return;
    protocol::Token token{};
    token[0] = 1;
    Serving server(GetParam(), "[fd00::1]:0", 1, "[ff12::742]:7427", token);
    expect_multicast(server.address(), 3, 22, GetParam(), 7, token);
  }).join();
  if (!there) GTEST_SKIP() << "no network namespaces here, or no IPv6";
}

TEST_P(Udp, MixedJobsShareOneMulticastGroup) {
  Serving server(GetParam(), "127.0.0.1:0", 1, "239.7.4.2:7428");
  std::thread other([&] { expect_multicast(server.address(), 2, 23, GetParam(), 3); });
  expect_multicast(server.address(), 3, 24, GetParam(), 5);
  other.join();
}

TEST_P(Udp, RestartedServerIsUsedAgain) {
  auto first = std::make_unique<Serving>(GetParam());
  const std::string address = first->address();
  std::vector<std::thread> threads;
  std::atomic<int> steps{0};
  std::atomic<bool> gone{false};
  std::atomic<uint64_t> restarts{0};
  for (uint8_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto settings = worker_settings({address}, rank, 2, 11, GetParam());
      auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
      ASSERT_TRUE(worker) << worker.error().message;
      for (int i = 0; i < 20; ++i) {
        while (i == 10 && !gone) std::this_thread::yield();
        work(**worker, rank, 2, 1, 300);
        ++steps;
      }
      (*worker)->close(Clock::now() + kLong);
      restarts += (*worker)->stats().aggregator_restarts;
    });
  }
  while (steps < 20) std::this_thread::yield();
  first.reset();
  gone = true;
  Serving second(GetParam(), address, 3);
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(steps, 40);
  EXPECT_EQ(restarts, 2U);
}

TEST_P(Udp, LostServerIsNamed) {
  Serving a(GetParam());
  auto b = std::make_unique<Serving>(GetParam(), "127.0.0.1:0", 2);
  const std::string lost = b->address();
  const auto settings = worker_settings({lost, a.address()}, 0, 1, 14, GetParam());
  auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
  ASSERT_TRUE(worker) << worker.error().message;
  work(**worker, 0, 1, 1, 20);
  b.reset();
  const std::vector<uint8_t> codes(512);
  std::vector<uint8_t> sums(2 * 1024);
  std::vector<aggregation::Outgoing> out(2, {codes, 0, 0, 0});
  std::vector<aggregation::Incoming> in(2);
  for (std::size_t i = 0; i < 2; ++i) in[i].lanes = MutBytes(sums).subspan(1024 * i, 1024);
  const auto done = (*worker)->run(out, in, Clock::now() + std::chrono::milliseconds(200));
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::timed_out);
  EXPECT_NE(done.error().message.find(lost), std::string::npos) << done.error().message;
}

TEST_P(Udp, ClosedPortIsLostWorker) {
  Serving server(GetParam());
  std::thread goes([&] {
    const auto settings = worker_settings({server.address()}, 1, 2, 12, GetParam());
    auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
    ASSERT_TRUE(worker);
    work(**worker, 1, 2, 2, 50);
  });
  const auto settings = worker_settings({server.address()}, 0, 2, 12, GetParam());
  auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
  ASSERT_TRUE(worker);
  work(**worker, 0, 2, 2, 50);
  goes.join();
  const std::vector<uint8_t> codes(512);
  std::vector<uint8_t> sums(1024);
  std::vector<aggregation::Outgoing> out{{codes, 0, 0, 0}};
  std::vector<aggregation::Incoming> in(1);
  in[0].lanes = sums;
  const auto done = (*worker)->run(out, in, Clock::now() + kLong);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, Errc::peer_failed) << done.error().message;
  EXPECT_EQ((*worker)->blamed(), 1);
}

TEST(UdpServer, MissingTokenServesOnlyLoopback) {
  aggregation::UdpServerSettings settings;
  settings.bind = "0.0.0.0:0";
  settings.io = Io::mmsg;
  const auto refused = aggregation::UdpServer::open(settings);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::invalid_argument);
  settings.server.token[0] = 1;
  EXPECT_TRUE(aggregation::UdpServer::open(settings));
}

// The kernel drops what other addresses send; the rest is recognised by its port.
TEST(Group, GroupDeliversDatagramsOfServer) {
  const net::Endpoint server = *net::parse_endpoint("127.0.0.1:0");
  const auto group = net::parse_group("239.7.4.3:7429", server);
  ASSERT_TRUE(group);
  const auto listener = net::Socket::in_group(*group, server, server, Io::mmsg);
  ASSERT_TRUE(listener) << listener.error().message;
  for (const char* address : {"127.0.0.2:0", "127.0.0.1:0"}) {
    const auto socket = net::Socket::bound(*net::parse_endpoint(address), Io::mmsg);
    ASSERT_TRUE(socket);
    const ip_mreqn loopback{{}, {}, static_cast<int>(if_nametoindex("lo"))};
    setsockopt(socket->fd(), IPPROTO_IP, IP_MULTICAST_IF, &loopback, sizeof loopback);
    ASSERT_EQ(::sendto(socket->fd(), address, 9, 0,
                       reinterpret_cast<const sockaddr*>(&group->address), group->size),
              9);
  }
  net::Receiver receiver(Io::mmsg);
  std::vector<std::string> heard;
  receiver.receive(*listener, [&](const net::Endpoint& from, Bytes datagram) {
    heard.emplace_back(datagram.begin(), datagram.end());
    EXPECT_FALSE(net::same_address(from, server)) << "another port";
  });
  EXPECT_EQ(heard, std::vector<std::string>{"127.0.0.1"});
}

/// A worker that sends given datagrams, by blocking calls.
class RawWorker {
 public:
  RawWorker(const std::string& server, Io io, uint8_t rank, const protocol::JobSettings& job,
            uint64_t number = 77)
      : number_(number),
        rank_(rank),
        job_(job),
        socket_(*net::Socket::connected(*net::parse_endpoint(server), io)),
        receiver_(io) {}
  void hello() {
    std::array<uint8_t, protocol::kMaxEnrolmentBytes> bytes{};
    post({bytes.data(), protocol::write_hello(me(), nullptr, bytes.data())});
    protocol::Challenge challenge;
    ASSERT_EQ(protocol::parse_challenge(next(), &challenge), protocol::DatagramFault::none);
    protocol::Enrolment e;
    e.from = me();
    e.epoch = challenge.epoch;
    e.nonce = challenge.nonce;
    e.settings = job_;
    const std::vector<uint8_t> held(job_.ring / 8U);
    e.held = held;
    const auto key = protocol::enrolment_key({}, me(), e.epoch, e.nonce);
    post({bytes.data(), protocol::write_enrolment(e, key, bytes.data())});
    key_ = protocol::job_key({}, me().job, e.epoch);
    epoch_ = static_cast<uint16_t>(e.epoch);
  }
  void data(uint64_t number, const std::vector<uint8_t>& codes) {
    protocol::UpHeader h;
    h.job = static_cast<uint32_t>(me().job);
    h.granule = static_cast<uint32_t>(number);
    h.epoch = epoch_;
    h.ahead = static_cast<uint16_t>(number);
    h.worker = rank_;
    std::vector<uint8_t> bytes(protocol::kUpHeaderBytes);
    protocol::write_up(h, key_, protocol::era_of(number), codes, bytes.data());
    bytes.insert(bytes.end(), codes.begin(), codes.end());
    post(bytes);
  }
  [[nodiscard]] uint16_t port() const {
    const net::Endpoint local = *socket_.local();
    sockaddr_in in{};
    std::memcpy(&in, &local.address, sizeof(in));
    return in.sin_port;
  }
  void leave() {
    protocol::UpHeader h;
    h.type = protocol::DatagramType::leave;
    h.job = static_cast<uint32_t>(me().job);
    h.epoch = epoch_;
    h.worker = rank_;
    std::array<uint8_t, protocol::kUpHeaderBytes> bytes{};
    protocol::write_up(h, key_, 0, {}, bytes.data());
    post(bytes);
  }
  /// The next datagram; empty: none for so long.
  std::vector<uint8_t> next(Clock::duration timeout = kLong) {
    for (const auto end = Clock::now() + timeout; waiting_.empty() && Clock::now() < end;) {
      receiver_.receive(socket_, [&](const net::Endpoint&, Bytes one) {
        waiting_.emplace_back(one.begin(), one.end());
      });
    }
    if (waiting_.empty()) return {};
    std::vector<uint8_t> first = std::move(waiting_.front());
    waiting_.erase(waiting_.begin());
    return first;
  }

 private:
  [[nodiscard]] protocol::Applicant me() const { return {number_, 770U + rank_, 1, rank_}; }
  void post(Bytes bytes) {
    EXPECT_EQ(::send(socket_.fd(), bytes.data(), bytes.size(), 0),
              static_cast<ssize_t>(bytes.size()));
  }
  uint64_t number_;
  uint8_t rank_;
  protocol::JobSettings job_;
  net::Socket socket_;
  net::Receiver receiver_;
  protocol::SipKey key_{};
  uint16_t epoch_ = 0;
  std::vector<std::vector<uint8_t>> waiting_;
};

// More than what the server receives into, from one worker: sums are begun before the other's come.
TEST_P(Udp, SumsAreExactWhenPayloadMemoryIsReused) {
  Serving server(GetParam());
  protocol::JobSettings job = job_of(2);
  job.lanes = 8192;
  job.ring = 1024;
  std::vector<RawWorker> workers;
  for (uint8_t rank = 0; rank < 2; ++rank)
    workers.emplace_back(server.address(), GetParam(), rank, job);
  for (RawWorker& worker : workers) worker.hello();
  for (RawWorker& worker : workers) {
    protocol::Welcome welcome;
    do {
      ASSERT_EQ(protocol::parse_welcome(worker.next(), &welcome), protocol::DatagramFault::none);
    } while (!welcome.complete);
  }
  constexpr uint64_t kMany = 600;
  const auto codes_of = [](uint8_t rank, uint64_t number) {
    return std::vector<uint8_t>(4096, static_cast<uint8_t>(17 * ((number + 3U * rank) % 7)));
  };
  for (uint64_t number = 0; number < kMany; ++number) {
    workers[0].data(number, codes_of(0, number));
    if (number % 20 == 19) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (uint64_t number = 0; number < kMany; ++number) {
    std::vector<uint8_t> result;
    for (int tries = 0; tries < 100 && result.empty(); ++tries) {
      if (tries != 0) workers[0].data(number, codes_of(0, number));  // it was lost
      workers[1].data(number, codes_of(1, number));
      do {
        result = workers[1].next(seconds(1));
      } while (result.size() == protocol::kDownHeaderBytes);  // are you there?
    }
    ASSERT_EQ(result.size(), protocol::kDownHeaderBytes + 8192) << number;
    ASSERT_EQ(load<uint32_t>(result.data() + 8), number);
    const auto want = static_cast<uint8_t>(number % 7 + (number + 3) % 7);
    ASSERT_EQ(std::count(result.begin() + protocol::kDownHeaderBytes, result.end(), want), 8192)
        << number;
  }
}

/// Open file descriptors of this process.
std::size_t descriptors() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}
std::size_t descriptors_once_they_are(std::size_t wanted) {
  for (const auto end = Clock::now() + kLong; descriptors() != wanted && Clock::now() < end;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return descriptors();
}

/// Registers all ranks of a job and waits for their welcomes.
std::vector<RawWorker> raw_job(const std::string& server, Io io, uint8_t world,
                               uint64_t number = 77) {
  std::vector<RawWorker> workers;
  for (uint8_t rank = 0; rank < world; ++rank) {
    workers.emplace_back(server, io, rank, job_of(world), number);
    workers.back().hello();
  }
  for (RawWorker& worker : workers) {
    protocol::Welcome welcome;
    while (!welcome.complete) {
      const auto answer = worker.next();
      EXPECT_EQ(protocol::parse_welcome(answer, &welcome), protocol::DatagramFault::none);
      if (answer.empty()) break;
    }
  }
  return workers;
}

/// The first result or failure that came.
std::vector<uint8_t> outcome(RawWorker& worker) {
  std::vector<uint8_t> answer;
  do {
    answer = worker.next();
  } while (!answer.empty() && (answer[2] & 15) != 11 && (answer[2] & 15) != 15);
  return answer;
}

void expect_sum(std::vector<RawWorker>& workers, uint64_t number) {
  for (RawWorker& worker : workers) worker.data(number, std::vector<uint8_t>(512, 0x11));
  for (RawWorker& worker : workers) {
    const auto answer = outcome(worker);
    ASSERT_EQ(answer.size(), protocol::kDownHeaderBytes + 1024) << number;
    EXPECT_EQ(load<uint32_t>(answer.data() + 8), number);
    EXPECT_EQ(answer.back(), workers.size());
  }
}

TEST_P(Udp, MovedMemberLeavesNoSocket) {
  Serving server(GetParam());
  auto workers = raw_job(server.address(), GetParam(), 2);
  const std::size_t before = descriptors();
  for (int moves = 0; moves < 20; ++moves) {
    RawWorker moved(server.address(), GetParam(), 1, job_of(2));
    moved.hello();
    protocol::Welcome welcome;
    ASSERT_EQ(protocol::parse_welcome(moved.next(), &welcome), protocol::DatagramFault::none);
    workers[1] = std::move(moved);
  }
  EXPECT_EQ(descriptors_once_they_are(before), before);
  expect_sum(workers, 0);
}

TEST_P(Udp, EndedJobLeavesNoSocket) {
  aggregation::UdpServerSettings settings;
  settings.bind = "127.0.0.1:0";
  settings.io = GetParam();
  settings.server.jobs = 1;
  Serving server(settings, 1);
  auto first = raw_job(server.address(), GetParam(), 3, 70);
  const std::size_t before = descriptors();
  for (RawWorker& worker : first) worker.leave();
  for (RawWorker& worker : first) {
    while (load<uint16_t>(worker.next().data() + 2) == 0) {
    }
  }
  auto second = raw_job(server.address(), GetParam(), 1, 71);
  // A worker's own socket is here, too.
  EXPECT_EQ(descriptors_once_they_are(before - 3 + 1 + 1), before - 3 + 1 + 1);
  expect_sum(second, 0);
}

TEST(UdpServer, SecondServerAtPortIsRefused) {
  Serving first;
  auto workers = raw_job(first.address(), Io::mmsg, 2);
  expect_sum(workers, 0);
  aggregation::UdpServerSettings settings;
  settings.bind = first.address();
  settings.io = Io::mmsg;
  const auto second = aggregation::UdpServer::open(settings);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().message,
            "bind to " + first.address() + ": " + std::strerror(EADDRINUSE));
  EXPECT_NE(second.error().hint.find("server uses this port"), std::string::npos);
  // Nor does it help any other program to say that it would share.
  const net::Endpoint at = *net::parse_endpoint(first.address());
  const int other = ::socket(AF_INET, SOCK_DGRAM, 0);
  const int yes = 1;
  EXPECT_EQ(setsockopt(other, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)), 0);
  EXPECT_NE(::bind(other, reinterpret_cast<const sockaddr*>(&at.address), at.size), 0);
  ::close(other);
  expect_sum(workers, 1);
}

/// An ICMP error about what `server` sent to `port` of 127.0.0.1, as any host on the path could
/// send it.
void send_icmp(const std::string& server, uint16_t port, uint8_t type, uint8_t code) {
  const net::Endpoint at = *net::parse_endpoint(server);
  sockaddr_in from{};
  std::memcpy(&from, &at.address, sizeof(from));
  std::array<uint8_t, 8 + 20 + 8> message{};
  message[0] = type;
  message[1] = code;
  if (type == 3 && code == 4) store(message.data() + 6, htons(900));  // the path's MTU
  uint8_t* ip = message.data() + 8;
  ip[0] = 0x45;
  store(ip + 2, htons(1000));
  ip[8] = 64;
  ip[9] = IPPROTO_UDP;
  store(ip + 12, from.sin_addr.s_addr);
  store(ip + 16, from.sin_addr.s_addr);
  store(ip + 20, from.sin_port);
  store(ip + 22, port);
  store(ip + 24, htons(980));
  uint32_t sum = 0;
  for (std::size_t i = 0; i < message.size(); i += 2) sum += load<uint16_t>(message.data() + i);
  sum = (sum & 0xFFFF) + (sum >> 16);
  store(message.data() + 2, static_cast<uint16_t>(~(sum + (sum >> 16))));
  const int raw = ::socket(AF_INET, SOCK_RAW, IPPROTO_ICMP);
  EXPECT_EQ(::sendto(raw, message.data(), message.size(), 0,
                     reinterpret_cast<const sockaddr*>(&from), sizeof(from)),
            static_cast<ssize_t>(message.size()))
      << std::strerror(errno);
  ::close(raw);
}

// Only a closed port, reported twice, shows that a worker is gone: a single report may be an
// accident, or a stranger's.
TEST_P(Udp, OnlyPortClosedTwiceIsLostWorker) {
  bool there = false;
  std::thread([&] {
    there = unshare(CLONE_NEWNET) == 0 && std::system("ip link set lo up") == 0;
    if (!there) return;
    Serving server(GetParam());
    auto workers = raw_job(server.address(), GetParam(), 2);
    uint64_t number = 0;
    expect_sum(workers, number++);
    constexpr uint8_t kUnreachable = 3, kTimeExceeded = 11, kParameterProblem = 12, kPort = 3;
    for (uint8_t code = 0; code < 16; ++code) {
      if (code == kPort) continue;
      SCOPED_TRACE("unreachable, " + std::to_string(code));
      for (int i = 0; i < 3; ++i)
        send_icmp(server.address(), workers[1].port(), kUnreachable, code);
      expect_sum(workers, number++);
      expect_sum(workers, number++);
    }
    for (const uint8_t type : {kTimeExceeded, kParameterProblem}) {
      SCOPED_TRACE("type " + std::to_string(type));
      for (int i = 0; i < 3; ++i) send_icmp(server.address(), workers[1].port(), type, 0);
      expect_sum(workers, number++);
    }
    send_icmp(server.address(), workers[1].port(), kUnreachable, kPort);
    expect_sum(workers, number++);
    expect_sum(workers, number++);
    // A machine that stands still between the two makes them two of one.
    std::vector<uint8_t> failure;
    for (const auto end = Clock::now() + kLong; failure.empty() && Clock::now() < end;) {
      send_icmp(server.address(), workers[1].port(), kUnreachable, kPort);
      send_icmp(server.address(), workers[1].port(), kUnreachable, kPort);
      failure = workers[0].next(seconds(1));
    }
    ASSERT_EQ(failure.size(), protocol::kDownHeaderBytes);
    EXPECT_EQ(failure[2] & 15, 15) << "failed";
    EXPECT_EQ(failure[22], 1) << "the worker";
    EXPECT_EQ(failure[23], static_cast<uint8_t>(protocol::Reason::lost_worker));
  }).join();
  if (!there) GTEST_SKIP() << "no network namespaces here";
}

TEST_P(Udp, KeptPayloadsStayWhileMoreArrive) {
  const auto listener = net::Socket::bound(*net::parse_endpoint("127.0.0.1:0"), GetParam());
  ASSERT_TRUE(listener);
  const auto sender = net::Socket::connected(*listener->local(), GetParam());
  ASSERT_TRUE(sender);
  net::Receiver receiver(GetParam());
  const std::size_t rooms = GetParam() == Io::gso ? 16 : 64;
  const auto receive = [&](uint8_t what) {
    const std::vector<uint8_t> sent(1000, what);
    EXPECT_EQ(::send(sender->fd(), sent.data(), sent.size(), 0), 1000);
    Bytes got;
    EXPECT_EQ(receiver.receive(
                  *listener, [&](const net::Endpoint&, Bytes one) { got = one; }, 1),
              1);
    return got;
  };
  std::vector<Bytes> kept{receive(1)};
  while (kept.size() < 70 * rooms && receiver.keep(1)) {
    kept.push_back(receive(static_cast<uint8_t>(kept.size() + 1)));
  }
  EXPECT_GT(kept.size(), rooms) << "short ones lie close together";
  EXPECT_FALSE(receiver.keep(rooms));
  for (std::size_t i = 0; i < kept.size(); ++i) {
    ASSERT_EQ(kept[i].size(), 1000U);
    const auto what = static_cast<uint8_t>(i + 1);
    EXPECT_TRUE(std::all_of(kept[i].begin(), kept[i].end(), [=](uint8_t b) { return b == what; }));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(kept[i].data()) % 64, 0U) << "a line begins there";
  }
  receiver.rewind();
  EXPECT_EQ(receive(0xEE).data(), kept[0].data());
}

TEST(UdpServer, GroupMustBeMulticastAddressOfServerFamily) {
  const auto refused = [](const std::string& bind, const std::string& group) {
    aggregation::UdpServerSettings settings;
    settings.bind = bind;
    settings.io = Io::mmsg;
    settings.server.token[0] = 1;
    settings.multicast = group;
    const auto server = aggregation::UdpServer::open(settings);
    EXPECT_EQ(server ? Errc::ok : server.error().code, server ? Errc::ok : Errc::invalid_argument);
    return server ? "" : server.error().message;
  };
  EXPECT_EQ(refused("127.0.0.1:0", "239.7.4.2"), "");
  EXPECT_EQ(refused("127.0.0.1:0", "10.7.4.2"),
            "multicast group 10.7.4.2 is not a multicast address");
  EXPECT_NE(refused("127.0.0.1:0", "[ff12::1]:80").find("family"), std::string::npos);
  EXPECT_NE(refused("127.0.0.1:0", "239.7.4.2:x").find("port"), std::string::npos);
  EXPECT_NE(refused("0.0.0.0:0", "239.7.4.2").find("one interface"), std::string::npos);
}

TEST(UdpWorker, BlockTooLongForPathIsRefused) {
  protocol::JobSettings job = job_of(4);
  job.values = 0;
  EXPECT_TRUE(aggregation::fits_path(job, 1500, false));
  EXPECT_TRUE(aggregation::fits_path(job, 1500, true));
  EXPECT_TRUE(aggregation::fits_path(job, 1024 + 40 + 28, false));
  EXPECT_FALSE(aggregation::fits_path(job, 1024 + 40 + 27, false));
  EXPECT_FALSE(aggregation::fits_path(job, 20, false));
  EXPECT_TRUE(aggregation::fits_path(job, 0, false));
  job.lanes = 8192;
  EXPECT_TRUE(aggregation::fits_path(job, 9000, false));
  const auto refused = aggregation::fits_path(job, 1500, false);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Errc::unsupported);
  EXPECT_EQ(refused.error().hint, "block=1024 fits");
  job.lane_bits = 16;
  EXPECT_EQ(aggregation::fits_path(job, 1500, false).error().hint, "block=512 fits");
  job.lanes = 512;
  job.values = 400;
  EXPECT_FALSE(aggregation::fits_path(job, 1500, false)) << "1,600 bytes of small parameters";
}

TEST(UdpWorker, MissingServerIsNamed) {
  auto settings = worker_settings({"127.0.0.1:9"}, 0, 2, 13, Io::mmsg);
  settings.link.job.timeout_ms = 200;
  const auto worker = UdpWorker::attach(settings, Clock::now() + kLong);
  ASSERT_FALSE(worker);
  EXPECT_EQ(worker.error().code, Errc::timed_out);
  EXPECT_NE(worker.error().message.find("127.0.0.1:9"), std::string::npos);
}

TEST(Endpoint, EndpointRoundTripsAsText) {
  for (const std::string text : {"127.0.0.1:7420", "[::1]:80"}) {
    const auto endpoint = net::parse_endpoint(text);
    ASSERT_TRUE(endpoint);
    EXPECT_EQ(net::endpoint_text(*endpoint), text);
    EXPECT_TRUE(net::is_loopback(*endpoint));
  }
  for (const char* text : {"", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "127.0.0.1:65536"}) {
    EXPECT_FALSE(net::parse_endpoint(text)) << text;
  }
  EXPECT_FALSE(net::is_loopback(*net::parse_endpoint("0.0.0.0:1")));
}

}  // namespace
}  // namespace laconic::test

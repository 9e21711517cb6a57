// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// End to end: workers at the ports of a switch, and a server on it.
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/io/udp_server.h"
#include "aggregation/link/udp_worker.h"
#include "support/subset.h"
#include "unit/aggregation/xdp_fixture.h"

namespace laconic::test {
namespace {

/// Generic receive offload on an interface lets it take frames that are redirected to it.
bool take_redirected(const char* interface, bool take = true) {
  const int fd = socket(AF_INET, SOCK_DGRAM, 0);
  ethtool_value on{ETHTOOL_SGRO, take ? 1U : 0U};
  ifreq request{};
  std::strncpy(request.ifr_name, interface, IFNAMSIZ - 1);
  request.ifr_data = reinterpret_cast<char*>(&on);
  const bool done = ioctl(fd, SIOCETHTOOL, &request) == 0;
  ::close(fd);
  return done;
}

/// A switch whose ports lead to a host each, and a server on it.
class XdpSwitch : public XdpTest {
 protected:
  using Clock = aggregation::UdpWorker::Clock;
  static constexpr uint8_t kWorld = 4;

  void SetUp() override {
    XdpTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    switch_ = std::make_unique<Namespace>();
    switch_->enter();
    ASSERT_TRUE(ip("link add name br0 type bridge stp_state 0 forward_delay 0") &&
                ip("addr add 10.99.0.254/24 dev br0") && ip("link set br0 up"));
    for (uint32_t w = 0; w < kWorld; ++w) {
      const std::string port = "port" + std::to_string(w);
      hosts_.push_back(std::make_unique<Namespace>());
      ASSERT_TRUE(
          ip("link add name " + port + " type veth peer name eth0 netns " + hosts_[w]->path()) &&
          ip("link set " + port + " master br0 up"));
      settings_.interfaces.push_back(port);
      hosts_[w]->enter();
      ASSERT_TRUE(ip("addr add 10.99.0." + std::to_string(w + 1) + "/24 dev eth0") &&
                  ip("link set eth0 up") && take_redirected("eth0"));
      switch_->enter();
    }
    settings_.bind = "10.99.0.254:0";
    settings_.server.secret[16] = settings_.server.token[0] = 1;
    settings_.server.memory = uint64_t{16} << 20U;
    serve();
  }
  void TearDown() override {
    stop();
    if (switch_ != nullptr) switch_->leave();
  }

  void serve() {
    auto opened = aggregation::UdpServer::open(settings_);
    ASSERT_TRUE(opened) << opened.error().message;
    server_ = std::move(*opened);
    settings_.bind = server_->address();  // where it comes back
    ++settings_.server.secret[17];
    over_ = false;
    serving_ = std::thread([this] {
      switch_->enter();
      server_->run(over_);
    });
  }
  void stop() {
    over_ = true;
    if (serving_.joinable()) serving_.join();
    if (server_ != nullptr) last_ = server_->server().stats();
    server_.reset();
  }

  aggregation::UdpSettings worker_settings(uint8_t rank) const {
    aggregation::UdpSettings s;
    s.servers = {settings_.bind};
    s.link.job = settings_of(kWorld, 4, 8, 1024);
    s.link.job.ring = 256;
    s.link.job.timeout_ms = 60000;
    s.link.number = 77;
    s.link.instance = rank + 1U;
    s.link.worker = rank;
    s.link.token = settings_.server.token;
    return s;
  }
  /// One exchange; false: it failed.
  static bool step(aggregation::UdpWorker& worker, uint8_t rank, uint32_t step,
                   std::size_t granules = 400) {
    const std::vector<uint8_t> codes(512, static_cast<uint8_t>(17 * (rank + 1)));
    const std::vector<aggregation::Outgoing> out(granules, {codes, step, rank, 0});
    std::vector<aggregation::Incoming> in(granules);
    std::vector<uint8_t> sums(1024 * granules);
    for (std::size_t i = 0; i < granules; ++i) in[i].lanes = MutBytes(sums).subspan(1024 * i, 1024);
    if (!worker.run(out, in, Clock::now() + std::chrono::seconds(100))) return false;
    EXPECT_EQ(std::count(sums.begin(), sums.end(), 1 + 4 + 9 + 16), static_cast<long>(sums.size()));
    for (const aggregation::Incoming& one : in) {
      EXPECT_EQ(one.bitmap, (1U << kWorld) - 1);
      EXPECT_EQ(one.norm, kWorld - 1);
    }
    return true;
  }
  /// Runs `work` for every rank on its host.
  template <class Work>
  void on_all_hosts(Work work) {
    std::vector<std::thread> threads;
    for (uint8_t rank = 0; rank < kWorld; ++rank) {
      threads.emplace_back([&, rank] {
        hosts_[rank]->enter();
        const auto until = Clock::now() + std::chrono::seconds(100);
        auto worker = aggregation::UdpWorker::attach(worker_settings(rank), until);
        ASSERT_TRUE(worker) << worker.error().message;
        work(rank, *worker);
        if (*worker != nullptr) (*worker)->close(until);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  std::unique_ptr<Namespace> switch_;
  std::vector<std::unique_ptr<Namespace>> hosts_;
  aggregation::UdpServerSettings settings_;
  std::unique_ptr<aggregation::UdpServer> server_;
  aggregation::ServerStats last_;
  std::atomic<bool> over_{false};
  std::thread serving_;
};

TEST_F(XdpSwitch, SumsOfFourWorkersOnFourPorts) {
  on_all_hosts([](uint8_t rank, auto& worker) {
    for (uint32_t i = 0; i < 5; ++i) EXPECT_TRUE(step(*worker, rank, i));
  });
  stop();
  EXPECT_GT(last_.in_kernel, last_.datagrams * 9 / 10);
}

TEST_F(XdpSwitch, LossIsRepairedByKernel) {
  // Drops one in fifty, each way: if (random > 2^32 / 50) pass, else drop.
  const std::string lose =
      " protocol all bpf da bytecode '4,32 0 0 4294963256,37 0 1 85899346,"
      "6 0 0 4294967295,6 0 0 2'";
  for (const auto& host : hosts_) {
    host->enter();
    const bool done = run("tc qdisc add dev eth0 clsact") &&
                      run("tc filter add dev eth0 egress" + lose) &&
                      run("tc filter add dev eth0 ingress" + lose);
    switch_->enter();
    if (!done) GTEST_SKIP() << "no cls_bpf here";
  }
  std::atomic<uint64_t> resent{0};
  on_all_hosts([&](uint8_t rank, auto& worker) {
    for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(step(*worker, rank, i));
    resent += worker->stats().resent_datagrams;
  });
  stop();
  EXPECT_GT(resent, 10U);
  // Starved by a sanitizer, a worker asks so often that the process takes it for out of reach.
  EXPECT_GT(last_.in_kernel, kSanitized ? 0 : last_.datagrams * 9 / 10);
}

TEST_F(XdpSwitch, HostsWithoutRedirectAreServedByProcess) {
  hosts_[1]->enter();
  EXPECT_TRUE(take_redirected("eth0", false));
  switch_->enter();
  on_all_hosts([](uint8_t rank, auto& worker) {
    for (uint32_t i = 0; i < 3; ++i) EXPECT_TRUE(step(*worker, rank, i));
  });
  stop();
  EXPECT_GT(last_.in_kernel, 0U);
  EXPECT_LT(last_.in_kernel, last_.datagrams / 2);
}

TEST_F(XdpSwitch, RestartedServerIsUsedAgain) {
  std::atomic<int> here{0};
  std::atomic<bool> back{false};
  std::thread restart([&] {
    switch_->enter();
    while (here < kWorld) std::this_thread::yield();
    stop();
    serve();
    back = true;
  });
  std::atomic<uint64_t> restarts{0};
  on_all_hosts([&](uint8_t rank, auto& worker) {
    for (uint32_t i = 0; i < 4; ++i) {
      if (i == 2) ++here;
      EXPECT_TRUE(step(*worker, rank, i));
    }
    while (!back) std::this_thread::yield();
    EXPECT_TRUE(step(*worker, rank, 4));
    restarts += worker->stats().aggregator_restarts;
  });
  restart.join();
  stop();
  EXPECT_EQ(restarts, kWorld);
  EXPECT_GT(last_.in_kernel, 0U);
}

TEST_F(XdpSwitch, LostWorkerIsNamed) {
  std::atomic<int> named{0};
  on_all_hosts([&](uint8_t rank, auto& worker) {
    EXPECT_TRUE(step(*worker, rank, 0));
    if (rank == 2) {
      worker.reset();
      return;
    }
    EXPECT_FALSE(step(*worker, rank, 1));
    named += worker->blamed() == 2;
  });
  EXPECT_EQ(named, kWorld - 1);
}

}  // namespace
}  // namespace laconic::test

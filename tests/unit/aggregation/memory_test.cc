// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A worker without memory: its links need none, whatever happens to them, and an error whose
// message finds none is its code.
#include <gtest/gtest.h>

#include "aggregation/link/udp_worker.h"
#include "support/scarce_memory.h"
#include "support/serving.h"
#include "unit/aggregation/network.h"

#if !defined(LACONIC_ASAN) && !defined(LACONIC_TSAN)  // they have allocators of theirs

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

Plan plan_of(uint8_t world) {
  Plan plan;
  plan.job.world = plan.job.needed = world;
  plan.job.code_bits = 4;
  plan.job.lane_bits = 8;
  plan.job.table_size = 16;
  plan.job.ring = 64;
  plan.job.values = 16;
  plan.job.lanes = 64;
  plan.job.timeout_ms = 1000;
  for (uint16_t i = 0; i < 16; ++i) plan.job.table[i] = i;
  return plan;
}

Link link_of(const Plan& plan, uint8_t worker, uint64_t instance) {
  LinkSettings settings;
  settings.job = plan.job;
  settings.number = plan.number;
  settings.instance = instance;
  settings.worker = worker;
  settings.server = "10.0.0.9:7420";
  return Link(settings);
}

/// call(), whose first allocation would fail.
template <class Call>
void without_memory(Call&& call) {
  countdown = 0;
  call();
  EXPECT_EQ(countdown, 0) << "memory was asked for";
  countdown = -1;
}

/// A server and links to it that never get memory. Datagrams arrive immediately.
class Poor {
 public:
  explicit Poor(const Plan& plan, const protocol::Token& token = {}) {
    aggregation::ServerSettings settings;
    settings.token = token;
    server_ = std::make_unique<aggregation::Server>(settings);
    for (uint8_t w = 0; w < plan.job.world; ++w) {
      links_.push_back(link_of(plan, w, 100U + w));
      links_.back().connect(0);
    }
  }
  Link& operator[](uint32_t w) { return links_[w]; }

  /// Until link `w` fails.
  const Link& run(uint32_t w) {
    for (; !(*this)[w].failed() && now_ < 100 * kSecond; now_ += 10 * kMillisecond) {
      for (uint32_t i = 0; i < links_.size(); ++i) drive(i);
      Down down{*this};
      if (is_up) server_->tick(now_, down);
    }
    return (*this)[w];
  }
  void begin(uint32_t w, const Outgoing* out, Incoming* in) {
    without_memory([&] { links_[w].begin(now_, out, in, 1, 1); });
  }
  [[nodiscard]] bool all_joined() {
    for (int turn = 0; turn < 10; ++turn, now_ += 10 * kMillisecond) {
      for (uint32_t w = 0; w < links_.size(); ++w) drive(w);
    }
    return std::ranges::all_of(links_, [](const Link& link) { return link.joined(); });
  }
  /// Everything that link w sends reaches the server.
  void drive(uint32_t w) {
    Up up;
    up.sent.reserve(100);
    without_memory([&] { links_[w].send(now_, up); });
    if (under_way) under_way();
    Down down{*this};
    for (std::size_t i = 0; i < up.sent.size() && is_up; ++i)
      server_->receive(now_, address_of(w), {up.sent[i].bytes.data(), up.sent[i].size}, down);
  }
  bool is_up = true;
  std::function<void()> under_way;  ///< called when something is

 private:
  struct Up final : aggregation::Sender {
    struct One {
      std::array<uint8_t, 1024> bytes;
      std::size_t size;
    };
    void send(const aggregation::Address&, Bytes header, Bytes payload, std::size_t) override {
      One one{{}, header.size() + payload.size()};
      std::copy(header.begin(), header.end(), one.bytes.begin());
      std::copy(payload.begin(), payload.end(), one.bytes.begin() + header.size());
      sent.push_back(one);
    }
    void flush() override {}
    std::vector<One> sent;
  };
  struct Down final : aggregation::Sender {
    explicit Down(Poor& p) : poor(p) {}
    void send(const aggregation::Address& to, Bytes header, Bytes payload, std::size_t) override {
      std::vector<uint8_t> all(header.begin(), header.end());
      all.insert(all.end(), payload.begin(), payload.end());
      Link& link = poor[static_cast<uint32_t>(load<uint64_t>(to.bytes.data()) - 1)];
      without_memory([&] { link.receive(poor.now_, all); });
    }
    void flush() override {}
    Poor& poor;
  };

  std::unique_ptr<aggregation::Server> server_;
  std::vector<Link> links_;
  Time now_ = kMillisecond;
};

/// Each allocation of the message fails in turn: the code stays.
void expect_code(const Link& link, Errc code, const char* words) {
  ASSERT_TRUE(link.failed()) << words;
  for (int64_t failing = 0; failing < 100; ++failing) {
    countdown = failing;
    const Error error = link.error();
    const bool failed = countdown < 0;
    countdown = -1;
    EXPECT_EQ(error.code, code) << error.message;
    if (!failed) {
      EXPECT_GT(failing, 0);
      EXPECT_NE(error.message.find(words), std::string::npos) << error.message;
      return;
    }
    EXPECT_EQ(error.message + error.hint, "");
  }
  ADD_FAILURE() << "allocates without end";
}

TEST(LinkMemory, SilentServerIsReportedByCode) {
  Poor group(plan_of(1));
  group.is_up = false;
  expect_code(group.run(0), Errc::timed_out, "no answer within 1500 ms");
}

TEST(LinkMemory, WrongTokenIsReportedByCode) {
  protocol::Token token{};
  token[0] = 1;
  Poor group(plan_of(1), token);
  expect_code(group.run(0), Errc::ranks_disagree, "the token");
}

/// One is refused, and the other receives that the job is over.
TEST(LinkMemory, RefusalIsReportedByCode) {
  Plan one = plan_of(2);
  Poor group(one);
  group.drive(0);
  one.job.timeout_ms = 7;
  group[1] = link_of(one, 1, 7);
  group[1].connect(kMillisecond);
  expect_code(group.run(1), Errc::ranks_disagree, "");
  expect_code(group.run(0), Errc::ranks_disagree, "rank 1");
}

/// Another sequence of exchanges, as if this rank's granule had changed in between.
TEST(LinkMemory, ForeignSumIsReportedByCode) {
  const std::vector<uint8_t> codes(32);
  for (const bool longer : {false, true}) {
    Poor group(plan_of(1));
    ASSERT_TRUE(group.all_joined());
    std::vector<uint8_t> sums(longer ? 10 : 64);
    Outgoing out{codes, 5, 0, 0};
    Incoming in;
    in.lanes = sums;
    group.begin(0, &out, &in);
    if (!longer) group.under_way = [&] { out.settings = 6; };
    expect_code(group.run(0), Errc::ranks_disagree,
                longer ? "64 bytes, expected at most 10" : "settings that differ from this rank's");
  }
}

/// The last call of a program, in a destructor: the server has gone, and nothing is left.
TEST(LinkMemory, ClosingNeedsNoAllocation) {
  Serving server;
  aggregation::UdpSettings settings;
  settings.servers = {server.address()};
  settings.link.job = plan_of(1).job;
  settings.link.number = 9;
  const auto now = aggregation::UdpWorker::Clock::now();
  auto worker = aggregation::UdpWorker::attach(settings, now + std::chrono::seconds(100));
  ASSERT_TRUE(worker) << worker.error().message;
  server.end();
  const auto deadline = aggregation::UdpWorker::Clock::now() + std::chrono::milliseconds(50);
  without_memory([&] { (*worker)->close(deadline); });
}

}  // namespace
}  // namespace laconic::test

#endif

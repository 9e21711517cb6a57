// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The program in the kernel, datagram by datagram, compared with a server without it.
#include <arpa/inet.h>
#include <linux/bpf.h>
#include <net/if.h>
#include <sys/syscall.h>

#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "aggregation/server/server.h"
#include "support/subset.h"
#include "unit/aggregation/xdp_fixture.h"

namespace laconic::test {

namespace protocol = aggregation::protocol;
namespace {

using aggregation::Address;
using aggregation::Xdp;
using Frame = std::vector<uint8_t>;

constexpr std::size_t kDatagramAt = 42;  // after Ethernet, IPv4 and UDP
constexpr uint16_t kServerPort = 7420;

Address address_at(uint32_t host, uint16_t port) {
  Address a;
  a.bytes[0] = 4;
  const uint16_t port_there = htons(port);
  const uint32_t ip_there = htonl(0x0A630000U + host);
  std::memcpy(a.bytes.data() + 2, &port_there, 2);
  std::memcpy(a.bytes.data() + 4, &ip_there, 4);
  return a;
}

Address worker_at(uint32_t w) { return address_at(w + 1, static_cast<uint16_t>(40000 + w)); }
Address server_address() { return address_at(254, kServerPort); }

Frame frame_of(const Address& from, const Address& to, uint32_t w, Bytes datagram) {
  Frame f(kDatagramAt + datagram.size());
  f[5] = 0xFE;
  f[11] = static_cast<uint8_t>(w);
  f[12] = 8;
  f[14] = 0x45;
  const auto put16 = [&](std::size_t at, std::size_t value) {
    f[at] = static_cast<uint8_t>(value >> 8U);
    f[at + 1] = static_cast<uint8_t>(value);
  };
  put16(16, f.size() - 14);
  f[22] = 64;
  f[23] = 17;
  std::memcpy(f.data() + 26, from.bytes.data() + 4, 4);
  std::memcpy(f.data() + 30, to.bytes.data() + 4, 4);
  std::memcpy(f.data() + 34, from.bytes.data() + 2, 2);
  std::memcpy(f.data() + 36, to.bytes.data() + 2, 2);
  put16(38, f.size() - 34);
  std::copy(datagram.begin(), datagram.end(), f.begin() + kDatagramAt);
  return f;
}

/// Runs the program once; the frame becomes what it made of it.
int run_program(int program, uint32_t ifindex, Frame* frame) {
  Frame out(frame->size() + 256);
  xdp_md context{};
  context.data_end = static_cast<uint32_t>(frame->size());
  context.ingress_ifindex = ifindex;
  bpf_attr attr{};
  attr.test.prog_fd = static_cast<uint32_t>(program);
  attr.test.data_in = reinterpret_cast<uintptr_t>(frame->data());
  attr.test.data_size_in = static_cast<uint32_t>(frame->size());
  attr.test.data_out = reinterpret_cast<uintptr_t>(out.data());
  attr.test.data_size_out = static_cast<uint32_t>(out.size());
  attr.test.ctx_in = reinterpret_cast<uintptr_t>(&context);
  attr.test.ctx_size_in = sizeof(context);
  attr.test.repeat = 1;
  if (syscall(__NR_bpf, BPF_PROG_TEST_RUN, &attr, sizeof(attr)) != 0) {
    ADD_FAILURE() << "BPF_PROG_TEST_RUN: " << std::strerror(errno);
    return -1;
  }
  out.resize(attr.test.data_size_out);
  *frame = std::move(out);
  return static_cast<int>(attr.test.retval);
}

using Sent = std::multimap<std::string, Frame>;

struct Collector final : aggregation::Sender {
  void send(const Address& to, Bytes header, Bytes payload, std::size_t) override {
    Frame all(header.begin(), header.end());
    all.insert(all.end(), payload.begin(), payload.end());
    sent.emplace(key(to), std::move(all));
  }
  void flush() override {}
  static std::string key(const Address& a) { return {a.bytes.begin(), a.bytes.end()}; }
  Sent sent;
};

/// Knows what a job was given.
struct Witness final : aggregation::KernelPath {
  explicit Witness(Xdp* to) : xdp(to) {}
  aggregation::SharedSlots take(const protocol::JobSettings& settings, uint32_t id, uint64_t epoch,
                                const protocol::SipKey& key) override {
    return taken = xdp->take(settings, id, epoch, key);
  }
  void give_back(const aggregation::SharedSlots& slots) noexcept override { xdp->give_back(slots); }
  bool place(const aggregation::SharedSlots& slots, uint32_t worker,
             const Address& address) noexcept override {
    return xdp->place(slots, worker, address);
  }
  Xdp* xdp;
  aggregation::SharedSlots taken;
};

/// Two servers that get the same datagrams: one by way of the program, one without it.
class Pair {
 public:
  /// All have the results below `start`; `holds`: worker 0 has that one, too.
  Pair(Xdp* xdp, const protocol::JobSettings& settings, uint64_t seed,
       const std::vector<uint32_t>& ports, uint64_t start = 0, bool holds = false)
      : settings_(settings),
        dice_(seed),
        ports_(ports),
        xdp_(xdp),
        start_(start),
        holds_(holds),
        kernel_(xdp) {
    aggregation::ServerSettings s;
    s.pad = true;
    for (uint8_t& byte : s.secret) byte = static_cast<uint8_t>(dice_.next());
    for (uint8_t& byte : token_) byte = static_cast<uint8_t>(dice_.next());
    s.token = token_;
    oracle_ = std::make_unique<aggregation::Server>(s);
    s.kernel = &kernel_;
    server_ = std::make_unique<aggregation::Server>(s);
    now_ = 1;
    for (uint8_t w = 0; w < settings.world; ++w) enrol(w);
  }

  const aggregation::Slots& slots() { return oracle_->jobs()[0]->slots(); }
  const aggregation::Job& oracle() { return *oracle_->jobs()[0]; }
  laconic_ring& ring() { return kernel_.taken.job->ring; }
  aggregation::Server& server() { return *server_; }
  const aggregation::ServerStats& stats() { return server_->stats(); }
  uint64_t redirected = 0, dropped = 0, passed = 0;

  /// The same bytes to both; what comes back has to be the same.
  void send(const Address& from, uint32_t w, Bytes datagram, std::size_t cut = 0,
            std::size_t port = kOwnPort) {
    Collector want, got;
    now_ += 1000;
    const Bytes arrives = datagram;
    if (cut == 0) oracle_->receive(now_, from, arrives, want);
    Frame frame = frame_of(from, server_address(), w, datagram);
    frame.resize(frame.size() - cut);  // the headers promise more: the stack drops it
    const int verdict = run_program(xdp_->program(), ports_[port == kOwnPort ? w : port], &frame);
    const Bytes result = Bytes(frame).subspan(std::min(kDatagramAt, frame.size()));
    if (verdict == XDP_PASS) {
      ++passed;
      EXPECT_EQ(Frame(result.begin(), result.end()),
                Frame(datagram.begin(), datagram.end() - static_cast<std::ptrdiff_t>(cut)));
      if (cut == 0) server_->receive(now_, from, datagram, got);
    } else if (verdict == XDP_REDIRECT) {
      ++redirected;
      const bool to_all = want.sent.size() != 1 || settings_.world == 1;
      for (uint32_t to = 0; to < settings_.world; ++to) {
        if (to_all || to == w) got.send(worker_at(to), result, {}, 0);
      }
    } else {
      ++dropped;
      EXPECT_EQ(verdict, XDP_DROP);
    }
    ASSERT_EQ(got.sent, want.sent);
    for (uint32_t to = 0; to < settings_.world; ++to) take(to, want.sent);
  }

  Frame up(uint32_t w, protocol::DatagramType type, uint64_t number, uint64_t ack, uint8_t flags,
           uint32_t settings, Bytes payload, bool pad = true) {
    protocol::UpHeader h;
    h.type = type;
    h.flags = flags;
    h.job = static_cast<uint32_t>(kJob);
    h.granule = static_cast<uint32_t>(number);
    h.settings = settings;
    h.epoch = static_cast<uint16_t>(oracle().epoch());
    h.ahead = static_cast<uint16_t>(number - ack);
    h.worker = static_cast<uint8_t>(w);
    const bool data = type == protocol::DatagramType::data;
    if (data) h.norm = static_cast<uint16_t>(w * 31 + number * 7919);
    const bool codes = data && !payload.empty() && (flags & protocol::kValues) == 0;
    const uint64_t padding = codes && pad ? settings_.padded_bytes() - payload.size() : 0;
    Frame bytes(protocol::kUpHeaderBytes + payload.size() + padding);
    std::copy(payload.begin(), payload.end(), bytes.begin() + protocol::kUpHeaderBytes);
    protocol::write_up(h, oracle().key(), protocol::era_of(number), payload, bytes.data(), padding);
    return bytes;
  }

  /// One step of a schedule: mostly sound, in any order.
  void step() {
    const auto w = static_cast<uint32_t>(dice_.below(settings_.world));
    const uint64_t front = slots().ring().front(), floor = slots().ring().floor();
    uint64_t mine = std::max(start_, slots().ring().ack(w));
    while (got_[w].count(mine) != 0) ++mine;
    uint64_t ack = mine;
    if (dice_.one_in(5)) ack = dice_.between(std::max(start_, mine / 2), mine);
    if (dice_.one_in(40)) ack = front + dice_.below(3);
    uint64_t number = std::max(ack, floor + dice_.below(settings_.ring + 2));
    // It seldom asks for what it has got.
    const bool again = dice_.one_in(30);
    while (!again && got_[w].count(number) != 0) ++number;
    Frame bytes;
    if (dice_.one_in(12)) {
      const uint64_t at = std::min(ack, front);
      bytes = up(w, protocol::DatagramType::ack, at, at, 0, 0, {});
    } else if (dice_.one_in(30)) {
      bytes = up(w, protocol::DatagramType::pull, number, ack, 0, 0, {});
    } else {
      bytes = contribution(w, number, ack);
    }
    Address from = worker_at(w);
    std::size_t cut = 0, port = kOwnPort;
    if (dice_.one_in(20)) {
      switch (dice_.below(7)) {
        case 0:  // forged: any bit of the header
          bytes[dice_.below(protocol::kUpHeaderBytes)] ^=
              static_cast<uint8_t>(1U << dice_.below(8));
          break;
        case 1:
          from = worker_at(w + 1);
          break;
        case 2:
          cut = 1 + dice_.below(bytes.size());
          break;
        case 3:
          bytes.resize(bytes.size() - std::min<std::size_t>(bytes.size(), 1 + dice_.below(60)));
          break;
        case 4:
          bytes.push_back(0);
          break;
        case 5:
          port = ports_.size() - 1 - w;
          break;
        default:
          for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(dice_.next());
          break;
      }
    }
    send(from, w, bytes, cut, port);
    if (dice_.one_in(30)) send(worker_at(w), w, contribution(w, number, std::min(mine, number)));
  }

  /// Worker 0 brings its result back.
  void bring_back() {
    const std::vector<uint8_t> lanes(settings_.lane_bytes(), 7);
    protocol::DownHeader h;
    h.type = protocol::DatagramType::held;
    h.job = static_cast<uint32_t>(kJob);
    h.granule = static_cast<uint32_t>(start_);
    h.epoch = static_cast<uint16_t>(oracle().epoch());
    h.added = h.divisor = settings_.world;
    h.bitmap = ~uint64_t{0} >> (64U - settings_.world);
    Frame bytes(protocol::kDownHeaderBytes);
    protocol::write_down(h, oracle().key(), protocol::era_of(start_), lanes, bytes.data());
    bytes.insert(bytes.end(), lanes.begin(), lanes.end());
    send(worker_at(0), 0, bytes);
  }

  /// All slots, word by word.
  void compare_slots() {
    const aggregation::Slots& got = server_->jobs()[0]->slots();
    EXPECT_EQ(got.ring().floor(), slots().ring().floor());
    EXPECT_EQ(got.open(), slots().open());
    for (uint64_t number = slots().ring().floor(); number < slots().ring().floor() + settings_.ring;
         ++number) {
      const aggregation::Slot& a = slots().ring().slot(number);
      const aggregation::Slot& b = got.ring().slot(number);
      if (a.number != number || a.state == aggregation::SlotState::unused) continue;
      EXPECT_EQ(b.number, number);
      EXPECT_EQ(a.state, b.state);
      EXPECT_EQ(a.bitmap, b.bitmap);
      EXPECT_EQ(a.added, b.added);
      EXPECT_EQ(a.norm, b.norm);
      EXPECT_EQ(a.flags, b.flags);
      EXPECT_EQ(a.length, b.length);
      const Bytes x = slots().ring().sum(a), y = got.ring().sum(b);
      EXPECT_TRUE(std::equal(x.begin(), x.end(), y.begin(), y.end())) << "granule " << number;
    }
  }

  /// Contents are a function of worker and number: what is sent again is the same.
  Frame contribution(uint32_t w, uint64_t number, uint64_t ack) {
    Dice own(number * 64 + w + 1), shared(number);
    const auto hash = static_cast<uint32_t>(shared.next());
    uint8_t flags = number % 16 == 0 ? uint8_t{protocol::kFirst} : uint8_t{0};
    if (own.one_in(50)) flags |= protocol::kTrouble;
    const bool values = shared.one_in(7);
    if (values) flags |= protocol::kValues;
    if (own.one_in(9)) {
      return up(w, protocol::DatagramType::data, number, ack, flags | protocol::kEmpty, hash, {});
    }
    std::vector<uint8_t> payload(values ? 4U * settings_.values : settings_.code_bytes());
    for (uint8_t& byte : payload) byte = static_cast<uint8_t>(own.next());
    const bool pad = !own.one_in(15);
    return up(w, protocol::DatagramType::data, number, ack, flags, hash, payload, pad);
  }

 private:
  static constexpr std::size_t kOwnPort = ~std::size_t{0};
  static constexpr uint64_t kJob = 0x1122334455667788U;

  /// A tenth of what is sent to a worker is lost.
  void take(uint32_t w, const Sent& sent) {
    const auto [begin, end] = sent.equal_range(Collector::key(worker_at(w)));
    for (auto at = begin; at != end; ++at) {
      protocol::DownHeader h;
      const bool parsed = protocol::parse_down(at->second, &h) == protocol::DatagramFault::none;
      if (!parsed || h.type != protocol::DatagramType::result || dice_.one_in(10)) continue;
      got_[w].insert(protocol::nearest_number(h.granule, slots().ring().floor()));
    }
  }

  void enrol(uint8_t w) {
    const protocol::Applicant who{kJob, uint64_t{w} + 100, 1, w};
    Frame bytes(protocol::kHelloBytes);
    protocol::write_hello(who, nullptr, bytes.data());
    Collector out;
    oracle_->receive(now_, worker_at(w), bytes, out);
    protocol::Challenge challenge;
    ASSERT_EQ(protocol::parse_challenge(out.sent.begin()->second, &challenge),
              protocol::DatagramFault::none);
    EXPECT_TRUE(challenge.pad);
    send(worker_at(w), w, bytes);
    std::vector<uint8_t> held(settings_.ring / 8U);
    if (holds_ && w == 0) held[0] = 1;
    const protocol::Enrolment e{who, challenge.epoch, challenge.nonce, settings_, start_, start_,
                                held};
    bytes.resize(protocol::kMaxEnrolmentBytes);
    const auto key = protocol::enrolment_key(token_, who, e.epoch, e.nonce);
    bytes.resize(protocol::write_enrolment(e, key, bytes.data()));
    send(worker_at(w), w, bytes);
  }

  protocol::JobSettings settings_;
  Dice dice_;
  std::vector<uint32_t> ports_;
  Xdp* xdp_;
  uint64_t start_;
  bool holds_;
  protocol::Token token_{};
  std::array<std::set<uint64_t>, protocol::kMaxWorkers> got_;
  Witness kernel_;
  std::unique_ptr<aggregation::Server> oracle_, server_;
  Time now_ = 0;
};

class XdpProgram : public XdpTest {
 protected:
  static constexpr uint32_t kPorts = 8;

  void SetUp() override {
    XdpTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    network_ = std::make_unique<Namespace>();
    ASSERT_TRUE(network_->ok());
    network_->enter();
    auto opened = Xdp::open({server_address(), uint64_t{1} << 20U, {}});
    ASSERT_TRUE(opened) << opened.error().message;
    xdp_ = std::move(*opened);
    for (uint32_t i = 0; i < kPorts; i += 2) {
      const std::string a = "p" + std::to_string(i), b = "p" + std::to_string(i + 1);
      ASSERT_TRUE(ip("link add " + a + " type veth peer name " + b));
      for (const std::string& name : {a, b}) {
        ports_.push_back(if_nametoindex(name.c_str()));
        const auto added = xdp_->add_port(ports_.back());
        ASSERT_TRUE(added) << added.error().message;
      }
    }
  }
  void TearDown() override {
    xdp_.reset();
    if (network_ != nullptr && network_->ok()) network_->leave();
  }

  std::unique_ptr<Namespace> network_;
  std::unique_ptr<Xdp> xdp_;
  std::vector<uint32_t> ports_;
};

TEST_F(XdpProgram, AnswersEqualSlotMachine) {
  struct Case {
    uint8_t world, code_bits, lane_bits;
    uint32_t lanes;
  };
  const Case cases[] = {{4, 4, 8, 1024}, {3, 3, 8, 264}, {4, 2, 8, 2048}, {8, 4, 16, 1024},
                        {2, 3, 16, 8},   {5, 2, 16, 72}, {2, 8, 16, 512}, {1, 8, 8, 2048}};
  for (const Case& c : cases) {
    SCOPED_TRACE(testing::Message() << int{c.world} << " workers, " << int{c.code_bits}
                                    << " bits in " << int{c.lane_bits});
    Pair pair(xdp_.get(), settings_of(c.world, c.code_bits, c.lane_bits, c.lanes), c.lanes, ports_);
    for (int i = 0; i < 1500 * c.world && !HasFailure(); ++i) pair.step();
    pair.compare_slots();
    ASSERT_FALSE(HasFailure());
    // The ring came round, and all three ways were taken often.
    EXPECT_GT(pair.slots().ring().floor(), 32U);
    EXPECT_GT(pair.redirected, 100U);
    EXPECT_GT(pair.dropped, 100U);
    EXPECT_GT(pair.passed, 100U);
  }
}

// The upper half of a number does not travel.
TEST_F(XdpProgram, CountersContinueAbove32Bits) {
  constexpr uint64_t kEra = uint64_t{1} << 32U;
  Pair pair(xdp_.get(), settings_of(2, 4, 8, 64), 6, ports_, kEra - 20);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) pair.step();
  pair.compare_slots();
  EXPECT_GT(pair.slots().ring().floor(), kEra + 32);
  EXPECT_GT(pair.redirected, 100U);
}

TEST_F(XdpProgram, ProgramIsBlockedUntilHeldSumsReturn) {
  Pair pair(xdp_.get(), settings_of(2, 4, 8, 64), 1, ports_, 2, true);
  for (uint32_t w = 0; w < 2; ++w) {
    for (uint64_t number = 2; number < 6; ++number) {
      pair.send(worker_at(w), w, pair.contribution(w, number, 2));
    }
  }
  EXPECT_EQ(pair.redirected + pair.dropped, 0U);
  EXPECT_EQ(pair.slots().fetching(), 1U);
  pair.bring_back();
  EXPECT_EQ(pair.slots().fetching(), 0U);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) pair.step();
  pair.compare_slots();
  EXPECT_GT(pair.redirected, 100U);
}

TEST_F(XdpProgram, ProgramIsBlockedAfterWorkerLeaves) {
  Pair pair(xdp_.get(), settings_of(2, 4, 8, 64), 2, ports_);
  for (int i = 0; i < 300 && !HasFailure(); ++i) pair.step();
  const uint64_t taken = pair.redirected + pair.dropped;
  EXPECT_GT(taken, 50U);
  pair.send(worker_at(0), 0, pair.up(0, protocol::DatagramType::leave, 0, 0, 0, 0, {}));
  for (uint64_t i = 0; i < 8; ++i) {
    const uint64_t number = pair.slots().ring().front() + i;
    pair.send(worker_at(1), 1, pair.contribution(1, number, pair.slots().ring().ack(1)));
  }
  EXPECT_EQ(pair.redirected + pair.dropped, taken);
  EXPECT_EQ(pair.oracle().state(), aggregation::JobState::failed);
  EXPECT_EQ(pair.server().jobs()[0]->state(), aggregation::JobState::failed);
}

TEST_F(XdpProgram, OtherJobsAreLeftToProcess) {
  protocol::JobSettings quorum = settings_of(3, 4, 8, 64);
  quorum.needed = 2;
  protocol::JobSettings large = settings_of(2, 4, 16, 1032);
  for (const protocol::JobSettings& settings : {quorum, large}) {
    Pair pair(xdp_.get(), settings, 3, ports_);
    for (int i = 0; i < 300 && !HasFailure(); ++i) pair.step();
    EXPECT_EQ(pair.redirected + pair.dropped, 0U);
  }
  // Two workers at one port.
  Pair pair(xdp_.get(), settings_of(3, 4, 8, 64), 4, {ports_[0], ports_[1], ports_[0]});
  for (int i = 0; i < 300 && !HasFailure(); ++i) pair.step();
  EXPECT_EQ(pair.redirected, 0U);
  pair.compare_slots();
}

// Acks of both workers at the same time: whichever comes last finds the lowest of them.
TEST_F(XdpProgram, FloorNeverFallsBack) {
  constexpr uint64_t kRounds = kSanitized ? 1000 : 10000;  // of the program no sanitizer sees more
  constexpr uint64_t kStep = 16;
  const protocol::JobSettings settings = settings_of(2, 4, 8, 64);
  Pair pair(xdp_.get(), settings, 7, ports_);
  const std::vector<uint8_t> codes(settings.code_bytes(), 0x7F);
  std::atomic<uint64_t> ready{0};
  const auto to_program = [&](uint32_t w, const Frame& datagram) {
    Frame frame;
    do {  // not while the other one has the lock
      frame = frame_of(worker_at(w), server_address(), w, datagram);
    } while (run_program(xdp_->program(), ports_[w], &frame) == XDP_PASS);
  };
  uint64_t behind = 0;
  const auto acknowledge = [&](uint32_t w, uint64_t round) {
    Dice dice(2 * round + w);
    ++ready;
    while (ready < 2 * (round + 1)) {
    }
    for (uint64_t ack = round * kStep; ack < (round + 1) * kStep;) {
      ack = std::min(ack + 1 + dice.below(3), (round + 1) * kStep);
      to_program(w, pair.up(w, protocol::DatagramType::ack, ack, ack, 0, 0, {}));
    }
  };
  for (uint32_t w = 0; w < 2; ++w) {  // both have shown their ports
    pair.send(worker_at(w), w, pair.up(w, protocol::DatagramType::ack, 0, 0, 0, 0, {}));
  }
  for (uint64_t round = 0; round < kRounds; ++round) {
    const uint64_t begin = round * kStep;
    for (uint64_t number = begin; number < begin + kStep; ++number) {
      for (uint32_t w = 0; w < 2; ++w) {
        to_program(w, pair.up(w, protocol::DatagramType::data, number, begin, 0, 9, codes));
      }
    }
    ASSERT_EQ(pair.ring().front, begin + kStep);
    std::thread other([&] {
      network_->enter();
      acknowledge(1, round);
    });
    acknowledge(0, round);
    other.join();
    ASSERT_EQ(pair.ring().acks[0], begin + kStep);
    ASSERT_EQ(pair.ring().acks[1], begin + kStep);
    if (pair.ring().floor != begin + kStep) ++behind;
    pair.ring().floor = begin + kStep;
  }
  EXPECT_EQ(behind, 0U);
}

// Wherever it lags, the next ack raises it, and so does who finds the ring full.
TEST_F(XdpProgram, LaggingFloorIsRaised) {
  Pair pair(xdp_.get(), settings_of(2, 4, 8, 64), 8, ports_);
  for (uint64_t number = 0; number < 16; ++number) {
    for (uint32_t w = 0; w < 2; ++w) pair.send(worker_at(w), w, pair.contribution(w, number, 0));
  }
  const auto acknowledge = [&](uint32_t w, uint64_t ack, protocol::DatagramType type) {
    pair.send(worker_at(w), w, pair.up(w, type, ack, ack, 0, 0, {}));
  };
  acknowledge(0, 10, protocol::DatagramType::ack);
  acknowledge(1, 14, protocol::DatagramType::ack);
  EXPECT_EQ(pair.ring().floor, 10U);
  pair.ring().floor = 4;
  acknowledge(0, 11, protocol::DatagramType::ack);  // in the kernel
  EXPECT_EQ(pair.ring().floor, 11U);
  pair.ring().floor = 4;
  acknowledge(0, 12, protocol::DatagramType::pull);  // in the process
  EXPECT_EQ(pair.ring().floor, 12U);
  for (const uint32_t w : {0U, 1U}) {
    pair.ring().floor = 4;
    const uint64_t last = 12 + 31;
    if (w == 0) pair.send(worker_at(w), w, pair.contribution(w, last, 12));
    if (w == 1)
      pair.send(worker_at(w), w, pair.up(w, protocol::DatagramType::pull, last, 14, 0, 0, {}));
    EXPECT_EQ(pair.ring().floor, 12U) << w;
  }
  pair.compare_slots();
}

// Two processors, and the process between them, on the same slots at the same time.
TEST_F(XdpProgram, EveryProcessorAddsOnce) {
  constexpr uint32_t kWorld = 2;
  constexpr uint64_t kGranules = 4000;
  const protocol::JobSettings settings = settings_of(kWorld, 4, 8, 2048);
  Pair pair(xdp_.get(), settings, 5, ports_);
  for (uint32_t w = 0; w < kWorld; ++w) {  // both have shown their ports
    pair.send(worker_at(w), w, pair.up(w, protocol::DatagramType::ack, 0, 0, 0, 0, {}));
  }
  const std::vector<uint8_t> codes(settings.code_bytes(), 0x7F);
  std::vector<uint8_t> want(settings.lanes, static_cast<uint8_t>(kWorld * settings.table[7]));
  for (std::size_t i = 1; i < want.size(); i += 2) {
    want[i] = static_cast<uint8_t>(kWorld * settings.table[15]);
  }
  std::vector<std::atomic<bool>> closed(kGranules);
  std::array<std::atomic<uint64_t>, kWorld> reached{};
  std::atomic<uint64_t> in_kernel{0}, wrong{0};
  std::mutex process;
  const auto take_result = [&](Bytes datagram) {
    protocol::DownHeader h;
    if (protocol::parse_down(datagram, &h) != protocol::DatagramFault::none ||
        h.type != protocol::DatagramType::result || h.granule >= kGranules) {
      return;
    }
    const Bytes lanes = datagram.subspan(protocol::kDownHeaderBytes);
    bool right = h.added == kWorld && h.bitmap == 3;
    right &= std::equal(lanes.begin(), lanes.end(), want.begin(), want.end());
    right &= protocol::tag_is_right(datagram, protocol::kDownHeaderBytes, pair.oracle().key(), 0);
    if (!right) ++wrong;
    closed[h.granule] = true;
  };
  const auto send = [&](uint32_t w, uint64_t number, uint64_t ack) {
    // Some take the way through the process, where a short one has to.
    const bool pad = number % 8 != 5 + w;
    const Frame datagram = pair.up(w, protocol::DatagramType::data, number, ack, 0, 9, codes, pad);
    Frame frame = frame_of(worker_at(w), server_address(), w, datagram);
    // Both at the same time.
    reached[w] = number + 1;
    for (int i = 0; i < 20000 && reached[1 - w] <= number; ++i) {
    }
    const int verdict = run_program(xdp_->program(), ports_[w], &frame);
    if (verdict != XDP_PASS) ++in_kernel;
    if (verdict == XDP_REDIRECT) take_result(Bytes(frame).subspan(kDatagramAt));
    if (verdict != XDP_PASS) return;
    Collector out;
    const std::lock_guard hold(process);
    pair.server().receive(1, worker_at(w), datagram, out);
    for (const auto& [to, bytes] : out.sent) take_result(bytes);
  };
  // On a busy machine each thread gets half a ring done whenever it is its turn, and no more: how
  // long all of it takes says nothing, but that something gets done.
  constexpr std::chrono::seconds kTimeout{20};
  const auto work = [&](uint32_t w) {
    network_->enter();
    uint64_t ack = 0, number = 0;
    auto until = std::chrono::steady_clock::now() + kTimeout;
    while (ack < kGranules && std::chrono::steady_clock::now() < until) {
      if (closed[ack]) until = std::chrono::steady_clock::now() + kTimeout;
      while (ack < kGranules && closed[ack]) ++ack;
      const bool is_ahead = number == kGranules || number > ack + settings.ring / 2U;
      if (ack < kGranules) send(w, is_ahead ? ack : number++, ack);  // what is missing goes again
    }
  };
  std::thread other(work, 1);
  work(0);
  other.join();
  network_->enter();
  EXPECT_EQ(wrong, 0U);
  EXPECT_GT(in_kernel, kWorld * kGranules / 2);
  EXPECT_EQ(pair.server().jobs()[0]->slots().open(), 0U);
  Collector none;
  pair.server().tick(2, none);
  EXPECT_EQ(pair.server().jobs()[0]->stats().closed, kGranules);
}

}  // namespace
}  // namespace laconic::test

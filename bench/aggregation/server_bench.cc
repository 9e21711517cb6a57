// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What an aggregation server gets through, over loopback: by `gso`, by `mmsg`, and as the bound a
// program that answers each datagram of the same length with one of a result's, by segmentation in
// the kernel, and looks at nothing but the number. Four workers, granules of 1,024 codes of 4 bits,
// driven by one thread; the three take turns. And what a job keeps of its rate while another one
// sends as fast as it can. As root also `xdp` and `mmsg` in a switch of veth pairs, the same
// workers behind its ports. Prints JSON.
//
//   server_bench SECONDS_PER_SAMPLE ROUNDS [HELLOS]
//
// HELLOS, for tests: as many of every worker's first ones are lost.
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "aggregation/io/udp_server.h"
#include "aggregation/io/xdp/xdp.h"
#include "aggregation/protocol/enrolment.h"
#include "output.h"
#include "samples.h"
#include "veth_switch.h"

#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif

namespace laconic::bench {

namespace protocol = aggregation::protocol;
namespace {

using net::Batch;
using net::Endpoint;
using net::Io;
using net::Receiver;
using net::Socket;
using tools::Json;
using Clock = std::chrono::steady_clock;

constexpr uint8_t kWorkers = 4;
constexpr uint32_t kLanes = 1024;
constexpr uint16_t kRing = 1024;
constexpr uint64_t kWindow = 256;  // granules that a worker has in flight
/// The same over a veth, which keeps 256 packets in all.
constexpr uint64_t kVethWindow = 64;
constexpr uint64_t kData = protocol::kUpHeaderBytes + kLanes / 2;
constexpr uint64_t kResult = protocol::kDownHeaderBytes + kLanes;
/// For servers that are not on loopback.
constexpr protocol::Token kToken{1};
constexpr auto kPatience = std::chrono::milliseconds(20);
constexpr double kRegisters = 10;  ///< seconds in which workers register, or there is no server

int lost_hellos = 0;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double cpu_seconds(pthread_t thread) {
  clockid_t clock{};
  timespec time{};
  if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

protocol::JobSettings job_settings(uint8_t world) {
  protocol::JobSettings s;
  s.world = s.needed = world;
  s.code_bits = 4;
  s.lane_bits = 8;
  s.table_size = 16;
  s.ring = kRing;
  s.lanes = kLanes;
  s.timeout_ms = 60000;
  for (uint16_t i = 0; i < 16; ++i) s.table[i] = i;
  return s;
}

// ---- what is measured ----

/// A server, or a program that answers like one, on its own thread.
class Peer {
 public:
  virtual ~Peer() { end(); }
  [[nodiscard]] virtual std::string address() const = 0;
  [[nodiscard]] double cpu() { return cpu_seconds(thread_.native_handle()); }

 protected:
  /// The name is what a profiler shows.
  void begin(const char* name, std::function<void(const std::atomic<bool>&)> work) {
    thread_ = std::thread([this, work = std::move(work)] { work(stop_); });
    pthread_setname_np(thread_.native_handle(), name);
  }
  void end() {
    stop_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

class Serving final : public Peer {
 public:
  explicit Serving(Io io) : Serving(on_loopback(io)) {}
  explicit Serving(aggregation::UdpServerSettings settings) {
    const Io io = settings.io;
    settings.server.secret[0] = settings.server.secret[16] = 1;  // epochs begin above 0
    auto opened = aggregation::UdpServer::open(settings);
    if (!opened) std::exit(tools::fail(opened.error(), true, 1));
    server_ = std::move(*opened);
    begin(io == Io::gso ? "gso" : "mmsg",
          [this](const std::atomic<bool>& stop) { server_->run(stop); });
  }
  ~Serving() override { end(); }
  [[nodiscard]] std::string address() const override { return server_->address(); }

 private:
  static aggregation::UdpServerSettings on_loopback(Io io) {
    aggregation::UdpServerSettings settings;
    settings.bind = "127.0.0.1:0";
    settings.io = io;
    return settings;
  }
  std::unique_ptr<aggregation::UdpServer> server_;
};

/// Answers 64 datagrams with one call and one piece of memory: less work is not possible.
class Echo final : public Peer {
 public:
  Echo() : receiver_(Io::gso), answers_(64 * kResult) {
    auto bound = Socket::bound(*net::parse_endpoint("127.0.0.1:0"), Io::gso);
    if (!bound) std::exit(tools::fail(bound.error(), true, 1));
    listener_ = std::move(*bound);
    local_ = *listener_.local();
    begin("echo", [this](const std::atomic<bool>& stop) { run(stop); });
  }
  ~Echo() override {
    end();
    ::close(epoll_);
  }
  [[nodiscard]] std::string address() const override { return net::endpoint_text(local_); }

 private:
  void run(const std::atomic<bool>& stop) {
    watch(listener_);
    while (!stop) {
      epoll_event event{};
      epoll_wait(epoll_, &event, 1, 100);
      for (bool any = true; any && !stop;) {
        any = accept();
        for (auto& socket : peers_) any |= answer(*socket);
      }
    }
  }
  void watch(const Socket& socket) {
    epoll_event event{};
    event.events = EPOLLIN;
    epoll_ctl(epoll_, EPOLL_CTL_ADD, socket.fd(), &event);
  }
  /// The first datagram of a worker gets it its own socket, as in the server.
  bool accept() {
    std::optional<Endpoint> stranger;
    receiver_.receive(listener_, [&](const Endpoint& from, Bytes) { stranger = from; });
    if (!stranger) return false;
    auto socket = Socket::connected(*stranger, Io::gso, &listener_);
    if (!socket) return false;
    watch(*socket);
    peers_.push_back(std::make_unique<Socket>(std::move(*socket)));
    return true;
  }
  bool answer(const Socket& socket) {
    std::size_t count = 0;
    const int n = receiver_.receive(socket, [&](const Endpoint&, Bytes datagram) {
      uint8_t* header = answers_.data() + count * kResult;
      std::memcpy(header, datagram.data(), protocol::kUpHeaderBytes);
      header[2] = static_cast<uint8_t>(protocol::kDatagramVersion << 4U |
                                       static_cast<uint8_t>(protocol::DatagramType::result));
      if (++count < 61) return;
      flush(socket, count);
      count = 0;
    });
    flush(socket, count);
    return n > 0;
  }
  void flush(const Socket& socket, std::size_t count) {
    if (count == 0) return;
    alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(uint16_t))> control{};
    iovec piece{answers_.data(), count * kResult};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = IPPROTO_UDP;
    c->cmsg_type = UDP_SEGMENT;
    c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
    const auto segment = static_cast<uint16_t>(kResult);
    std::memcpy(CMSG_DATA(c), &segment, sizeof(segment));
    while (sendmsg(socket.fd(), &message, 0) < 0 && errno == EAGAIN) {
      pollfd p{socket.fd(), POLLOUT, 0};
      poll(&p, 1, 10);
    }
  }

  Socket listener_;
  Endpoint local_;
  Receiver receiver_;
  std::vector<std::unique_ptr<Socket>> peers_;
  std::vector<uint8_t> answers_;
  int epoll_ = epoll_create1(EPOLL_CLOEXEC);
};

// ---- who asks ----

/// A worker that sends and counts, and does nothing with the sums. Little is lost: then it sends
/// what it has no sum of again.
class Worker {
 public:
  Worker(const std::string& address, Io io, uint8_t rank, uint8_t world = kWorkers,
         const protocol::Token& token = {}, uint64_t window = kWindow)
      : rank_(rank),
        world_(world),
        token_(token),
        batch_(io),
        codes_(kLanes / 2, static_cast<uint8_t>(17 * rank)),
        window_(window) {
    auto socket = Socket::connected(*net::parse_endpoint(address), io);
    if (!socket) std::exit(tools::fail(socket.error(), true, 1));
    socket_ = std::move(*socket);
  }

  /// Registers with a server; all workers of a job have to be called until all have registered.
  /// Datagrams may be lost, also the answer or the following enrolment: a worker without a welcome
  /// says hello again.
  bool enrol(uint64_t job, Receiver& receiver) {
    const protocol::Applicant me{job, job * 64 + rank_, 1, rank_};
    std::array<uint8_t, protocol::kMaxEnrolmentBytes> bytes{};
    if (!enrolled_ && Clock::now() - asked_ > kPatience) {
      asked_ = Clock::now();
      const std::size_t size = protocol::write_hello(me, nullptr, bytes.data());
      if (hellos_++ >= lost_hellos) post({bytes.data(), size});
    }
    receiver.receive(socket_, [&](const Endpoint&, Bytes datagram) {
      protocol::Challenge challenge;
      protocol::Welcome welcome;
      if (protocol::parse_challenge(datagram, &challenge) == protocol::DatagramFault::none) {
        protocol::Enrolment e;
        e.from = me;
        e.epoch = challenge.epoch;
        e.nonce = challenge.nonce;
        e.settings = job_settings(world_);
        const std::vector<uint8_t> held(e.settings.ring / 8U);
        e.held = held;
        key_ = protocol::job_key(token_, job, e.epoch);
        if (challenge.pad) padding_ = e.settings.padded_bytes() - e.settings.code_bytes();
        epoch_ = static_cast<uint16_t>(e.epoch);
        job_ = static_cast<uint32_t>(job);
        const auto key = protocol::enrolment_key(token_, me, e.epoch, e.nonce);
        post({bytes.data(), protocol::write_enrolment(e, key, bytes.data())});
      } else if (protocol::parse_welcome(datagram, &welcome) == protocol::DatagramFault::none) {
        enrolled_ |= welcome.complete;
      }
    });
    return enrolled_;
  }

  void send(bool again) {
    if (again) next_ = ack_;
    for (; next_ < ack_ + window_; ++next_) {
      if (got_[next_ % kRing] == next_) continue;
      protocol::UpHeader h;
      h.job = job_;
      h.granule = static_cast<uint32_t>(next_);
      h.epoch = epoch_;
      h.ahead = static_cast<uint16_t>(next_ - ack_);
      h.worker = rank_;
      std::array<uint8_t, protocol::kUpHeaderBytes> header;
      protocol::write_up(h, key_, protocol::era_of(next_), codes_, header.data(), padding_);
      batch_.add(socket_, header, codes_, padding_);
    }
    batch_.flush(socket_, nullptr);
  }
  /// The same contribution again and again.
  void flood() {
    next_ = ack_ = 0;
    send(false);
  }
  bool receive(Receiver& receiver) {
    const uint64_t before = ack_;
    const int n = receiver.receive(socket_, [&](const Endpoint&, Bytes datagram) {
      if (datagram.size() != kResult) return;
      const uint64_t number = protocol::nearest_number(load<uint32_t>(datagram.data() + 8), ack_);
      if (number >= ack_ && number < ack_ + kRing) got_[number % kRing] = number;
      while (got_[ack_ % kRing] == ack_) ++ack_;
    });
    if (n < 0) socket_.take_errors();
    next_ = std::max(next_, ack_);
    return ack_ != before;
  }
  [[nodiscard]] uint64_t ack() const { return ack_; }
  [[nodiscard]] int fd() const { return socket_.fd(); }

 private:
  void post(Bytes bytes) { ::send(socket_.fd(), bytes.data(), bytes.size(), 0); }

  uint8_t rank_, world_;
  protocol::Token token_;
  std::size_t padding_ = 0;
  Socket socket_;
  Batch batch_;
  std::vector<uint8_t> codes_;
  protocol::SipKey key_{};
  uint16_t epoch_ = 0;
  uint32_t job_ = 0;
  Clock::time_point asked_{};
  int hellos_ = 0;
  bool enrolled_ = false;
  uint64_t window_ = kWindow, ack_ = 0, next_ = 0;
  std::vector<uint64_t> got_ = std::vector<uint64_t>(kRing, ~uint64_t{0});  // numbers
};

void register_all(std::span<Worker> workers, uint64_t job, Receiver& receiver) {
  const Clock::time_point begin = Clock::now();
  for (bool all = false; !all;) {
    if (seconds_since(begin) > kRegisters) {
      const Error error{Errc::timed_out, "workers could not register with the server", {}};
      std::exit(tools::fail(error, true, 1));
    }
    all = true;
    for (Worker& w : workers) all &= w.enrol(job, receiver);
  }
}

struct Rate {
  double wall = 0;  ///< results to all workers in a second
  double cpu = 0;   ///< in a second of the server's processor time
};

/// Four workers and what answers them.
class Pair {
 public:
  Pair(std::unique_ptr<Peer> peer, Io io, bool enrols, uint64_t job)
      : peer_(std::move(peer)), receiver_(io) {
    for (uint8_t w = 0; w < kWorkers; ++w) workers_.emplace_back(peer_->address(), io, w);
    if (enrols) enrol_all(job);
  }
  /// A worker on each host of a switch.
  Pair(std::unique_ptr<Peer> peer, const VethSwitch& place, uint64_t job)
      : peer_(std::move(peer)), receiver_(Io::gso) {
    for (uint8_t w = 0; w < kWorkers; ++w) {
      workers_.push_back(place.host(w).inside(
          [&] { return Worker(peer_->address(), Io::gso, w, kWorkers, kToken, kVethWindow); }));
    }
    enrol_all(job);
  }

  /// Until the time is over, and then until nothing is under way.
  Rate run(double seconds) {
    const Clock::time_point begin = Clock::now();
    Clock::time_point moved = begin;
    const double cpu = peer_->cpu();
    const uint64_t before = workers_[0].ack();
    for (Worker& w : workers_) w.send(true);
    while (seconds_since(begin) < seconds) {
      bool any = false;
      for (Worker& w : workers_) {
        if (!w.receive(receiver_)) continue;
        w.send(false);
        any = true;
      }
      if (any) {
        moved = Clock::now();
      } else if (Clock::now() - moved > kPatience) {
        for (Worker& w : workers_) w.send(true);
        moved = Clock::now();
      } else {
        wait();
      }
    }
    const auto done = static_cast<double>(workers_[0].ack() - before);
    return {done / seconds_since(begin), done / std::max(peer_->cpu() - cpu, 1e-9)};
  }
  void enrol_all(uint64_t job) { register_all(std::span(workers_), job, receiver_); }
  void drain() {
    const Clock::time_point begin = Clock::now();
    while (seconds_since(begin) < 0.01) {
      for (Worker& w : workers_) w.receive(receiver_);
    }
  }

 private:
  void wait() {
    std::array<pollfd, kWorkers> polled;
    for (std::size_t w = 0; w < kWorkers; ++w) polled[w] = {workers_[w].fd(), POLLIN, 0};
    poll(polled.data(), polled.size(), 1);
  }

  std::unique_ptr<Peer> peer_;
  Receiver receiver_;
  std::vector<Worker> workers_;
};

/// A job of one worker that repeats what it has sent, on its own thread: to a server or, to use the
/// same processor time, to a port where nothing reads.
class Flood {
 public:
  Flood(const std::string& server, uint64_t job)
      : receiver_(Io::gso), at_server_(server, Io::gso, 0, 1), nowhere_(sink()) {
    register_all({&at_server_, 1}, job, receiver_);
    thread_ = std::thread([this] { run(); });
  }
  ~Flood() {
    aim_ = kEnd;
    thread_.join();
  }
  enum Aim : int { kRest, kServer, kNowhere, kEnd };
  void aim(Aim aim) { aim_ = aim; }

 private:
  /// The address of a socket that is never read.
  Worker sink() {
    sink_ = *Socket::bound(*net::parse_endpoint("127.0.0.1:0"), Io::gso);
    return {net::endpoint_text(*sink_.local()), Io::gso, 0, 1};
  }
  void run() {
    for (int aim = aim_; aim != kEnd; aim = aim_) {
      if (aim == kRest) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      } else {
        (aim == kServer ? at_server_ : nowhere_).flood();
      }
    }
  }

  Receiver receiver_;
  Worker at_server_;
  Socket sink_;
  Worker nowhere_;
  std::atomic<int> aim_{kRest};
  std::thread thread_;
};

Json to_json(const tools::Spread& s) {
  return {{"median", s.median}, {"low", s.low}, {"high", s.high}};
}

Rate sample(Pair& pair, double seconds) {
  const Rate rate = pair.run(seconds);
  pair.drain();
  return rate;
}

std::unique_ptr<Pair> in_switch(const VethSwitch& place, bool xdp, uint64_t job) {
  aggregation::UdpServerSettings settings;
  settings.bind = std::string(VethSwitch::kAddress) + ":0";
  settings.io = xdp ? Io::gso : Io::mmsg;
  settings.server.token = kToken;
  if (xdp) settings.interfaces = place.ports();
  auto serving = place.here().inside([&] { return std::make_unique<Serving>(settings); });
  return std::make_unique<Pair>(std::move(serving), place, job);
}

/// A program in the kernel at the ports of a switch, and `mmsg` in another one.
Json kernel_path(double seconds, int rounds) {
  if (const auto works = aggregation::Xdp::check(); !works) {
    return {{"reason", works.error().message.substr(0, works.error().message.find('\n'))}};
  }
  const VethSwitch with(kWorkers), without(kWorkers);
  if (!with.ok() || !without.ok()) {
    return {{"reason", "no network namespaces with bridges and veth pairs here"}};
  }
  const auto xdp = in_switch(with, true, 15), mmsg = in_switch(without, false, 16);
  sample(*xdp, seconds);
  sample(*mmsg, seconds);
  std::vector<double> xdp_wall, mmsg_wall, ratio, busy;
  for (int i = 0; i < 3 * rounds && ratio.size() < static_cast<std::size_t>(rounds); ++i) {
    Rate x, m;  // each of them is first in turn
    if (i % 2 == 0) x = sample(*xdp, seconds);
    m = sample(*mmsg, seconds);
    if (i % 2 != 0) x = sample(*xdp, seconds);
    if (x.wall == 0 || m.wall == 0) continue;
    xdp_wall.push_back(x.wall);
    mmsg_wall.push_back(m.wall);
    ratio.push_back(x.wall / m.wall);
    busy.push_back(x.wall / x.cpu);
  }
  if (ratio.empty()) return {{"reason", "no sums came in so short a time"}};
  const auto spread = [](std::vector<double>& v) {
    return to_json(tools::spread_of(std::move(v)));
  };
  const std::size_t measured = ratio.size();
  return {{"rounds", measured},
          {"xdp", spread(xdp_wall)},
          {"mmsg", spread(mmsg_wall)},
          {"xdp_to_mmsg", spread(ratio)},
          {"process", spread(busy)}};
}

int run(double seconds, int rounds) {
  if (!net::has_gso()) {
    tools::print_json({{"reason", "this kernel does not support UDP segmentation"}});
    return 0;
  }
  Pair gso(std::make_unique<Serving>(Io::gso), Io::gso, true, 11);
  auto flooded = std::make_unique<Serving>(Io::gso);
  Flood flood(flooded->address(), 13);
  Pair neighbour(std::move(flooded), Io::gso, true, 14);
  Pair mmsg(std::make_unique<Serving>(Io::mmsg), Io::mmsg, true, 12);
  Pair echo(std::make_unique<Echo>(), Io::gso, false, 0);
  const auto one = [&](Pair& pair) { return sample(pair, seconds); };
  for (Pair* pair : {&gso, &mmsg, &echo, &neighbour}) one(*pair);
  std::vector<double> gso_wall, gso_cpu, echo_wall, echo_cpu, mmsg_wall, to_echo, to_echo_cpu,
      to_mmsg, to_mmsg_cpu, beside_flood, beside_flood_cpu;
  // A machine that is busy may leave a sample without any sum: that round says nothing.
  for (int i = 0; i < 3 * rounds && to_echo.size() < static_cast<std::size_t>(rounds); ++i) {
    const Rate e = one(echo), g = one(gso), m = one(mmsg);
    flood.aim(Flood::kNowhere);
    const Rate alone = one(neighbour);
    flood.aim(Flood::kServer);
    const Rate beside = one(neighbour);
    flood.aim(Flood::kRest);
    if (e.wall == 0 || g.wall == 0 || m.wall == 0 || alone.wall == 0) continue;
    gso_wall.push_back(g.wall);
    gso_cpu.push_back(g.cpu);
    echo_wall.push_back(e.wall);
    echo_cpu.push_back(e.cpu);
    mmsg_wall.push_back(m.wall);
    to_echo.push_back(g.wall / e.wall);
    to_echo_cpu.push_back(g.cpu / e.cpu);
    to_mmsg.push_back(g.wall / m.wall);
    to_mmsg_cpu.push_back(g.cpu / m.cpu);
    beside_flood.push_back(beside.wall / alone.wall);
    beside_flood_cpu.push_back(beside.cpu / alone.cpu);
  }
  const std::size_t measured = gso_wall.size();
  const auto spread = [](std::vector<double>& v) {
    return to_json(tools::spread_of(std::move(v)));
  };
  tools::print_json({{"workers", kWorkers},
                     {"lanes", kLanes},
                     {"rounds", measured},
                     {"gso", spread(gso_wall)},
                     {"gso_per_cpu", spread(gso_cpu)},
                     {"echo", spread(echo_wall)},
                     {"echo_per_cpu", spread(echo_cpu)},
                     {"mmsg", spread(mmsg_wall)},
                     {"gso_to_echo", spread(to_echo)},
                     {"gso_to_echo_cpu", spread(to_echo_cpu)},
                     {"gso_to_mmsg", spread(to_mmsg)},
                     {"gso_to_mmsg_cpu", spread(to_mmsg_cpu)},
                     {"beside_flood", spread(beside_flood)},
                     {"beside_flood_cpu", spread(beside_flood_cpu)},
                     {"switch", kernel_path(seconds, rounds)}});
  return 0;
}

}  // namespace
}  // namespace laconic::bench

int main(int count, char** words) {
  if (count != 3 && count != 4) {
    fmt::print(stderr, "usage: server_bench SECONDS_PER_SAMPLE ROUNDS [HELLOS]\n");
    return 2;
  }
  if (count == 4) laconic::bench::lost_hellos = std::atoi(words[3]);
  return laconic::bench::run(std::strtod(words[1], nullptr), std::atoi(words[2]));
}

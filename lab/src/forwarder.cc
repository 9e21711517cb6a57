// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "forwarder.h"

#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <new>
#include <utility>

namespace laconic::lab {

/// Between the lab and its forwarder.
struct Forwarder::Shared {
  std::atomic<int64_t> start_ns{INT64_MAX};  ///< monotonic; slots are counted from it
  std::atomic<double> loss{0};
  std::atomic<uint64_t> frames{0}, lost{0}, refused{0}, cut{0}, late_ns{0}, late_max_ns{0};
  std::atomic<bool> realtime{false};
};

namespace {

/// virtio_net_hdr, whose header of Linux 6.1 no C++ compiler takes.
constexpr std::size_t kVirtualHeader = 10;

constexpr uint32_t kBlockBytes = 128 * 1024;
constexpr uint32_t kFewestBytes = 8U << 20U;
constexpr uint32_t kMostBytes = 256U << 20U;  // of all ports together
constexpr double kUnshapedRate = 1e10;

/// Frames that are due closer together than this leave together.
constexpr int64_t kQuantum = 50'000;
constexpr std::size_t kBatch = 64;

constexpr std::array<uint8_t, 5> kPrefix{0x02, 0x00, 0x0a, 0x4d, 0x00};

int64_t now_ns(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

/// Ring of a port: slots of equal size, one for a frame.
struct Ring {
  uint32_t place;  ///< bytes: a frame of full size with the kernel's headers
  uint32_t frames;
  [[nodiscard]] std::size_t bytes() const { return std::size_t{frames} * place; }
};

/// Slots for four times the full-size frames that come while one waits.
Ring ring_of(const DelayLaw& law, BitRate rate, uint32_t mtu, std::size_t ports) {
  constexpr uint32_t kHeaders = 14 + 160;
  const uint32_t place = std::bit_ceil(mtu + kHeaders);
  const double bits = rate == kUnshaped ? kUnshapedRate : static_cast<double>(rate);
  const double needed = 4 * bits / 8 / (mtu + 14) * seconds(law.delay + law.jitter);
  const double fewest = kFewestBytes / place;
  const auto most = std::max<double>(kMostBytes / place / static_cast<double>(ports), 64);
  const double frames = std::min(std::max(needed, fewest), most);
  const uint32_t per_block = kBlockBytes / place;
  return {place, static_cast<uint32_t>(frames) / per_block * per_block};
}

template <class T>
bool set_option(int fd, int level, int name, const T& value) {
  return setsockopt(fd, level, name, &value, sizeof value) == 0;
}

/// Takes all frames that come in by `device`.
Result<Fd> open_port(const std::string& device, const Ring& places, uint64_t queue) {
  // With protocol 0 it takes nothing before it is bound to its device.
  Fd fd(socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  tpacket_req ring{};
  ring.tp_block_size = kBlockBytes;
  ring.tp_frame_size = places.place;
  ring.tp_block_nr = static_cast<uint32_t>(places.bytes() / kBlockBytes);
  ring.tp_frame_nr = places.frames;
  // The header of a virtual device carries on which checksums are still to be computed.
  if (!fd || !set_option(fd.get(), SOL_PACKET, PACKET_VERSION, int{TPACKET_V2}) ||
      !set_option(fd.get(), SOL_PACKET, PACKET_VNET_HDR, 1) ||
      !set_option(fd.get(), SOL_PACKET, PACKET_RX_RING, ring))
    return system_error("taking the frames of " + device);
  (void)set_option(fd.get(), SOL_PACKET, PACKET_IGNORE_OUTGOING,
                   1);  // since Linux 4.20; saves time
  // Frames in the port's queue are charged to this process, small frames with more than ten times
  // their size. A plain user gets what net.core.wmem_max permits.
  const int room = static_cast<int>(std::min<uint64_t>(16 * queue + (8 << 20), INT32_MAX / 2));
  if (!set_option(fd.get(), SOL_SOCKET, SO_SNDBUFFORCE, room))
    (void)set_option(fd.get(), SOL_SOCKET, SO_SNDBUF, room);
  sockaddr_ll address{};
  address.sll_family = AF_PACKET;
  address.sll_protocol = htons(ETH_P_ALL);
  address.sll_ifindex = static_cast<int>(if_nametoindex(device.c_str()));
  if (address.sll_ifindex == 0 ||
      bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return system_error("taking the frames of " + device);
  return fd;
}

/// One port: its ring is also where frames wait, in the order in which they came.
struct Port {
  int fd = -1;
  uint32_t link = 0;
  bool delayed = true;
  ReleaseTimes times;
  uint8_t* ring = nullptr;
  uint32_t place = 0, frames = 0;
  struct Held {
    int64_t due = 0;
    bool dropped = false;
  };
  std::vector<Held> held;         ///< in addition to the ring
  uint32_t first = 0, count = 0;  ///< of those that wait
  uint64_t seen = 0;
  int64_t empty_at = 0;  ///< then nothing had come that we have not seen

  std::vector<iovec> blocks;  ///< what is about to leave by this port
  std::vector<mmsghdr> messages;

  [[nodiscard]] tpacket2_hdr* frame(uint32_t i) const {
    return reinterpret_cast<tpacket2_hdr*>(ring + std::size_t{i} * place);
  }
  [[nodiscard]] Held& head() { return held[first]; }
};

class Switch {
 public:
  Switch(std::vector<Port> ports, const std::vector<ForwardedPort>& names, const DelayLaw& law,
         std::atomic<int64_t>& start, std::atomic<double>& loss)
      : ports_(std::move(ports)), law_(law), start_(start), loss_(loss) {
    by_number_.fill(-1);
    for (std::size_t i = 0; i < names.size(); ++i)
      by_number_[static_cast<std::size_t>(names[i].number)] = static_cast<int>(i);
  }

  struct Counts {
    uint64_t frames = 0, lost = 0, refused = 0, cut = 0, late_ns = 0;
    int64_t late_max_ns = 0;
  };

  /// Takes what came, sends what is due, sleeps until more is.
  const Counts& turn() {
    for (Port& port : ports_) collect(port);
    release();
    return counts_;
  }

  void sleep() {
    const int64_t now = now_ns(CLOCK_MONOTONIC);
    const int64_t start = start_.load(std::memory_order_relaxed);
    const bool idle =
        std::all_of(ports_.begin(), ports_.end(), [](const Port& port) { return port.count == 0; });
    int64_t until = INT64_MAX;
    polled_.clear();
    for (const Port& port : ports_) {
      // A ring in which frames wait always counts as readable. What comes keeps its time.
      if (idle || !port.delayed) polled_.push_back({port.fd, POLLIN, 0});
      if (port.count > 0) until = std::min(until, port.held[port.first].due);
      if (port.delayed) until = std::min(until, port.times.none_before(now, start));
    }
    const int64_t wait = std::max(until - now, kQuantum);
    const timespec limit{wait / 1'000'000'000, wait % 1'000'000'000};
    ppoll(polled_.data(), polled_.size(), idle ? nullptr : &limit, nullptr);
    for (const pollfd& one : polled_) {
      int error = 0;  // reading it takes it back: an interface was removed
      socklen_t size = sizeof error;
      if ((one.revents & POLLERR) != 0) getsockopt(one.fd, SOL_SOCKET, SO_ERROR, &error, &size);
    }
  }

 private:
  void collect(Port& port) {
    const int64_t now = now_ns(CLOCK_MONOTONIC);
    const int64_t ahead = now_ns(CLOCK_REALTIME) - now;  // the kernel's times are of that clock
    const int64_t start = start_.load(std::memory_order_relaxed);
    const double loss = loss_.load(std::memory_order_relaxed);
    while (port.count < port.frames) {
      const uint32_t place = (port.first + port.count) % port.frames;
      tpacket2_hdr* header = port.frame(place);
      if ((std::atomic_ref(header->tp_status).load(std::memory_order_acquire) & TP_STATUS_USER) ==
          0) {
        port.empty_at = now;
        return;
      }
      const int64_t stamp =
          int64_t{header->tp_sec} * 1'000'000'000 + int64_t{header->tp_nsec} - ahead;
      const int64_t came = std::clamp(stamp, std::min(port.empty_at, now), now);
      Port::Held& held = port.held[place];
      held.due = port.delayed ? port.times.next(came, start) : came;
      const bool cut = header->tp_snaplen != header->tp_len || header->tp_snaplen < ETH_HLEN;
      const bool lost = is_lost(law_.seed, port.link, port.seen++, loss);
      held.dropped = cut || lost;
      counts_.cut += cut ? 1 : 0;
      counts_.lost += lost && !cut ? 1 : 0;
      ++port.count;
    }
  }

  /// The port whose next frame is due first, if one is.
  Port* next_due(int64_t now) {
    Port* found = nullptr;
    for (Port& port : ports_)
      if (port.count > 0 && port.head().due <= now &&
          (found == nullptr || port.head().due < found->head().due))
        found = &port;
    return found;
  }

  void release() {
    for (;;) {
      const int64_t now = now_ns(CLOCK_MONOTONIC);
      std::size_t taken = 0;
      for (Port* port = next_due(now); port != nullptr && taken < kBatch; port = next_due(now)) {
        if (!port->head().dropped) forward(*port, now - port->head().due);
        leaving_.push_back(port->frame(port->first));
        port->first = (port->first + 1) % port->frames;
        --port->count;
        ++taken;
      }
      if (taken == 0) return;
      for (Port& port : ports_) flush(port);
      for (tpacket2_hdr* header : leaving_)
        std::atomic_ref(header->tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
      leaving_.clear();
    }
  }

  /// To the port of its destination, or to all others.
  void forward(const Port& from, int64_t late) {
    tpacket2_hdr* header = from.frame(from.first);
    auto* bytes = reinterpret_cast<uint8_t*>(header) + header->tp_mac;
    const iovec block{bytes - kVirtualHeader, header->tp_snaplen + kVirtualHeader};
    ++counts_.frames;
    counts_.late_ns += static_cast<uint64_t>(late);
    counts_.late_max_ns = std::max(counts_.late_max_ns, late);
    const int to = std::equal(kPrefix.begin(), kPrefix.end(), bytes) ? by_number_[bytes[5]] : -1;
    for (Port& port : ports_)
      if (&port != &from && (to < 0 || &port == &ports_[static_cast<std::size_t>(to)]))
        port.blocks.push_back(block);
  }

  void flush(Port& port) {
    port.messages.resize(port.blocks.size());
    for (std::size_t i = 0; i < port.blocks.size(); ++i) {
      port.messages[i] = {};
      port.messages[i].msg_hdr.msg_iov = &port.blocks[i];
      port.messages[i].msg_hdr.msg_iovlen = 1;
    }
    for (std::size_t done = 0; done < port.messages.size();) {
      const int sent = sendmmsg(port.fd, &port.messages[done],
                                static_cast<unsigned>(port.messages.size() - done), 0);
      if (sent < 0 && errno == EINTR) continue;
      counts_.refused += sent <= 0 ? 1 : 0;  // the first one: its port's queue is full
      done += static_cast<std::size_t>(std::max(sent, 1));
    }
    port.blocks.clear();
  }

  std::vector<Port> ports_;
  std::array<int, 256> by_number_{};
  DelayLaw law_;
  std::atomic<int64_t>& start_;
  std::atomic<double>& loss_;
  std::vector<pollfd> polled_;
  std::vector<tpacket2_hdr*> leaving_;
  Counts counts_;
};

}  // namespace

std::string hardware_address(int number) {
  std::array<char, 18> text{};
  std::snprintf(text.data(), text.size(), "%02x:%02x:%02x:%02x:%02x:%02x", kPrefix[0], kPrefix[1],
                kPrefix[2], kPrefix[3], kPrefix[4], static_cast<unsigned>(number) & 255U);
  return text.data();
}

Result<std::unique_ptr<Forwarder>> Forwarder::start(const std::vector<ForwardedPort>& names,
                                                    const DelayLaw& law, BitRate rate,
                                                    uint64_t queue, uint32_t mtu) {
  std::unique_ptr<Forwarder> made(new Forwarder);
  void* page =
      mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return system_error("making memory for the forwarder");
  made->shared_ = new (page) Shared;
  const Ring places = ring_of(law, rate, mtu, names.size());
  for (const ForwardedPort& name : names) {
    auto fd = open_port(name.device, places, queue);
    if (!fd) return std::move(fd).error();
    made->sockets_.push_back(std::move(*fd));
  }
  made->pid_ = fork();
  if (made->pid_ < 0) return system_error("starting the forwarder");
  if (made->pid_ > 0) return made;

  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_TIMERSLACK, 1);
  prctl(PR_SET_NAME, "lab-forwarder");
  Shared& shared = *made->shared_;
  // Switches do not compute: one that waits for its turn on a core would be late.
  const sched_param first{.sched_priority = 1};
  shared.realtime = sched_setscheduler(0, SCHED_FIFO, &first) == 0;
  std::vector<Port> ports(names.size());
  for (std::size_t i = 0; i < names.size(); ++i) {
    Port& port = ports[i];
    port.fd = made->sockets_[i].get();
    port.link = static_cast<uint32_t>(names[i].number);
    port.delayed = names[i].delayed;
    port.times = ReleaseTimes(law, port.link);
    port.place = places.place;
    port.frames = places.frames;
    port.held.resize(places.frames);
    void* ring = mmap(nullptr, places.bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, port.fd, 0);
    if (ring == MAP_FAILED) _exit(1);
    port.ring = static_cast<uint8_t*>(ring);
  }
  Switch all(std::move(ports), names, law, shared.start_ns, shared.loss);
  for (;;) {
    const Switch::Counts& now = all.turn();
    constexpr auto kRelaxed = std::memory_order_relaxed;
    shared.frames.store(now.frames, kRelaxed);
    shared.lost.store(now.lost, kRelaxed);
    shared.refused.store(now.refused, kRelaxed);
    shared.cut.store(now.cut, kRelaxed);
    shared.late_ns.store(now.late_ns, kRelaxed);
    shared.late_max_ns.store(static_cast<uint64_t>(now.late_max_ns), kRelaxed);
    all.sleep();
  }
}

Forwarder::~Forwarder() {
  if (shared_ != nullptr) munmap(shared_, sizeof(Shared));
}

void Forwarder::begin() { shared_->start_ns = now_ns(CLOCK_MONOTONIC); }

void Forwarder::set_loss(double share) { shared_->loss = share; }

ForwarderReport Forwarder::report() {
  for (const Fd& socket : sockets_) {
    tpacket_stats since{};
    socklen_t size = sizeof since;  // reading it sets it to 0
    if (getsockopt(socket.get(), SOL_PACKET, PACKET_STATISTICS, &since, &size) == 0)
      overrun_ += since.tp_drops;
  }
  ForwarderReport r;
  r.frames = shared_->frames;
  r.lost = shared_->lost;
  r.refused = shared_->refused;
  r.overrun = overrun_ + shared_->cut;
  if (r.frames > 0)
    r.late_mean = static_cast<double>(shared_->late_ns) / 1e9 / static_cast<double>(r.frames);
  r.late_max = static_cast<double>(shared_->late_max_ns) / 1e9;
  clockid_t clock{};
  timespec used{};
  if (clock_getcpuclockid(pid_, &clock) == 0 && clock_gettime(clock, &used) == 0)
    r.cpu_seconds = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
  r.realtime = shared_->realtime;
  return r;
}

bool forwarder_works(const std::string& device) {
  return open_port(device, ring_of({}, kUnshaped, kUsualMtu, 1), 0).ok();
}

}  // namespace laconic::lab

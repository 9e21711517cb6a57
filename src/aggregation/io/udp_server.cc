// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/io/udp_server.h"

#ifdef __GLIBC__
#include <malloc.h>
#endif
#include <netinet/in.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "aggregation/io/xdp/xdp.h"

namespace laconic::aggregation {
namespace {

constexpr Time kSweep = 1000 * kMillisecond;
constexpr Time kObserve = 200 * kMillisecond;
constexpr uint64_t kKernelShare = 4;  // of the memory: a quarter is slots in the kernel
constexpr int kRounds = 4;            // of reading before answers go and the clock is looked at
constexpr std::size_t kMessagesAtOnce = 4;  // of up to 64 datagrams

// Returns the memory of ended jobs: the heap keeps it below live memory, also rings of any size,
// because malloc reuses whatever is no larger than what was freed before.
void give_memory_back() {
#ifdef __GLIBC__
  malloc_trim(0);
#endif
}

Time steady_now() noexcept {
  const auto since = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<Time>(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count());
}

// Family, port, address and scope identify a peer.
Address address_of(const net::Endpoint& e) noexcept {
  Address a;
  if (e.address.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &e.address, sizeof(in));
    a.bytes[0] = 4;
    std::memcpy(a.bytes.data() + 2, &in.sin_port, 2);
    std::memcpy(a.bytes.data() + 4, &in.sin_addr, 4);
    return a;
  }
  sockaddr_in6 in{};
  std::memcpy(&in, &e.address, sizeof(in));
  a.bytes[0] = 6;
  std::memcpy(a.bytes.data() + 2, &in.sin6_port, 2);
  std::memcpy(a.bytes.data() + 4, &in.sin6_addr, 16);
  std::memcpy(a.bytes.data() + 20, &in.sin6_scope_id, 4);
  return a;
}

net::Endpoint endpoint_of(const Address& a) noexcept {
  net::Endpoint e;
  if (a.bytes[0] == 4) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    std::memcpy(&in.sin_port, a.bytes.data() + 2, 2);
    std::memcpy(&in.sin_addr, a.bytes.data() + 4, 4);
    std::memcpy(&e.address, &in, sizeof(in));
    e.size = sizeof(in);
    return e;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  std::memcpy(&in.sin6_port, a.bytes.data() + 2, 2);
  std::memcpy(&in.sin6_addr, a.bytes.data() + 4, 16);
  std::memcpy(&in.sin6_scope_id, a.bytes.data() + 20, 4);
  std::memcpy(&e.address, &in, sizeof(in));
  e.size = sizeof(in);
  return e;
}

// Opens the socket that sends sums to the group.
Result<net::Socket> open_multicast(const UdpServerSettings& settings, const net::Endpoint& bound,
                                   const net::Socket& listener, Multicast* multicast) {
  if (!settings.interfaces.empty()) {
    return Error{Errc::invalid_argument, "the XDP program does not support multicast", {}};
  }
  if (net::is_wildcard(bound)) {
    return Error{Errc::invalid_argument,
                 "multicast needs one interface, which " + settings.bind + " does not name",
                 "bind to the address that workers use"};
  }
  const auto group = net::parse_group(settings.multicast, bound);
  if (!group) return group.error();
  *multicast = {{net::ip_of(*group), net::port_of(*group)}, address_of(*group)};
  return net::Socket::to_group(*group, listener, settings.io);
}

}  // namespace

std::size_t UdpServer::Hash::operator()(const Address& a) const noexcept {
  const uint64_t mixed = (a.word(0) ^ a.word(1) << 7U ^ a.word(2) << 13U) * 0x9E3779B97F4A7C15U;
  return mixed ^ mixed >> 32U;
}

/// Sorts what the server sends by peer. A welcome makes its addressee one.
class UdpServer::Out final : public Sender {
 public:
  explicit Out(UdpServer& server) : server_(server) {}
  [[nodiscard]] uint64_t sent() const noexcept { return sent_; }
  /// Before peers go.
  void forget() noexcept { recent_.fill(nullptr); }

  void send(const Address& to, Bytes header, Bytes payload, std::size_t padding) override {
    ++sent_;
    Peer* peer = find(to);
    note_welcome(peer, to, header);
    if (peer == nullptr) {
      const Endpoint endpoint = endpoint_of(to);
      Batch one(server_.io_);
      one.add(server_.listener_, header, payload, padding, &endpoint);
      one.flush(server_.listener_, &endpoint);
      return;
    }
    peer->refused += peer->batch.add(peer->socket, header, payload, padding);
    if (peer->queued) return;
    peer->queued = true;
    server_.queued_.push_back(peer);
  }
  void flush() override { server_.flush(); }

 private:
  Peer* find(const Address& to) noexcept {
    Peer*& recent = recent_[Hash{}(to) % recent_.size()];
    if (recent != nullptr && recent->address == to) return recent;
    const auto found = server_.peers_.find(to);
    if (found == server_.peers_.end()) return nullptr;
    return recent = found->second.get();
  }

  void note_welcome(const Peer* peer, const Address& to, Bytes header) {
    protocol::DatagramStart start;
    protocol::parse_start(header, &start);
    if (start.type != protocol::DatagramType::welcome) return;
    // Not now: the lists of peers are being read.
    if (peer == nullptr || peer->job != start.job) server_.newcomers_.emplace_back(to, start.job);
  }

  UdpServer& server_;
  uint64_t sent_ = 0;
  std::array<Peer*, 64> recent_{};
};

UdpServer::UdpServer(const UdpServerSettings& settings, std::unique_ptr<KernelPath> kernel,
                     Endpoint bound, Socket listener, Io io)
    : kernel_(std::move(kernel)),
      server_(settings.server),
      io_(io),
      address_(net::endpoint_text(bound)),
      listener_(std::move(listener)),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      receiver_(io),
      out_(std::make_unique<Out>(*this)),
      observe_(settings.observe) {
  groups_.push_back({0, {nullptr}, {}});
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, listener_.fd(), &event);
}

UdpServer::~UdpServer() {
  if (epoll_ >= 0) ::close(epoll_);
}

Result<std::unique_ptr<UdpServer>> UdpServer::open(const UdpServerSettings& settings) {
  const auto wanted = net::parse_endpoint(settings.bind);
  if (!wanted) return wanted.error();
  const bool no_token = settings.server.token == protocol::Token{};
  if (no_token && !net::is_loopback(*wanted)) {
    return Error{Errc::invalid_argument,
                 "without a token the server may listen on the loopback interface only, not on " +
                     settings.bind,
                 "create one with --new-token FILE, and give it to the server and every worker"};
  }
  const Io io = settings.io;
  if (io == Io::gso && !net::has_gso()) {
    return Error{Errc::unsupported, "this kernel does not support UDP segmentation",
                 "use --io mmsg"};
  }
  auto listener = Socket::bound(*wanted, io);
  if (!listener) return std::move(listener).error();
  auto bound = listener->local();
  if (!bound) return std::move(bound).error();
  std::unique_ptr<KernelPath> kernel;
  UdpServerSettings all = settings;
  Socket group;
  if (!settings.multicast.empty()) {
    auto opened = open_multicast(settings, *bound, *listener, &all.server.multicast);
    if (!opened) return std::move(opened).error();
    group = std::move(*opened);
  }
  if (!settings.interfaces.empty()) {
    const Address address = address_of(*bound);
    if (load<uint32_t>(address.bytes.data() + 4) == 0) {
      return Error{Errc::invalid_argument,
                   "the XDP program serves one address, not " + settings.bind,
                   "bind to the address that workers use"};
    }
    auto xdp = Xdp::open({address, settings.server.memory / kKernelShare, settings.interfaces});
    if (!xdp) return std::move(xdp).error();
    kernel = std::move(*xdp);
    all.server.kernel = kernel.get();
    all.server.pad = true;
    all.server.memory -= settings.server.memory / kKernelShare;
  }
  std::unique_ptr<UdpServer> server(
      new UdpServer(all, std::move(kernel), *bound, std::move(*listener), io));
  if (group.is_open()) server->open_group(all.server.multicast.address, std::move(group));
  return server;
}

void UdpServer::open_group(const Address& address, Socket socket) {
  auto peer = std::make_unique<Peer>(
      Peer{address, endpoint_of(address), std::move(socket), Batch(io_), 0, false, 0, true});
  peers_.emplace(address, std::move(peer));
}

void UdpServer::run(const std::atomic<bool>& stop) {
  while (!stop.load(std::memory_order_relaxed)) {
    for (int round = 0; round < kRounds && read_all(); ++round) {
    }
    flush();
    admit_newcomers();
    const Time now = steady_now();
    if (server_.next_event() <= now) {
      server_.tick(now, *out_);
      flush();
    }
    if (now - swept_ >= kSweep) sweep();
    if (observe_ && now - observed_ >= kObserve) {
      observed_ = now;
      observe_(server_);
    }
    wait(now, stop);
  }
  server_.tick(steady_now(), *out_);  // counts what the kernel took
  flush();
}

bool UdpServer::read_all() {
  return take_turns(groups_, [&](Peer* peer) { return read_one(peer); });
}

// A message may be 64 datagrams: with several jobs one message is a turn.
std::size_t UdpServer::most_messages() const noexcept {
  if (io_ == Io::mmsg) return Receiver::kAll;
  return groups_.size() > 2 ? 1 : kMessagesAtOnce;
}

// Returns datagrams that came and that were answered.
uint64_t UdpServer::read_one(Peer* peer) {
  const Time now = steady_now();
  const uint64_t sent = out_->sent();
  const Socket& socket = peer == nullptr ? listener_ : peer->socket;
  const Endpoint* last = nullptr;
  Address address;
  // Workers send for the same sums one after the other. What they sent stays until its memory is
  // wanted again, so that a sum is added at once. Single datagrams lie too far apart for that.
  const bool stays = io_ == Io::gso;
  if (stays && (!server_.owes() || !receiver_.keep(most_messages()))) {
    server_.settle();
    receiver_.rewind();
  }
  const int n = receiver_.receive(
      socket,
      [&](const Endpoint& from, Bytes datagram) {
        if (last != &from) address = address_of(from);  // many datagrams to a message
        last = &from;
        server_.receive(now, address, datagram, *out_, stays);
      },
      most_messages());
  uint32_t refused = n < 0 ? socket.take_errors() : 0;
  if (peer != nullptr) refused += std::exchange(peer->refused, 0);
  for (; peer != nullptr && refused != 0; --refused) {
    server_.unreachable(now, peer->address, *out_);
  }
  return static_cast<uint64_t>(std::max(n, 0)) + out_->sent() - sent;
}

void UdpServer::flush() {
  for (Peer* peer : queued_) {
    peer->queued = false;
    peer->refused += peer->batch.flush(peer->socket, nullptr);
  }
  queued_.clear();
}

void UdpServer::admit_newcomers() {
  while (!newcomers_.empty()) {
    const auto [address, job] = newcomers_.back();
    newcomers_.pop_back();
    admit(address, job);
  }
}

// Between bind and connect the kernel may put others' datagrams here: they are read like any.
void UdpServer::admit(const Address& address, uint32_t job) {
  if (const auto known = peers_.find(address); known != peers_.end()) {
    known->second->job = job;  // the port of a worker that has gone, in another's hands
    return join(*known->second);
  }
  const Endpoint endpoint = endpoint_of(address);
  auto socket = Socket::connected(endpoint, io_, &listener_);
  if (!socket) return;  // the listener serves it as well
  auto peer = std::make_unique<Peer>(
      Peer{address, endpoint, std::move(*socket), Batch(io_), job, false, 0, false});
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_, EPOLL_CTL_ADD, peer->socket.fd(), &event);
  join(*peers_.emplace(address, std::move(peer)).first->second);
}

void UdpServer::join(Peer& peer) {
  for (Group& group : groups_) std::erase(group.peers, &peer);
  auto group = std::find_if(groups_.begin() + 1, groups_.end(),
                            [&](const Group& g) { return g.job == peer.job; });
  if (group == groups_.end()) group = groups_.insert(group, Group{peer.job, {}, {}});
  group->peers.push_back(&peer);
  close_unused(*group);
}

bool UdpServer::serves(const Peer& peer) const noexcept {
  const auto jobs = server_.jobs();
  return std::any_of(jobs.begin(), jobs.end(), [&](const auto& job) {
    return job->id() == peer.job && job->members().has_one_at(peer.address);
  });
}

// Sockets of workers that have moved, and of jobs that are no more. Nothing is queued for them.
void UdpServer::close_unused(Group& group) {
  out_->forget();
  std::erase_if(group.peers, [&](const Peer* peer) {
    if (peer == nullptr || serves(*peer)) return false;
    const Address address = peer->address;
    peers_.erase(address);
    return true;
  });
}

void UdpServer::sweep() {
  swept_ = steady_now();
  for (Group& group : groups_) close_unused(group);
  const auto gone = std::remove_if(groups_.begin(), groups_.end(),
                                   [](const Group& group) { return group.peers.empty(); });
  const bool any = gone != groups_.end();
  groups_.erase(gone, groups_.end());
  if (any) give_memory_back();
}

void UdpServer::wait(Time now, const std::atomic<bool>& stop) {
  if (stop.load(std::memory_order_relaxed)) return;
  const Time next = std::min(server_.next_event(), now + 100 * kMillisecond);
  if (next <= now) return;
  std::array<epoll_event, 1> events;
  epoll_wait(epoll_, events.data(), 1, static_cast<int>((next - now) / kMillisecond + 1));
}

}  // namespace laconic::aggregation

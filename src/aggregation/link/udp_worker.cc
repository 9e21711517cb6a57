// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/udp_worker.h"

#include <netinet/in.h>
#include <poll.h>

#include <algorithm>
#include <array>
#include <bit>
#include <ctime>
#include <new>
#include <utility>

namespace laconic::aggregation {
namespace {

constexpr uint32_t kIpAndUdp4 = 28, kIpAndUdp6 = 48;

/// A link's datagrams on their way to its server.
class ToServer final : public Sender {
 public:
  ToServer(net::Batch& batch, const net::Socket& socket) : batch_(batch), socket_(socket) {}
  // A closed port may belong to a server that is restarting: the link's timeout decides.
  void send(const Address&, Bytes header, Bytes payload, std::size_t padding) override {
    (void)batch_.add(socket_, header, payload, padding);
  }
  void flush() override { (void)batch_.flush(socket_, nullptr); }

 private:
  net::Batch& batch_;
  const net::Socket& socket_;
};

/// Results that the kernel can keep while this thread is elsewhere: more would be lost. What came
/// coalesced is kept in fewer pieces.
uint32_t window_of(const net::Socket& socket, net::Io io,
                   const protocol::JobSettings& job) noexcept {
  const uint64_t datagram = protocol::kDownHeaderBytes + job.slot_bytes();
  const uint64_t kept = io == net::Io::gso ? datagram + 256 : 2 * datagram + 512;
  return static_cast<uint32_t>(std::clamp<uint64_t>(socket.receive_buffer() / kept, 16, 4096));
}

}  // namespace

Result<void> fits_path(const protocol::JobSettings& job, uint32_t mtu, bool ipv6) {
  const uint32_t front = ipv6 ? kIpAndUdp6 : kIpAndUdp4;
  const uint64_t longest = std::max(protocol::kDownHeaderBytes + job.slot_bytes(),
                                    protocol::kUpHeaderBytes + job.padded_bytes());
  if (mtu == 0 || longest + front <= mtu) return {};
  const uint64_t room = mtu - std::min<uint64_t>(mtu, front + protocol::kDownHeaderBytes);
  const uint64_t lanes = std::bit_floor(room * 8 / job.lane_bits);
  return Error{Errc::unsupported,
               "a block of " + std::to_string(job.lanes) + " in lanes of " +
                   std::to_string(job.lane_bits) + " bits needs datagrams of " +
                   std::to_string(longest + front) + " bytes, and the path allows " +
                   std::to_string(mtu),
               "block=" + std::to_string(lanes) + " fits"};
}

Time steady_now() noexcept {
  return static_cast<Time>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                               UdpWorker::Clock::now().time_since_epoch())
                               .count());
}

UdpWorker::UdpWorker(std::vector<LinkSettings> links, std::vector<Path> paths, net::Io io,
                     const std::atomic<bool>* interrupted)
    : links_(std::move(links)),
      paths_(std::move(paths)),
      receiver_(io),
      interrupted_(interrupted) {}

UdpWorker::~UdpWorker() = default;

Result<std::unique_ptr<UdpWorker>> UdpWorker::attach(const UdpSettings& settings,
                                                     Clock::time_point deadline) {
  if (settings.servers.empty()) {
    return Error{Errc::invalid_argument, "no aggregation server was given", {}};
  }
  const protocol::Reason reason = protocol::judge_settings(settings.link.job);
  if (reason != protocol::Reason::none) {
    return Error{Errc::invalid_argument, std::string(protocol::reason_text(reason)), {}};
  }
  const net::Io io = settings.io == net::Io::gso && net::has_gso() ? net::Io::gso : net::Io::mmsg;
  std::vector<LinkSettings> links;
  std::vector<Path> paths;
  for (const std::string& text : settings.servers) {
    const auto endpoint = net::parse_endpoint(text);
    if (!endpoint) return endpoint.error();
    auto socket = net::Socket::connected(*endpoint, io);
    if (!socket) return std::move(socket).error();
    const bool ipv6 = endpoint->address.ss_family == AF_INET6;
    if (auto r = fits_path(settings.link.job, socket->mtu(), ipv6); !r) {
      Error error = std::move(r).error();
      error.message = "aggregation server " + text + ": " + error.message;
      return error;
    }
    links.push_back(settings.link);
    links.back().server = text;
    links.back().window = window_of(*socket, io, settings.link.job);
    paths.push_back({std::move(*socket), net::Batch(io), *endpoint, io});
  }
  std::unique_ptr<UdpWorker> worker(
      new UdpWorker(std::move(links), std::move(paths), io, settings.interrupted));
  worker->links_.connect(steady_now());
  const End joined = worker->drive(deadline, [](const Link& l) { return l.joined(); });
  if (!joined.ok()) return worker->error_of(joined, "not all workers of the job have joined");
  return worker;
}

Result<void> UdpWorker::run(std::span<const Outgoing> out, std::span<Incoming> in,
                            Clock::time_point deadline) {
  if (const Link* link = links_.failed(); link != nullptr) return link->error();
  links_.begin(steady_now(), out, in);
  const End end = drive(deadline, [](const Link& l) { return l.done(); });
  if (!end.ok()) return error_of(end, "the exchange did not complete");
  return {};
}

bool UdpWorker::keep() noexcept {
  receive();
  const Time now = steady_now();
  for (Link& link : links_.links()) link.keep(now);
  send_due(now);
  return std::ranges::any_of(links_.links(), [](const Link& l) { return l.waits(); });
}

void UdpWorker::close(Clock::time_point deadline) noexcept {
  links_.close(steady_now());
  (void)drive(deadline, [](const Link& l) { return l.closed(); });
}

int UdpWorker::blamed() const noexcept {
  const Link* link = links_.failed();
  return link == nullptr ? -1 : link->blamed();
}

template <class Done>
UdpWorker::End UdpWorker::drive(Clock::time_point deadline, Done done) noexcept {
  const auto last = static_cast<Time>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(deadline.time_since_epoch()).count());
  for (;;) {
    receive();
    const Time now = steady_now();
    send_due(now);
    if (const Link* link = links_.failed(); link != nullptr) return {link, false};
    const auto behind = std::ranges::find_if_not(links_.links(), done);
    if (behind == links_.links().end()) return {nullptr, false};
    if (interrupted_ != nullptr && interrupted_->load(std::memory_order_relaxed))
      return {nullptr, true};
    if (now >= last) return {&*behind, false};
    wait(now, std::min(last, links_.wake(now)));
  }
}

Error UdpWorker::error_of(const End& end, const char* what) {
  if (end.interrupted) return {Errc::engine_failed, "interrupted", {}};
  return end.at->failed() ? end.at->error() : end.at->late(what);
}

// The last acknowledgement of an exchange is sent here, too, and not waited for.
void UdpWorker::send_due(Time now) noexcept {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    ToServer sender(paths_[i].batch, paths_[i].socket);
    links_.links()[i].send(now, sender);
    sender.flush();
  }
}

void UdpWorker::wait(Time now, Time until) noexcept {
  if (until <= now) return;
  std::array<pollfd, 32> polled;
  const std::size_t count = std::min(paths_.size(), polled.size() / 2);
  // A descriptor below 0 is passed over.
  for (std::size_t i = 0; i < count; ++i) {
    polled[2 * i] = {paths_[i].socket.fd(), POLLIN, 0};
    polled[2 * i + 1] = {paths_[i].listener.fd(), POLLIN, 0};
  }
  // Beyond sixteen servers the others are looked at every millisecond.
  const Time most = paths_.size() > count ? kMillisecond : 100 * kMillisecond;
  const Time time = std::min(until - now, most);
  const timespec spec{static_cast<time_t>(time / 1000000000U),
                      static_cast<long>(time % 1000000000U)};
  ppoll(polled.data(), 2 * count, &spec, nullptr);
}

void UdpWorker::receive() noexcept {
  for (std::size_t i = 0; i < paths_.size(); ++i) {
    Link& link = links_.links()[i];
    Path& path = paths_[i];
    const Time now = steady_now();
    const int n = receiver_.receive(
        path.socket, [&](const net::Endpoint&, Bytes datagram) { link.receive(now, datagram); });
    if (n < 0) path.socket.take_errors();
    follow_group(path, link.group());
    if (!path.listener.is_open()) continue;
    receiver_.receive(path.listener, [&](const net::Endpoint& from, Bytes datagram) {
      if (net::same_address(from, path.server)) link.receive_from_group(now, datagram);
    });
  }
}

// If it cannot listen, or memory for the reason is exhausted, the link notices and results come by
// unicast.
void UdpWorker::follow_group(Path& path, const protocol::Group& group) noexcept {
  if (group == path.group) return;
  path.group = group;
  path.listener = net::Socket();
  if (!group.exists()) return;
  try {
    const auto local = path.socket.local();
    if (!local) return;
    auto listener = net::Socket::in_group(net::endpoint_of(group.address, group.port), path.server,
                                          *local, path.io);
    if (listener) path.listener = std::move(*listener);
  } catch (const std::bad_alloc&) {
  }
}

}  // namespace laconic::aggregation

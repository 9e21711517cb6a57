// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "net/socket.h"

#include <ifaddrs.h>
#include <linux/errqueue.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

// Constants of Linux 4.18 and 5.0 that older headers lack.
#ifndef UDP_SEGMENT
#define UDP_SEGMENT 103
#endif
#ifndef UDP_GRO
#define UDP_GRO 104
#endif
// A constant of Linux 4.20.
#ifndef IPV6_MULTICAST_ALL
#define IPV6_MULTICAST_ALL 29
#endif

namespace laconic::net {
namespace {

constexpr int kBuffer = 8 << 20;  // what the kernel grants is less without privileges
constexpr std::size_t kCoalesced = 64 << 10;
constexpr std::size_t kLongest = 33 << 10;  // a result of 8,192 lanes of 32 bits
constexpr std::size_t kLine = 64;           // of a cache; rooms are multiples of it
constexpr std::size_t kMostBytes = 65000;
constexpr int kErrorsAtOnce = 64;
constexpr std::array<uint8_t, (16 << 10) + 8> kZeros{};  // a result of 8,192 lanes of 16 bits

Error system_error(std::string what, int error) {
  return {Errc::engine_failed, std::move(what) + ": " + std::strerror(error), {}};
}

template <class T>
bool set(int fd, int level, int name, T value) noexcept {
  return setsockopt(fd, level, name, &value, sizeof(value)) == 0;
}

void enlarge(int fd, int name, int forced) noexcept {
  if (!set(fd, SOL_SOCKET, forced, kBuffer)) set(fd, SOL_SOCKET, name, kBuffer);
}

sockaddr_in as_four(const Endpoint& e) noexcept {
  sockaddr_in in{};
  std::memcpy(&in, &e.address, sizeof(in));
  return in;
}

sockaddr_in6 as_six(const Endpoint& e) noexcept {
  sockaddr_in6 in{};
  std::memcpy(&in, &e.address, sizeof(in));
  return in;
}

bool same_host(const Endpoint& a, const Endpoint& b) noexcept {
  if (a.address.ss_family != b.address.ss_family) return false;
  if (a.address.ss_family == AF_INET)
    return as_four(a).sin_addr.s_addr == as_four(b).sin_addr.s_addr;
  const sockaddr_in6 one = as_six(a), other = as_six(b);
  return std::memcmp(&one.sin6_addr, &other.sin6_addr, sizeof(one.sin6_addr)) == 0;
}

bool is_multicast(const Endpoint& e) noexcept {
  if (e.address.ss_family == AF_INET) return IN_MULTICAST(ntohl(as_four(e).sin_addr.s_addr));
  const sockaddr_in6 in = as_six(e);
  return IN6_IS_ADDR_MULTICAST(&in.sin6_addr);
}

/// Index of the interface with this address; 0: none.
unsigned interface_of(const Endpoint& local) noexcept {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return 0;
  unsigned index = 0;
  for (const ifaddrs* i = all; i != nullptr && index == 0; i = i->ifa_next) {
    if (i->ifa_addr == nullptr || i->ifa_addr->sa_family != local.address.ss_family) continue;
    Endpoint one;
    one.size = local.address.ss_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&one.address, i->ifa_addr, one.size);
    if (same_host(one, local)) index = if_nametoindex(i->ifa_name);
  }
  freeifaddrs(all);
  return index;
}

/// Link-local groups need one.
Endpoint on_interface(Endpoint endpoint, unsigned index) noexcept {
  if (endpoint.address.ss_family != AF_INET6) return endpoint;
  sockaddr_in6 in = as_six(endpoint);
  in.sin6_scope_id = index;
  std::memcpy(&endpoint.address, &in, sizeof(in));
  return endpoint;
}

/// True if the host itself reports that the port is closed. A missing route, a narrow path and a
/// filter have other errors.
bool is_closed_port(msghdr& message) noexcept {
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c != nullptr; c = CMSG_NXTHDR(&message, c)) {
    const bool four = c->cmsg_level == IPPROTO_IP && c->cmsg_type == IP_RECVERR;
    const bool six = c->cmsg_level == IPPROTO_IPV6 && c->cmsg_type == IPV6_RECVERR;
    if (!four && !six) continue;
    sock_extended_err error{};
    std::memcpy(&error, CMSG_DATA(c), sizeof(error));
    return error.ee_errno == ECONNREFUSED;
  }
  return false;
}

/// Not an error that came back of what was sent before.
bool is_of_this_call(int error) noexcept {
  return error == EAGAIN || error == ENOBUFS || error == EINTR;
}

void wait_for_room(int fd) noexcept {
  pollfd p{fd, POLLOUT, 0};
  poll(&p, 1, 10);
}

}  // namespace

Result<Endpoint> parse_endpoint(std::string_view text) {
  const auto bad = [&](std::string why) {
    return Error{Errc::invalid_argument, "address '" + std::string(text) + "': " + std::move(why),
                 "an address is HOST:PORT, for example 10.0.0.9:7420 or [::1]:7420"};
  };
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon + 1 == text.size())
    return bad("the port is missing");
  std::string host(text.substr(0, colon)), port(text.substr(colon + 1));
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  }
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (!digits || port.size() > 5 || std::stoi(port) > 65535)
    return bad("the port is not a number from 0 to 65535");
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (const int e = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); e != 0) {
    return bad(gai_strerror(e));
  }
  Endpoint endpoint;
  std::memcpy(&endpoint.address, found->ai_addr, found->ai_addrlen);
  endpoint.size = found->ai_addrlen;
  freeaddrinfo(found);
  return endpoint;
}

std::string endpoint_text(const Endpoint& endpoint) {
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> port{};
  const int e =
      getnameinfo(reinterpret_cast<const sockaddr*>(&endpoint.address), endpoint.size, host.data(),
                  host.size(), port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (e != 0) return "unknown address";
  const bool six = endpoint.address.ss_family == AF_INET6;
  std::string text = six ? "[" : "";
  text.append(host.data()).append(six ? "]:" : ":").append(port.data());
  return text;
}

bool is_loopback(const Endpoint& endpoint) noexcept {
  if (endpoint.address.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &endpoint.address, sizeof(in));
    return (ntohl(in.sin_addr.s_addr) >> 24U) == 127;
  }
  sockaddr_in6 in{};
  std::memcpy(&in, &endpoint.address, sizeof(in));
  return IN6_IS_ADDR_LOOPBACK(&in.sin6_addr);
}

bool is_wildcard(const Endpoint& endpoint) noexcept {
  if (endpoint.address.ss_family == AF_INET) return as_four(endpoint).sin_addr.s_addr == 0;
  const sockaddr_in6 in = as_six(endpoint);
  return IN6_IS_ADDR_UNSPECIFIED(&in.sin6_addr);
}

bool same_address(const Endpoint& a, const Endpoint& b) noexcept {
  return same_host(a, b) && port_of(a) == port_of(b);
}

Result<Endpoint> parse_group(std::string_view text, const Endpoint& server) {
  const bool bare = text.find(':') == std::string_view::npos || text.ends_with(']');
  std::string whole(text);
  if (bare) whole.append(":0");
  auto endpoint = parse_endpoint(whole);
  if (!endpoint) return std::move(endpoint).error();
  const uint16_t port = port_of(bare ? server : *endpoint);
  std::string what = "multicast group ";
  what.append(text);
  if (!is_multicast(*endpoint) || port == 0) {
    return Error{Errc::invalid_argument, what.append(" is not a multicast address"),
                 "for example 239.7.4.2, or 239.7.4.2:7421 with a port of its own"};
  }
  if (endpoint->address.ss_family != server.address.ss_family) {
    return Error{Errc::invalid_argument,
                 what.append(" is not of the family of ").append(endpoint_text(server)),
                 {}};
  }
  return endpoint_of(ip_of(*endpoint), port);
}

IpAddress ip_of(const Endpoint& endpoint) noexcept {
  IpAddress address{};
  if (endpoint.address.ss_family == AF_INET) {
    address[10] = address[11] = 0xFF;
    const sockaddr_in in = as_four(endpoint);
    std::memcpy(address.data() + 12, &in.sin_addr, 4);
  } else {
    const sockaddr_in6 in = as_six(endpoint);
    std::memcpy(address.data(), &in.sin6_addr, 16);
  }
  return address;
}

uint16_t port_of(const Endpoint& endpoint) noexcept {
  // The port has the same place in both.
  return ntohs(as_four(endpoint).sin_port);
}

Endpoint endpoint_of(const IpAddress& address, uint16_t port) noexcept {
  Endpoint e;
  in6_addr six_address;
  std::memcpy(&six_address, address.data(), sizeof(six_address));
  if (IN6_IS_ADDR_V4MAPPED(&six_address)) {
    sockaddr_in in{};
    in.sin_family = AF_INET;
    in.sin_port = htons(port);
    std::memcpy(&in.sin_addr, address.data() + 12, 4);
    std::memcpy(&e.address, &in, sizeof(in));
    e.size = sizeof(in);
    return e;
  }
  sockaddr_in6 in{};
  in.sin6_family = AF_INET6;
  in.sin6_port = htons(port);
  in.sin6_addr = six_address;
  std::memcpy(&e.address, &in, sizeof(in));
  e.size = sizeof(in);
  return e;
}

Socket::~Socket() {
  if (fd_ >= 0) ::close(fd_);
}
Socket::Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
Socket& Socket::operator=(Socket&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Result<Socket> Socket::open(int family, Io io) {
  Socket s;
  s.fd_ = ::socket(family, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (s.fd_ < 0) return system_error("UDP socket", errno);
  enlarge(s.fd_, SO_RCVBUF, SO_RCVBUFFORCE);
  enlarge(s.fd_, SO_SNDBUF, SO_SNDBUFFORCE);
  // A closed port is an error of the socket, also after the first answer. Nothing is fragmented,
  // and a path's reported MTU does not hold datagrams back.
  if (family == AF_INET) {
    set(s.fd_, IPPROTO_IP, IP_RECVERR, 1);
    set(s.fd_, IPPROTO_IP, IP_MTU_DISCOVER, IP_PMTUDISC_PROBE);
  } else {
    set(s.fd_, IPPROTO_IPV6, IPV6_RECVERR, 1);
    set(s.fd_, IPPROTO_IPV6, IPV6_MTU_DISCOVER, IPV6_PMTUDISC_PROBE);
  }
  if (io == Io::gso && !set(s.fd_, IPPROTO_UDP, UDP_GRO, 1)) {
    return system_error("UDP_GRO", errno);
  }
  return s;
}

Result<Socket> Socket::bound(const Endpoint& local, Io io) {
  auto s = open(local.address.ss_family, io);
  if (!s) return s;
  if (auto done = s->bind_to(local); !done) return std::move(done).error();
  return s;
}

Result<void> Socket::bind_to(const Endpoint& local) const {
  if (::bind(fd_, reinterpret_cast<const sockaddr*>(&local.address), local.size) == 0) return {};
  const int why = errno;
  Error error = system_error("bind to " + endpoint_text(local), why);
  if (why == EADDRINUSE) error.hint = "another program or server uses this port";
  return error;
}

// A port is shared if both sockets want it. The other one does for this moment alone: else any
// program could have the port, too.
Result<Socket> Socket::at_port_of(const Socket& other, Io io) {
  const auto local = other.local();
  if (!local) return local.error();
  auto s = open(local->address.ss_family, io);
  if (!s) return s;
  set(s->fd_, SOL_SOCKET, SO_REUSEADDR, 1);
  set(other.fd_, SOL_SOCKET, SO_REUSEADDR, 1);
  auto done = s->bind_to(*local);
  set(other.fd_, SOL_SOCKET, SO_REUSEADDR, 0);
  if (!done) return std::move(done).error();
  return s;
}

Result<Socket> Socket::connected(const Endpoint& remote, Io io, const Socket* beside) {
  auto s = beside != nullptr ? at_port_of(*beside, io) : open(remote.address.ss_family, io);
  if (!s) return s;
  if (::connect(s->fd_, reinterpret_cast<const sockaddr*>(&remote.address), remote.size) != 0) {
    return system_error("connect to " + endpoint_text(remote), errno);
  }
  return s;
}

// IPv4 names an interface by its address; only IPv6 takes looking for its number, by netlink.
Result<Socket> Socket::to_group(const Endpoint& group, const Socket& beside, Io io) {
  auto s = at_port_of(beside, io);
  if (!s) return s;
  const auto bound_to = s->local();
  if (!bound_to) return bound_to.error();
  const Endpoint& local = *bound_to;
  const bool four = local.address.ss_family == AF_INET;
  const unsigned index = four ? 0 : interface_of(local);
  const Endpoint to = on_interface(group, index);
  const bool known = four || index != 0;
  const bool ok =
      known && (four ? set(s->fd_, IPPROTO_IP, IP_MULTICAST_IF, as_four(local).sin_addr)
                     : set(s->fd_, IPPROTO_IPV6, IPV6_MULTICAST_IF, static_cast<int>(index)));
  if (!ok || ::connect(s->fd_, reinterpret_cast<const sockaddr*>(&to.address), to.size) != 0) {
    return system_error("multicast to " + endpoint_text(to) + " from " + endpoint_text(local),
                        known ? errno : EADDRNOTAVAIL);
  }
  return s;
}

Result<Socket> Socket::in_group(const Endpoint& group, const Endpoint& source,
                                const Endpoint& local, Io io) {
  const bool four = local.address.ss_family == AF_INET;
  const unsigned index = four ? 0 : interface_of(local);
  const Endpoint to = on_interface(group, index);
  auto s = open(to.address.ss_family, io);
  if (!s) return s;
  set(s->fd_, SOL_SOCKET, SO_REUSEADDR, 1);
  if (auto done = s->bind_to(to); !done) return std::move(done).error();
  const bool known = four || index != 0;
  bool ok = false;
  // ..._ALL: else the socket would get what others of this machine have joined.
  if (four) {
    ip_mreq_source request{};
    request.imr_multiaddr = as_four(to).sin_addr;
    request.imr_sourceaddr = as_four(source).sin_addr;
    request.imr_interface = as_four(local).sin_addr;
    ok = set(s->fd_, IPPROTO_IP, IP_MULTICAST_ALL, 0) &&
         set(s->fd_, IPPROTO_IP, IP_ADD_SOURCE_MEMBERSHIP, request);
  } else if (known) {
    group_source_req request{};
    request.gsr_interface = index;
    std::memcpy(&request.gsr_group, &to.address, to.size);
    std::memcpy(&request.gsr_source, &source.address, source.size);
    ok = set(s->fd_, IPPROTO_IPV6, IPV6_MULTICAST_ALL, 0) &&
         set(s->fd_, IPPROTO_IPV6, MCAST_JOIN_SOURCE_GROUP, request);
  }
  if (!ok) {
    return system_error("joining " + endpoint_text(to), known ? errno : EADDRNOTAVAIL);
  }
  return s;
}

Result<Endpoint> Socket::local() const {
  Endpoint endpoint;
  endpoint.size = sizeof(endpoint.address);
  if (getsockname(fd_, reinterpret_cast<sockaddr*>(&endpoint.address), &endpoint.size) != 0) {
    return system_error("getsockname", errno);
  }
  return endpoint;
}

uint64_t Socket::receive_buffer() const noexcept {
  int value = 0;
  socklen_t size = sizeof(value);
  if (getsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &value, &size) != 0 || value < 0) return 0;
  return static_cast<uint64_t>(value);
}

uint32_t Socket::mtu() const noexcept {
  int value = 0;
  socklen_t size = sizeof(value);
  if (getsockopt(fd_, IPPROTO_IP, IP_MTU, &value, &size) == 0) return static_cast<uint32_t>(value);
  size = sizeof(value);
  if (getsockopt(fd_, IPPROTO_IPV6, IPV6_MTU, &value, &size) == 0) {
    return static_cast<uint32_t>(value);
  }
  return 0;
}

uint32_t Socket::take_errors() const noexcept {
  uint32_t refused = 0;
  std::array<uint8_t, 64> data;
  alignas(cmsghdr) std::array<uint8_t, 512> control;
  for (int i = 0; i < kErrorsAtOnce; ++i) {
    iovec piece{data.data(), data.size()};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(fd_, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) break;
    if (is_closed_port(message)) ++refused;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd_, SOL_SOCKET, SO_ERROR, &error, &size);  // takes it
  return refused;
}

bool has_gso() noexcept {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return false;
  const bool both = set(fd, IPPROTO_UDP, UDP_GRO, 1) && set(fd, IPPROTO_UDP, UDP_SEGMENT, 1024);
  ::close(fd);
  return both;
}

// ---- sending ----

Batch::Batch(Io io) noexcept : io_(io) {}

uint32_t Batch::add(const Socket& socket, Bytes header, Bytes payload, std::size_t padding,
                    const Endpoint* to) noexcept {
  if (push(header, payload, padding)) return 0;
  const uint32_t refused = flush(socket, to);
  push(header, payload, padding);
  return refused;
}

bool Batch::push(Bytes header, Bytes payload, std::size_t padding) noexcept {
  const std::size_t size = header.size() + payload.size() + padding;
  const bool is_long = header.size() > headers_[0].size();
  if (count_ != 0) {
    const bool fits = count_ < kMost && bytes_ + size <= kMostBytes && !is_long && !last_is_short_;
    if (!fits || (io_ == Io::gso && size > segment_)) return false;
  }
  last_is_short_ = is_long || (io_ == Io::gso && count_ != 0 && size < segment_);
  if (count_ == 0) segment_ = size;
  std::copy(header.begin(), header.end(), is_long ? long_header_.data() : headers_[count_].data());
  header_sizes_[count_] = static_cast<uint16_t>(header.size());
  paddings_[count_] = static_cast<uint16_t>(padding);
  payloads_[count_++] = payload;
  bytes_ += size;
  return true;
}

uint32_t Batch::flush(const Socket& socket, const Endpoint* to) noexcept {
  int error = 0;
  if (count_ != 0) {
    if (io_ == Io::mmsg || count_ == 1 || !send_segmented(socket, to, &error)) {
      send_each(socket, to, &error);
    }
  }
  count_ = bytes_ = segment_ = 0;
  last_is_short_ = false;
  // Those left would wake the socket's poll again and again.
  return error == 0 ? 0 : socket.take_errors();
}

std::size_t Batch::pieces_of(std::size_t index, iovec* pieces) const noexcept {
  const bool is_long = header_sizes_[index] > headers_[index].size();
  const uint8_t* header = is_long ? long_header_.data() : headers_[index].data();
  const Bytes parts[kPieces] = {
      {header, header_sizes_[index]}, payloads_[index], {kZeros.data(), paddings_[index]}};
  std::size_t count = 0;
  for (const Bytes part : parts) {
    if (!part.empty()) pieces[count++] = {const_cast<uint8_t*>(part.data()), part.size()};
  }
  return count;
}

std::size_t Batch::pieces_of_all(iovec* pieces) const noexcept {
  std::size_t n = 0;
  for (std::size_t i = 0; i < count_; ++i) {
    const Bytes whole = payloads_[i];
    const bool is_whole = header_sizes_[i] == 0 && paddings_[i] == 0;
    if (n != 0 && is_whole &&
        static_cast<uint8_t*>(pieces[n - 1].iov_base) + pieces[n - 1].iov_len == whole.data()) {
      pieces[n - 1].iov_len += whole.size();
    } else {
      n += pieces_of(i, &pieces[n]);
    }
  }
  return n;
}

// One message that the kernel cuts. False: it would not, for instance because the device cannot
// take checksums off our hands.
bool Batch::send_segmented(const Socket& socket, const Endpoint* to, int* error) const noexcept {
  std::array<iovec, kPieces * kMost> pieces;
  const std::size_t n = pieces_of_all(pieces.data());
  alignas(cmsghdr) std::array<uint8_t, CMSG_SPACE(sizeof(uint16_t))> control{};
  msghdr message{};
  if (to != nullptr) {
    message.msg_name = const_cast<sockaddr_storage*>(&to->address);
    message.msg_namelen = to->size;
  }
  message.msg_iov = pieces.data();
  message.msg_iovlen = n;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* c = CMSG_FIRSTHDR(&message);
  c->cmsg_level = IPPROTO_UDP;
  c->cmsg_type = UDP_SEGMENT;
  c->cmsg_len = CMSG_LEN(sizeof(uint16_t));
  const auto segment = static_cast<uint16_t>(segment_);
  std::memcpy(CMSG_DATA(c), &segment, sizeof(segment));
  for (int tries = 0; tries < 3; ++tries) {
    if (sendmsg(socket.fd(), &message, 0) >= 0) return true;
    if (!is_of_this_call(errno)) *error = errno;
    if (errno == ECONNREFUSED) continue;  // of an earlier one: it was taken by this call
    if (errno != EAGAIN && errno != ENOBUFS && errno != EINTR) return false;
    wait_for_room(socket.fd());
  }
  return true;  // lost, as datagrams are
}

void Batch::send_each(const Socket& socket, const Endpoint* to, int* error) const noexcept {
  std::array<iovec, kPieces * kMost> pieces;
  std::array<mmsghdr, kMost> messages{};
  for (std::size_t i = 0; i < count_; ++i) {
    msghdr& m = messages[i].msg_hdr;
    m.msg_iov = &pieces[kPieces * i];
    m.msg_iovlen = pieces_of(i, m.msg_iov);
    if (to != nullptr) {
      m.msg_name = const_cast<sockaddr_storage*>(&to->address);
      m.msg_namelen = to->size;
    }
  }
  std::size_t sent = 0;
  for (int tries = 0; sent < count_ && tries < 3;) {
    const int n = sendmmsg(socket.fd(), &messages[sent], static_cast<unsigned>(count_ - sent), 0);
    if (n > 0) {
      sent += static_cast<std::size_t>(n);
      continue;
    }
    if (!is_of_this_call(errno)) *error = errno;
    ++tries;
    if (errno == EAGAIN || errno == ENOBUFS) wait_for_room(socket.fd());
  }
}

// ---- receiving ----

struct Receiver::Messages {
  explicit Messages(Io io)
      : count(io == Io::gso ? 16 : 64),
        room(io == Io::gso ? kCoalesced : kLongest),
        memory(count * room + kLine),
        headers(count),
        pieces(count),
        from(count),
        controls(count),
        segments(count) {}
  struct Control {
    alignas(cmsghdr) std::array<uint8_t, 256> bytes;
  };
  /// Base of `count` buffers, at the start of a cache line.
  [[nodiscard]] uint8_t* base() noexcept {
    return memory.data() + (kLine - reinterpret_cast<uintptr_t>(memory.data()) % kLine) % kLine;
  }
  [[nodiscard]] std::size_t size() const noexcept { return count * room; }
  std::size_t count, room;
  std::vector<uint8_t> memory;
  std::vector<mmsghdr> headers;
  std::vector<iovec> pieces;
  std::vector<Endpoint> from;
  std::vector<Control> controls;
  std::vector<std::size_t> segments;
};

void Receiver::Free::operator()(Messages* m) const noexcept { delete m; }
Receiver::Receiver(Io io) : messages_(new Messages(io)) {}

Bytes Receiver::message(int index) const noexcept {
  const auto i = static_cast<std::size_t>(index);
  return {static_cast<const uint8_t*>(messages_->pieces[i].iov_base),
          messages_->headers[i].msg_len};
}
std::size_t Receiver::segment_of(int index) const noexcept {
  return messages_->segments[static_cast<std::size_t>(index)];
}
const Endpoint& Receiver::from(int index) const noexcept {
  return messages_->from[static_cast<std::size_t>(index)];
}

bool Receiver::keep(std::size_t most) noexcept {
  const Messages& m = *messages_;
  const std::size_t next = (end_ + kLine - 1) / kLine * kLine;
  if (next + std::min(m.count, most) * m.room > m.size()) return false;
  begin_ = next;
  return true;
}

int Receiver::fill(const Socket& socket, std::size_t most) noexcept {
  Messages& m = *messages_;
  const std::size_t count = std::min({m.count, most, (m.size() - begin_) / m.room});
  end_ = begin_;
  for (std::size_t i = 0; i < count; ++i) {
    m.pieces[i] = {m.base() + begin_ + i * m.room, m.room};
    msghdr& h = m.headers[i].msg_hdr;
    h = {};
    h.msg_name = &m.from[i].address;
    h.msg_namelen = sizeof(m.from[i].address);
    h.msg_iov = &m.pieces[i];
    h.msg_iovlen = 1;
    h.msg_control = m.controls[i].bytes.data();
    h.msg_controllen = m.controls[i].bytes.size();
  }
  const int n =
      recvmmsg(socket.fd(), m.headers.data(), static_cast<unsigned>(count), MSG_DONTWAIT, nullptr);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? 0 : -1;
  for (std::size_t i = 0; i < static_cast<std::size_t>(n); ++i) {
    msghdr& h = m.headers[i].msg_hdr;
    end_ = begin_ + i * m.room + m.headers[i].msg_len;
    m.from[i].size = h.msg_namelen;
    m.segments[i] = 0;
    for (cmsghdr* c = CMSG_FIRSTHDR(&h); c != nullptr; c = CMSG_NXTHDR(&h, c)) {
      if (c->cmsg_level != IPPROTO_UDP || c->cmsg_type != UDP_GRO) continue;
      int segment = 0;
      std::memcpy(&segment, CMSG_DATA(c), sizeof(segment));
      m.segments[i] = segment > 0 ? static_cast<std::size_t>(segment) : 0;
    }
  }
  return n;
}

}  // namespace laconic::net

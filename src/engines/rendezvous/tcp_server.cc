// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/rendezvous/tcp_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <vector>

namespace laconic::rendezvous::detail {

Result<std::unique_ptr<Server>> Server::listen(const std::string& host, const std::string& port,
                                               uint32_t world, std::chrono::milliseconds timeout) {
  auto addresses = resolve(host, port);
  if (!addresses) return std::move(addresses).error();
  int error = EADDRNOTAVAIL;
  for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
    Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const int on = 1;
    if (fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
        ::bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(fd.get(), 128) == 0) {
      std::unique_ptr<Server> server(new Server(std::move(fd), world, timeout));
      server->stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
      if (!server->stop_) break;
      server->thread_ = std::thread([s = server.get()] { s->serve(); });
      return server;
    }
    error = errno;
  }
  return Error{Errc::engine_failed,
               "rank 0 cannot listen on " + host + ":" + port + ": " + reason(error),
               "use an address of rank 0's host and a free port"};
}

Server::~Server() {
  const uint64_t one = 1;
  if (thread_.joinable() && ::write(stop_.get(), &one, sizeof one) == sizeof one) thread_.join();
}

void Server::serve() noexcept {
  for (;;) {
    try {
      if (!turn()) return;
    } catch (const std::bad_alloc&) {
      peers_.clear();  // closes the connections
    }
  }
}

bool Server::turn() {
  // Wait until all ranks have received the failure of a meeting.
  if (stopping_ && (held_.count(std::string(kMeeting)) == 0 || Clock::now() >= end_ ||
                    (seen_ >= world_ && peers_.empty())))
    return false;
  std::vector<pollfd> fds{{stopping_ ? -1 : stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  Deadline next = stopping_ ? end_ : Clock::now() + std::chrono::minutes(1);
  for (const Peer& peer : peers_) {
    // A peer that does not read answers may send no more requests.
    fds.push_back({peer.fd.get(), static_cast<int16_t>(peer.out.empty() ? POLLIN : POLLOUT), 0});
    if (peer.waits) next = std::min(next, peer.until);
  }
  ::poll(fds.data(), fds.size(), milliseconds_to(next));
  if (fds[0].revents != 0 && !stopping_) {
    stopping_ = true;
    end_ = Clock::now() + kLinger;
  }
  size_t i = 2;
  for (Peer& peer : peers_) {
    if (fds[i++].revents != 0) serve(peer);
    if (peer.waits && Clock::now() >= peer.until) peer.gone = true;
  }
  if (fds[1].revents != 0) accept();
  peers_.remove_if([](const Peer& peer) { return peer.gone; });
  return true;
}

void Server::accept() {
  Fd fd(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd || peers_.size() >= 2 * world_ + 32) return;
  ++seen_;
  const int on = 1;
  ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  Peer peer;
  peer.fd = std::move(fd);
  peer.until = Clock::now() + timeout_;
  peers_.push_back(std::move(peer));
  for (const auto& [key, value] : held_) {
    if (key.starts_with(kNews)) peers_.back().out += encode(Kind::news, key, value);
  }
  flush(peers_.back());
}

void Server::serve(Peer& peer) {
  flush(peer);
  if (!peer.out.empty() || peer.gone) return;
  char bytes[1 << 16];
  const ssize_t n = ::recv(peer.fd.get(), bytes, sizeof bytes, 0);
  if (n <= 0) {
    peer.gone = n == 0 || (errno != EAGAIN && errno != EINTR);
    return;
  }
  if (peer.in.empty() && !peer.waits) {
    peer.waits = true;
    peer.until = Clock::now() + timeout_;
  }
  peer.in.append(bytes, static_cast<size_t>(n));
  Frame frame;
  Taken taken = Taken::nothing;
  while (!peer.gone && (taken = take(&peer.in, &frame)) == Taken::frame) {
    answer(peer, frame);
    peer.until = Clock::now() + timeout_;
    if (peer.out.size() > 2 * kMaxValue) peer.gone = true;
  }
  peer.gone = peer.gone || taken == Taken::nonsense;
  peer.waits = !peer.in.empty();
  flush(peer);
}

void Server::answer(Peer& peer, const Frame& frame) {
  if (frame.kind != Kind::put && frame.kind != Kind::get) {
    peer.gone = true;
    return;
  }
  auto at = held_.find(frame.key);
  if (frame.kind == Kind::put && at == held_.end()) {
    const bool news = frame.key.starts_with(kNews);
    const size_t bytes = frame.key.size() + frame.value.size();
    if (held_.size() >= kMaxKeys || held_bytes_ + bytes > kMaxHeld ||
        (news && news_keys_ >= kMaxNewsKeys)) {
      peer.out += encode(Kind::refused, frame.key, {});
      return;
    }
    at = held_.emplace(frame.key, frame.value).first;
    held_bytes_ += bytes;
    news_keys_ += news ? 1 : 0;
    if (news) spread(peer, frame);
  }
  peer.out += encode(Kind::answer, frame.key, at == held_.end() ? std::string() : at->second);
}

void Server::spread(const Peer& from, const Frame& frame) {
  for (Peer& peer : peers_) {
    if (&peer == &from || peer.gone) continue;
    peer.out += encode(Kind::news, frame.key, frame.value);
    flush(peer);
  }
}

void Server::flush(Peer& peer) {
  while (!peer.out.empty() && !peer.gone) {
    const ssize_t n = ::send(peer.fd.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      peer.gone = true;
      return;
    }
    peer.out.erase(0, static_cast<size_t>(n));
  }
}

}  // namespace laconic::rendezvous::detail

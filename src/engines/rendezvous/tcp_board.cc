// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/rendezvous/tcp_board.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

namespace laconic::rendezvous {

Result<std::unique_ptr<Board>> TcpBoard::open(const std::string& host, const std::string& port,
                                              uint32_t rank, uint32_t world, Deadline deadline) {
  std::unique_ptr<TcpBoard> board(new TcpBoard(host + ":" + port));
  if (rank == 0) {
    auto server = detail::Server::listen(host, port, world);
    if (!server) return std::move(server).error();
    board->server_ = *std::move(server);
  }
  if (auto done = board->connect(host, port, deadline); !done) return done.error();
  return std::unique_ptr<Board>(std::move(board));
}

Result<std::string> TcpBoard::put(const std::string& key, const std::string& value,
                                  Deadline deadline) {
  if (!is_key(key) || !is_value(key, value)) return Errc::invalid_argument;
  return ask(detail::Kind::put, key, value, deadline);
}

Result<std::string> TcpBoard::get(const std::string& key, Deadline deadline) {
  if (!is_key(key)) return Errc::invalid_argument;
  return ask(detail::Kind::get, key, {}, deadline);
}

Result<void> TcpBoard::connect(const std::string& host, const std::string& port,
                               Deadline deadline) {
  int error = ECONNREFUSED;
  for (;;) {
    auto addresses = detail::resolve(host, port);
    if (!addresses) return std::move(addresses).error();
    for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
      Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      if (!fd) continue;
      int bad = ::connect(fd.get(), at->ai_addr, at->ai_addrlen) == 0 ? 0 : errno;
      if (bad == EINPROGRESS) {
        pollfd waiting{fd.get(), POLLOUT, 0};
        socklen_t size = sizeof bad;
        bad = ::poll(&waiting, 1, std::min(detail::milliseconds_to(deadline), 1000)) <= 0
                  ? ETIMEDOUT
              : ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &bad, &size) != 0 ? errno
                                                                               : bad;
      }
      if (bad == 0) {
        const int on = 1;
        ::setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        fd_ = std::move(fd);
        return {};
      }
      error = bad;
    }
    if (Clock::now() >= deadline) {
      return Error{Errc::timed_out,
                   "rank 0 is not listening on " + where_ + ": " + detail::reason(error),
                   "start rank 0, and check that every rank can reach its host and port"};
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

Result<std::string> TcpBoard::ask(detail::Kind kind, const std::string& key,
                                  const std::string& value, Deadline deadline) {
  const std::lock_guard lock(mutex_);
  if (fd_) {
    std::string out = detail::encode(kind, key, value);
    detail::Frame frame;
    while (fd_) {
      if (!send(&out)) break;
      const detail::Taken taken = detail::take(&in_, &frame);
      if (taken == detail::Taken::nonsense) {
        lose(Errc::peer_failed, "does not speak this protocol");
      } else if (taken == detail::Taken::nothing) {
        receive(out.empty() ? POLLIN : POLLIN | POLLOUT, deadline);
      } else if (frame.kind == detail::Kind::news) {
        news_.emplace(frame.key, frame.value);
      } else if (frame.kind == detail::Kind::refused) {
        return Error{Errc::engine_failed, "the rendezvous at " + where_ + " is full", {}};
      } else if (frame.kind == detail::Kind::answer && frame.key == key) {
        return std::move(frame.value);
      } else {
        lose(Errc::peer_failed, "does not speak this protocol");
      }
    }
    // Data that arrived before the end counts.
    while (detail::take(&in_, &frame) == detail::Taken::frame) {
      if (frame.kind == detail::Kind::answer && frame.key == key) return std::move(frame.value);
      if (frame.kind == detail::Kind::news) news_.emplace(frame.key, frame.value);
    }
  }
  if (const auto at = news_.find(key); at != news_.end()) return at->second;
  return lost_;
}

bool TcpBoard::send(std::string* out) {
  while (!out->empty()) {
    const ssize_t n = ::send(fd_.get(), out->data(), out->size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) {
      drain();
      lose(Errc::peer_failed, "is gone");
      return false;
    }
    out->erase(0, static_cast<size_t>(n));
  }
  return true;
}

bool TcpBoard::drain() {
  char bytes[1 << 16];
  for (;;) {
    const ssize_t n = ::recv(fd_.get(), bytes, sizeof bytes, MSG_DONTWAIT);
    if (n > 0) in_.append(bytes, static_cast<size_t>(n));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN;
    if (n == 0) return false;
    if (in_.size() > 4 * kMaxValue) return true;  // the rest later
  }
}

void TcpBoard::receive(int events, Deadline deadline) {
  pollfd waiting{fd_.get(), static_cast<int16_t>(events), 0};
  const int ready = ::poll(&waiting, 1, detail::milliseconds_to(deadline));
  if (ready == 0 && Clock::now() >= deadline) lose(Errc::timed_out, "does not answer");
  if (ready > 0 && (waiting.revents & ~POLLOUT) != 0 && !drain())
    lose(Errc::peer_failed, "is gone");
}

void TcpBoard::lose(Errc code, const std::string& why) {
  fd_.reset();
  lost_ = {code, "rank 0, which hosts the rendezvous at " + where_ + ", " + why,
           "restart the group"};
}

}  // namespace laconic::rendezvous

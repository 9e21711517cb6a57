// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A board that rank 0 serves on a TCP port. There are no passwords: any program that reaches the
// port can disturb the group, as in Gloo and MPI, but not harm the process that listens.
#pragma once

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/engine/rendezvous/board.h"

namespace laconic::rendezvous {

namespace detail {

// Requests and answers over TCP, little-endian: "LCN1", kind, length of the key, two zeros, length
// of the value (4 bytes), key, value.
enum class Kind : uint8_t {
  put = 1,
  get = 2,     ///< no value
  answer = 3,  ///< without a value: the key has none
  news = 4,    ///< unsolicited
  refused = 5  ///< the board is full
};
struct Frame {
  Kind kind = Kind::get;
  std::string key, value;
};
inline constexpr std::string_view kMagic = "LCN1";
inline constexpr size_t kHeader = 12;

inline std::string encode(Kind kind, std::string_view key, std::string_view value) {
  std::string out(kMagic);
  out.push_back(static_cast<char>(kind));
  put_le(&out, key.size(), 1);
  put_le(&out, 0, 2);
  put_le(&out, value.size(), 4);
  return out.append(key).append(value);
}

enum class Taken : uint8_t { nothing, frame, nonsense };
/// Takes the first frame out of `in`.
inline Taken take(std::string* in, Frame* frame) {
  const std::string_view bytes(*in);
  if (!kMagic.starts_with(bytes.substr(0, kMagic.size()))) return Taken::nonsense;
  if (bytes.size() < kHeader) return Taken::nothing;
  const uint64_t kind = get_le(bytes.substr(4, 1)), key = get_le(bytes.substr(5, 1)),
                 zeros = get_le(bytes.substr(6, 2)), value = get_le(bytes.substr(8, 4));
  if (kind < 1 || kind > 5 || key < 1 || key > kMaxKey || zeros != 0 || value > kMaxValue)
    return Taken::nonsense;
  if (bytes.size() < kHeader + key + value) return Taken::nothing;
  frame->kind = static_cast<Kind>(kind);
  frame->key = bytes.substr(kHeader, key);
  frame->value = bytes.substr(kHeader + key, value);
  in->erase(0, kHeader + key + value);
  const bool has_value = frame->kind == Kind::put || frame->kind == Kind::news;
  if (!is_key(frame->key) || (has_value && !is_value(frame->key, frame->value)) ||
      (frame->kind == Kind::get && value != 0))
    return Taken::nonsense;
  return Taken::frame;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const noexcept { ::freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

inline Result<Addresses> resolve(const std::string& host, const std::string& port) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = AI_NUMERICSERV;
  addrinfo* list = nullptr;
  if (const int bad = ::getaddrinfo(host.c_str(), port.c_str(), &wanted, &list); bad != 0) {
    return Error{Errc::engine_failed,
                 "cannot resolve the rendezvous host " + host + ": " + ::gai_strerror(bad),
                 "use a host name or address of rank 0 that every rank can resolve"};
  }
  return Addresses(list);
}

/// Stores the values. One thread answers all ranks and trusts none.
class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(
      const std::string& host, const std::string& port, uint32_t world,
      std::chrono::milliseconds timeout = std::chrono::seconds(10)) {
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
  ~Server() {
    const uint64_t one = 1;
    if (thread_.joinable() && ::write(stop_.get(), &one, sizeof one) == sizeof one) thread_.join();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

 private:
  struct Peer {
    Fd fd;
    std::string in, out;
    bool waits = true;  // a first request, or the rest of one, is due at `until`
    Deadline until;
    bool gone = false;
  };
  static constexpr auto kLinger = std::chrono::seconds(2);
  static constexpr size_t kMaxHeld = size_t{64} << 20, kMaxKeys = 1U << 16, kMaxNewsKeys = 8;

  Server(Fd fd, uint32_t world, std::chrono::milliseconds timeout)
      : listener_(std::move(fd)), world_(world), timeout_(timeout) {}

  void serve() noexcept {
    for (;;) {
      try {
        if (!turn()) return;
      } catch (const std::bad_alloc&) {
        peers_.clear();  // closes the connections
      }
    }
  }

  bool turn() {
    // Wait until all ranks have received the failure of a meeting.
    if (stopping_ && (held_.count(std::string(kMeeting)) == 0 || Clock::now() >= end_ ||
                      (seen_ >= world_ && peers_.empty())))
      return false;
    std::vector<pollfd> fds{{stopping_ ? -1 : stop_.get(), POLLIN, 0},
                            {listener_.get(), POLLIN, 0}};
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

  void accept() {
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

  void serve(Peer& peer) {
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

  void answer(Peer& peer, const Frame& frame) {
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

  /// News are sent to all ranks before their author gets its answer.
  void spread(const Peer& from, const Frame& frame) {
    for (Peer& peer : peers_) {
      if (&peer == &from || peer.gone) continue;
      peer.out += encode(Kind::news, frame.key, frame.value);
      flush(peer);
    }
  }

  static void flush(Peer& peer) {
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

  Fd listener_, stop_;
  size_t world_, seen_ = 0;
  std::chrono::milliseconds timeout_;  // for a first request, and for the rest of a request
  bool stopping_ = false;
  Deadline end_;
  std::list<Peer> peers_;
  std::map<std::string, std::string> held_;
  size_t held_bytes_ = 0, news_keys_ = 0;
  std::thread thread_;
};

}  // namespace detail

/// Client of the values that rank 0 stores.
class TcpBoard final : public Board {
 public:
  static Result<std::unique_ptr<Board>> open(const std::string& host, const std::string& port,
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

  Result<std::string> put(const std::string& key, const std::string& value,
                          Deadline deadline) override {
    if (!is_key(key) || !is_value(key, value)) return Errc::invalid_argument;
    return ask(detail::Kind::put, key, value, deadline);
  }
  Result<std::string> get(const std::string& key, Deadline deadline) override {
    if (!is_key(key)) return Errc::invalid_argument;
    return ask(detail::Kind::get, key, {}, deadline);
  }
  [[nodiscard]] bool kept_by_rank_0() const noexcept override { return true; }

 private:
  explicit TcpBoard(std::string where) : where_(std::move(where)) {}

  /// Retries until rank 0 listens.
  Result<void> connect(const std::string& host, const std::string& port, Deadline deadline) {
    int error = ECONNREFUSED;
    for (;;) {
      auto addresses = detail::resolve(host, port);
      if (!addresses) return std::move(addresses).error();
      for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
        detail::Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
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

  Result<std::string> ask(detail::Kind kind, const std::string& key, const std::string& value,
                          Deadline deadline) {
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

  bool send(std::string* out) {
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

  /// Reads all available data; false at the end of the stream.
  bool drain() {
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

  void receive(int events, Deadline deadline) {
    pollfd waiting{fd_.get(), static_cast<int16_t>(events), 0};
    const int ready = ::poll(&waiting, 1, detail::milliseconds_to(deadline));
    if (ready == 0 && Clock::now() >= deadline) lose(Errc::timed_out, "does not answer");
    if (ready > 0 && (waiting.revents & ~POLLOUT) != 0 && !drain())
      lose(Errc::peer_failed, "is gone");
  }

  /// Closes the connection for good: a late answer would be taken for that of another request.
  void lose(Errc code, const std::string& why) {
    fd_.reset();
    lost_ = {code, "rank 0, which hosts the rendezvous at " + where_ + ", " + why,
             "restart the group"};
  }

  std::string where_;
  std::mutex mutex_;
  std::unique_ptr<detail::Server> server_;
  detail::Fd fd_;
  std::string in_;
  std::map<std::string, std::string> news_;
  Error lost_{Errc::engine_failed, {}, {}};
};

}  // namespace laconic::rendezvous

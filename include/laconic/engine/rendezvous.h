// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Where the ranks of a group find each other before they can talk: a folder that all of them see,
// or a TCP port of rank 0. Holds small values, each written once. Header only; for engines whose
// own library has no launcher. There are no passwords: any program that reaches the port can
// disturb the group, as in Gloo and MPI, but not harm the process that listens.
#pragma once

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic::rendezvous {

using Clock = std::chrono::steady_clock;
inline constexpr size_t kMaxKey = 64;
inline constexpr size_t kMaxValue = size_t{1} << 20;
/// Keys that begin with this are news: over TCP every rank is told them at once, so that they
/// outlive rank 0.
inline constexpr std::string_view kNews = "news.";
inline constexpr size_t kMaxNews = 1024;
/// Why ranks cannot meet, and why a group has ended.
inline constexpr std::string_view kMeeting = "news.meeting", kFault = "news.fault";

/// "rank 2", "ranks 1, 2 and 4"
inline std::string names_of(const std::vector<uint32_t>& ranks) {
  std::string names = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    names += (i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ") + std::to_string(ranks[i]);
  return names;
}

/// Values by key, written once, the same for all ranks. Keys: 1 to kMaxKey letters, digits, '.',
/// '_', '-', the first no dot; values: 1 to kMaxValue bytes, news at most kMaxNews. Any thread.
class Board {
 public:
  Board() = default;
  virtual ~Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  /// What `key` holds from now on: `value`, or what was there before.
  virtual Result<std::string> put(const std::string& key, const std::string& value,
                                  Deadline deadline) = 0;
  /// What `key` holds; empty: nothing yet.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// Rank 0 keeps it: an Error of put or get is then about rank 0.
  [[nodiscard]] virtual bool kept_by_rank_0() const noexcept = 0;
};

inline bool is_key(std::string_view key) noexcept {
  const auto allowed = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == '-';
  };
  return !key.empty() && key.size() <= kMaxKey && key[0] != '.' &&
         std::all_of(key.begin(), key.end(), allowed);
}
inline bool is_value(std::string_view key, std::string_view value) noexcept {
  return !value.empty() && value.size() <= (key.starts_with(kNews) ? kMaxNews : kMaxValue);
}

namespace detail {

inline void put_le(std::string* out, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out->push_back(static_cast<char>(value >> (8 * i) & 0xFF));
}
inline uint64_t get_le(std::string_view bytes) noexcept {
  uint64_t value = 0;
  for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
  return value;
}

/// A file descriptor that is closed.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) noexcept : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() { reset(); }
  void reset() noexcept {
    if (fd_ >= 0) ::close(std::exchange(fd_, -1));
  }
  [[nodiscard]] int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// "Connection refused"
inline std::string reason(int error) { return std::generic_category().message(error); }

inline int milliseconds_to(Deadline deadline) noexcept {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

}  // namespace detail

/// A file per key. A file that is not complete yet does not count.
class FolderBoard final : public Board {
 public:
  explicit FolderBoard(std::string folder) : folder_(std::move(folder)) {}

  Result<std::string> put(const std::string& key, const std::string& value,
                          Deadline deadline) override {
    if (!is_key(key) || !is_value(key, value)) return Errc::invalid_argument;
    const std::string path = folder_ + "/" + key;
    const detail::Fd file(
        ::open(path.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC | O_NOFOLLOW, 0644));
    if (!file) return errno == EEXIST ? settled(key, deadline) : unusable(errno);
    std::string bytes;
    detail::put_le(&bytes, value.size(), 8);
    bytes += value;
    for (size_t done = 0; done < bytes.size();) {
      const ssize_t n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) return unusable(errno);
      done += static_cast<size_t>(n);
    }
    return value;
  }

  Result<std::string> get(const std::string& key, Deadline) override {
    if (!is_key(key)) return Errc::invalid_argument;
    // A named pipe in the place of a file is not waited for.
    const detail::Fd file(
        ::open((folder_ + "/" + key).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (!file) return errno == ENOENT ? Result<std::string>(std::string()) : unusable(errno);
    struct stat facts {};
    if (::fstat(file.get(), &facts) != 0) return unusable(errno);
    if (!S_ISREG(facts.st_mode) || facts.st_size > static_cast<off_t>(8 + kMaxValue))
      return unusable(EINVAL);
    std::string bytes(static_cast<size_t>(facts.st_size), '\0');
    size_t done = 0;
    while (done < bytes.size()) {
      const ssize_t n = ::read(file.get(), bytes.data() + done, bytes.size() - done);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      done += static_cast<size_t>(n);
    }
    if (done < 8 || detail::get_le(std::string_view(bytes).substr(0, 8)) != done - 8)
      return std::string();
    std::string value = bytes.substr(8, done - 8);
    return is_value(key, value) ? Result<std::string>(std::move(value)) : unusable(EINVAL);
  }

  [[nodiscard]] bool kept_by_rank_0() const noexcept override { return false; }

 private:
  /// Somebody else has the key, and may be in the middle of writing.
  Result<std::string> settled(const std::string& key, Deadline deadline) {
    for (;;) {
      auto there = get(key, deadline);
      if (!there || !there->empty()) return there;
      if (Clock::now() >= deadline) return unusable(EBUSY);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  [[nodiscard]] Error unusable(int error) const {
    return {Errc::engine_failed,
            "the rendezvous folder " + folder_ + " cannot be used: " + detail::reason(error),
            "name an empty folder that all ranks can write to"};
  }

  std::string folder_;
};

namespace detail {

// Requests and answers over TCP, little-endian: "LCN1", kind, length of the key, two zeros, length
// of the value (4 bytes), key, value.
enum class Kind : uint8_t {
  put = 1,
  get = 2,     ///< no value
  answer = 3,  ///< no value: nothing there
  news = 4,    ///< not asked for
  refused = 5  ///< there is no more room
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
                 "the rendezvous host " + host + " is unknown: " + ::gai_strerror(bad),
                 "name rank 0's host as all ranks know it, or its address"};
  }
  return Addresses(list);
}

/// Keeps the values. One thread, which answers all ranks and believes none.
class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(
      const std::string& host, const std::string& port, uint32_t world,
      std::chrono::milliseconds patience = std::chrono::seconds(10)) {
    auto addresses = resolve(host, port);
    if (!addresses) return std::move(addresses).error();
    int error = EADDRNOTAVAIL;
    for (const addrinfo* at = addresses->get(); at != nullptr; at = at->ai_next) {
      Fd fd(::socket(at->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      const int on = 1;
      if (fd && ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
          ::bind(fd.get(), at->ai_addr, at->ai_addrlen) == 0 && ::listen(fd.get(), 128) == 0) {
        std::unique_ptr<Server> server(new Server(std::move(fd), world, patience));
        server->stop_ = Fd(::eventfd(0, EFD_CLOEXEC));
        if (!server->stop_) break;
        server->thread_ = std::thread([s = server.get()] { s->serve(); });
        return server;
      }
      error = errno;
    }
    return Error{Errc::engine_failed,
                 "rank 0 cannot listen at " + host + ":" + port + ": " + reason(error),
                 "name an address of rank 0's host and a free port"};
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

  Server(Fd fd, uint32_t world, std::chrono::milliseconds patience)
      : listener_(std::move(fd)), world_(world), patience_(patience) {}

  void serve() noexcept {
    for (;;) {
      try {
        if (!turn()) return;
      } catch (const std::bad_alloc&) {
        peers_.clear();  // they hear of it
      }
    }
  }

  bool turn() {
    // A meeting that has failed is not over before all have heard of it.
    if (stopping_ && (held_.count(std::string(kMeeting)) == 0 || Clock::now() >= end_ ||
                      (seen_ >= world_ && peers_.empty())))
      return false;
    std::vector<pollfd> fds{{stopping_ ? -1 : stop_.get(), POLLIN, 0},
                            {listener_.get(), POLLIN, 0}};
    Deadline next = stopping_ ? end_ : Clock::now() + std::chrono::minutes(1);
    for (const Peer& peer : peers_) {
      // Who does not read answers is asked for no more.
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
    peer.until = Clock::now() + patience_;
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
      peer.until = Clock::now() + patience_;
    }
    peer.in.append(bytes, static_cast<size_t>(n));
    Frame frame;
    Taken taken = Taken::nothing;
    while (!peer.gone && (taken = take(&peer.in, &frame)) == Taken::frame) {
      answer(peer, frame);
      peer.until = Clock::now() + patience_;
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

  /// Everybody has the news on the way before the one who brought them hears that they are known.
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
  std::chrono::milliseconds patience_;  // with a first request, and with the rest of one
  bool stopping_ = false;
  Deadline end_;
  std::list<Peer> peers_;
  std::map<std::string, std::string> held_;
  size_t held_bytes_ = 0, news_keys_ = 0;
  std::thread thread_;
};

}  // namespace detail

/// Values that rank 0 keeps.
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

  /// Rank 0 may come later.
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
                     "rank 0 does not listen at " + where_ + ": " + detail::reason(error),
                     "start rank 0, and let all ranks reach its host and port"};
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
      // What arrived before the end counts.
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

  /// All that has arrived; false at the end.
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

  /// For good: an answer that comes late would be taken for that of another question.
  void lose(Errc code, const std::string& why) {
    fd_.reset();
    lost_ = {code, "rank 0, which keeps the rendezvous at " + where_ + ", " + why,
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

/// where: "file:FOLDER" or "tcp:HOST:PORT", HOST in brackets if it is an IPv6 address.
inline Result<std::unique_ptr<Board>> open(std::string_view where, uint32_t rank, uint32_t world,
                                           Deadline deadline) {
  const auto misspelt = [&] {
    return Error{Errc::invalid_argument, "a rendezvous cannot be '" + std::string(where) + "'",
                 "file:FOLDER or tcp:HOST:PORT"};
  };
  if (where.starts_with("file:") && where.size() > 5)
    return std::unique_ptr<Board>(std::make_unique<FolderBoard>(std::string(where.substr(5))));
  const size_t colon = where.rfind(':');
  if (!where.starts_with("tcp:") || colon < 5) return misspelt();
  std::string host(where.substr(4, colon - 4)), port(where.substr(colon + 1));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']')
    host = host.substr(1, host.size() - 2);
  const bool digits =
      std::all_of(port.begin(), port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (port.empty() || port.size() > 5 || !digits || std::stoul(port) < 1 ||
      std::stoul(port) > 65535)
    return misspelt();
  return TcpBoard::open(host, port, rank, world, deadline);
}

/// An Error as others read it: the code's number, a blank, the message without control characters.
inline std::string write_news(const Error& error) {
  std::string text = std::to_string(static_cast<int32_t>(error.code)) + " " + error.message;
  text.resize(std::min(text.size(), kMaxNews));
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, '?');
  return text;
}
inline Error read_news(std::string text, std::string hint) {
  const size_t blank = std::min(text.find(' '), text.size());
  int32_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + blank, number);
  const bool known = failed == std::errc() && end == text.data() + blank && blank < text.size() &&
                     number > 0 && errc_name(static_cast<Errc>(number)) != "unknown";
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 32; }, '?');
  return {known ? static_cast<Errc>(number) : Errc::engine_failed,
          known ? text.substr(blank + 1) : std::move(text), std::move(hint)};
}

/// Returns when all ranks are there, with the same world, each once. Who finds out that they never
/// will be tells the others why.
inline Result<void> meet(Board& board, uint32_t rank, uint32_t world,
                         std::chrono::milliseconds timeout, Deadline deadline) {
  const std::string news(kMeeting),
      hint = "start all ranks again, in an empty folder or at a free port";
  const auto soon = [] { return Clock::now() + std::chrono::seconds(2); };
  const auto tell = [&](Error own) -> Error {
    own.hint = hint;
    const auto told = board.put(news, write_news(own), soon());
    return told ? read_news(*told, hint) : own;
  };
  const auto key = [](uint32_t r) { return "rank." + std::to_string(r); };
  const std::string first = "laconic 1, a world of ";
  const auto world_on = [&](const std::string& card) -> std::string {  // digits, or nothing
    if (!card.starts_with(first)) return {};
    return card.substr(first.size(),
                       card.find_first_not_of("0123456789", first.size()) - first.size());
  };
  std::random_device random;
  const std::string own_world = std::to_string(world);
  const std::string card =
      first + own_world + ", " + std::to_string(random()) + "." + std::to_string(random());
  const auto mine = board.put(key(rank), card, std::min(deadline, soon()));
  if (!mine) return mine.error();
  if (*mine != card) {
    return tell({Errc::invalid_argument,
                 "rank " + std::to_string(rank) +
                     " has come twice: by mistake, in another job, or in an earlier one",
                 {}});
  }
  std::vector<uint32_t> missing;
  for (uint32_t r = 0; r < world; ++r) missing.push_back(r);
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(2 * pause, std::chrono::milliseconds(20))) {
    // News first: a rank that has all cards goes on, and reads no more of them.
    auto bad = board.get(news, std::max(deadline, soon()));
    if (!bad) return bad.error();
    if (!bad->empty()) return read_news(*bad, hint);
    std::vector<uint32_t> still;
    for (const uint32_t r : missing) {
      auto there = board.get(key(r), std::max(deadline, soon()));
      if (!there) return there.error();
      if (there->empty()) {
        still.push_back(r);
      } else if (const std::string other = world_on(*there); other != own_world) {
        const std::string who = "rank " + std::to_string(r);
        return tell({Errc::ranks_disagree,
                     other.empty() ? who + " runs another version of Laconic"
                                   : who + " was started in a world of " + other + ", rank " +
                                         std::to_string(rank) + " in one of " + own_world,
                     {}});
      }
    }
    missing = std::move(still);
    if (missing.empty()) return {};
    if (Clock::now() >= deadline) {
      return tell(
          {Errc::timed_out,
           names_of(missing) + " did not come within " + std::to_string(timeout.count()) + " ms",
           {}});
    }
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace laconic::rendezvous

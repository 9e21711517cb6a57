// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank whose quantized values aggregation servers add, on its own host: hosts are host0, host1,
// ... Arguments are KEY=VALUE. It ends with one line of JSON: a hash of each step's mean, counts,
// and the error, if any.
#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <iostream>
#include <map>
#include <sstream>
#include <thread>

#include "base/hash.h"
#include "json.h"
#include "laconic/engine/aggregator.h"
#include "laconic/session.h"

namespace laconic::test {
namespace {

using std::chrono::milliseconds;
using tools::Json;
using Clock = std::chrono::steady_clock;

std::map<std::string, std::string> read_arguments(int count, char** words) {
  std::map<std::string, std::string> values;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const auto equal = word.find('=');
    if (equal != std::string::npos) values[word.substr(0, equal)] = word.substr(equal + 1);
  }
  return values;
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// ---- the group: a TCP connection to every other rank ----

class Connections final : public MessageEngine {
 public:
  Connections(uint32_t rank, uint32_t world, uint16_t port) : rank_(rank), peers_(world, -1) {
    const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
    const int on = 1;
    ::setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in any{};
    any.sin_family = AF_INET;
    any.sin_port = htons(port);
    if (::bind(listener, reinterpret_cast<const sockaddr*>(&any), sizeof any) != 0 ||
        ::listen(listener, 16) != 0)
      die("listening");
    for (uint32_t to = 0; to < rank; ++to) {
      peers_[to] = connect_to("host" + std::to_string(to), port);
      const auto mine = static_cast<uint8_t>(rank);
      if (::send(peers_[to], &mine, 1, 0) != 1) die("greeting");
    }
    for (uint32_t i = rank + 1; i < world; ++i) {
      const int fd = ::accept(listener, nullptr, nullptr);
      uint8_t from = 0;
      if (::recv(fd, &from, 1, 0) != 1 || from >= world) die("a greeting");
      peers_[from] = fd;
    }
    ::close(listener);
    for (const int fd : peers_) {
      if (fd < 0) continue;
      ::fcntl(fd, F_SETFL, O_NONBLOCK);
      ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
  }
  ~Connections() override {
    stop();
    for (const int fd : peers_)
      if (fd >= 0) ::close(fd);
  }
  [[nodiscard]] uint32_t rank() const noexcept override { return rank_; }
  [[nodiscard]] uint32_t world() const noexcept override {
    return static_cast<uint32_t>(peers_.size());
  }

 protected:
  Result<void> move(std::span<const Message> messages, uint32_t) override {
    std::vector<Message> left(messages.begin(), messages.end());
    for (;;) {
      std::vector<pollfd> polled;
      for (const Message& m : left) {
        const int wanted = (m.send_bytes > 0 ? POLLOUT : 0) | (m.recv_room > 0 ? POLLIN : 0);
        if (wanted != 0) polled.push_back({peers_[m.peer], static_cast<int16_t>(wanted), 0});
      }
      if (polled.empty()) return {};
      if (::poll(polled.data(), polled.size(), 60'000) <= 0)
        return Error{Errc::timed_out, "the group was silent for a minute", {}};
      for (Message& m : left) {
        if (!push(m) || !pull(m))
          return Error{Errc::peer_failed, fmt::format("rank {} is gone", m.peer), {}};
      }
    }
  }

 private:
  [[noreturn]] static void die(const char* what) {
    std::cerr << what << ": " << std::strerror(errno) << std::endl;
    std::_Exit(3);
  }

  static int connect_to(const std::string& host, uint16_t port) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    if (::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) die("name");
    for (const auto end = Clock::now() + std::chrono::seconds(60); Clock::now() < end;) {
      const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
      if (::connect(fd, found->ai_addr, found->ai_addrlen) == 0) {
        ::freeaddrinfo(found);
        return fd;
      }
      ::close(fd);
      std::this_thread::sleep_for(milliseconds(20));
    }
    die("connecting");
  }

  [[nodiscard]] bool push(Message& m) const {
    while (m.send_bytes > 0) {
      const ssize_t n = ::send(peers_[m.peer], m.send, m.send_bytes, MSG_NOSIGNAL);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      m.send += n;
      m.send_bytes -= static_cast<uint64_t>(n);
    }
    return true;
  }

  [[nodiscard]] bool pull(Message& m) const {
    while (m.recv_room > 0) {
      const ssize_t n = ::recv(peers_[m.peer], m.recv, m.recv_room, 0);
      if (n == 0) return false;
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      m.recv += n;
      m.recv_room -= static_cast<uint64_t>(n);
    }
    return true;
  }

  uint32_t rank_;
  std::vector<int> peers_;
};

// ---- what is averaged ----

uint64_t mix(uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111eb;
  return x ^ (x >> 31U);
}

float number(uint64_t stream, uint64_t i) {
  return static_cast<float>(static_cast<int64_t>(mix(mix(stream) + i)) >> 40U) * 0x1p-27F;
}

/// A common part and the rank's own, in any order of calls the same.
void fill(std::vector<float>& gradient, uint64_t seed, uint32_t rank, uint64_t step) {
  const uint64_t common = seed << 40U | step << 8U, own = common + 1 + rank;
  for (uint64_t i = 0; i < gradient.size(); ++i)
    gradient[i] = number(common, i) + number(own, i) * 0.5F;
}

class Rank {
 public:
  explicit Rank(std::map<std::string, std::string> given) : given_(std::move(given)) {}

  Json run() {
    rank_ = static_cast<uint32_t>(count("rank", 0));
    Connections group(rank_, static_cast<uint32_t>(count("world", 4)),
                      static_cast<uint16_t>(count("port", 29500)));
    said_["rank"] = rank_;
    std::unique_ptr<AggregatorEngine> servers;
    if (!text("servers").empty()) {
      AggregatorOptions options;
      options.servers = split(text("servers"));
      options.token = text("token");
      options.quorum = std::stod(text("quorum", "1"));
      options.multicast = count("multicast", 0) != 0;
      options.deadline = milliseconds(count("deadline_ms", 20));
      options.timeout = milliseconds(count("timeout_ms", 60'000));
      auto made = AggregatorEngine::create(group, options);
      if (!made) return refused(made.error());
      servers = *std::move(made);
    }
    average(servers != nullptr ? static_cast<Engine&>(*servers) : group);
    if (servers != nullptr) {
      const AggregatorEngine::Stats s = servers->stats();
      said_["resent_datagrams"] = s.resent_datagrams;
      said_["duplicate_datagrams"] = s.duplicate_datagrams;
      said_["aggregator_restarts"] = s.aggregator_restarts;
      said_["rtt_us"] = s.rtt_us;
      said_["multicast_datagrams"] = s.multicast_datagrams;
      said_["multicast_servers"] = s.multicast_servers;
    }
    return said_;
  }

 private:
  [[nodiscard]] std::string text(const std::string& key, const std::string& otherwise = "") const {
    const auto at = given_.find(key);
    return at == given_.end() ? otherwise : at->second;
  }
  [[nodiscard]] uint64_t count(const std::string& key, uint64_t otherwise) const {
    const std::string value = text(key);
    return value.empty() ? otherwise : std::stoull(value);
  }

  Json refused(const Error& error) {
    said_["error"] = {{"code", static_cast<int>(error.code)}, {"message", error.message}};
    return said_;
  }

  void average(Engine& engine) {
    SessionOptions options;
    options.plan = text("servers").empty() ? "native_sum" : "auto";
    options.part = 0;
    const uint64_t elements = count("elements", 500'000);
    // A matrix, and a small parameter that is not compressed.
    std::vector<Parameter> model{{"weight", elements / 1000, 1000}, {"bias", 1000, 1}};
    auto session = laconic::Session::create(text("spec", "thc"), std::move(model), engine, options);
    if (!session) {
      refused(session.error());
      return;
    }
    said_["strategy_is_server_sum"] = (*session)->explain().find("server_sum") != std::string::npos;
    for (const char* list : {"all", "compressed", "seconds"}) said_[list] = Json::array();
    gradient_.resize(elements / 1000 * 1000 + 1000);
    for (uint64_t step = 0; step < count("steps", 6); ++step) {
      fill(gradient_, count("seed", 1), rank_, step);
      pause_before(step);
      const auto begin = Clock::now();
      const auto done = (*session)->average(step, gradient_);
      said_["seconds"].push_back(std::chrono::duration<double>(Clock::now() - begin).count());
      if (!done) {
        refused(done.error());
        break;
      }
      const auto* bytes = reinterpret_cast<const uint8_t*>(gradient_.data());
      const Bytes all(bytes, gradient_.size() * sizeof(float));
      said_["all"].push_back(hash64(all));
      said_["compressed"].push_back(hash64(all.first(elements / 1000 * 1000 * sizeof(float))));
    }
    said_["stats"] = *tools::parse_json((*session)->stats());
  }

  /// `pause=K,...`: reports these steps and waits for a line before them. `late=K,...`: sleeps
  /// late_ms before them.
  void pause_before(uint64_t step) {
    for (const std::string& one : split(text("late")))
      if (std::stoull(one) == step)
        std::this_thread::sleep_for(milliseconds(count("late_ms", 300)));
    for (const std::string& one : split(text("pause"))) {
      if (std::stoull(one) != step) continue;
      std::cout << "at " << step << std::endl;
      std::string line;
      std::getline(std::cin, line);
    }
  }

  std::map<std::string, std::string> given_;
  uint32_t rank_ = 0;
  std::vector<float> gradient_;  // outlives the session: an engine that failed may still use it
  Json said_;
};

}  // namespace
}  // namespace laconic::test

int main(int count, char** words) {
  laconic::test::Rank rank(laconic::test::read_arguments(count, words));
  std::cout << rank.run().dump() << std::endl;
  return 0;
}

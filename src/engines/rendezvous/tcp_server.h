// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Rank 0's side of a board over TCP.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "engines/rendezvous/posix.h"
#include "engines/rendezvous/tcp_protocol.h"

namespace laconic::rendezvous::detail {

/// Stores the values. One thread answers all ranks and trusts none.
class Server {
 public:
  static Result<std::unique_ptr<Server>> listen(
      const std::string& host, const std::string& port, uint32_t world,
      std::chrono::milliseconds timeout = std::chrono::seconds(10));
  ~Server();
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

  void serve() noexcept;

  bool turn();

  void accept();

  void serve(Peer& peer);

  void answer(Peer& peer, const Frame& frame);

  /// News are sent to all ranks before their author gets its answer.
  void spread(const Peer& from, const Frame& frame);

  static void flush(Peer& peer);

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

}  // namespace laconic::rendezvous::detail

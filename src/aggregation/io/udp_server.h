// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Drives a Server over UDP, on the thread that calls run(). Every registered worker gets a socket
// of its own, connected to it on the server's port: the kernel sorts datagrams by sender, a full
// buffer is that worker's alone, and a closed port names it. No other program can share the port.
// Jobs take turns (aggregation/server/turns.h).
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "aggregation/protocol/clock.h"
#include "aggregation/server/server.h"
#include "aggregation/server/turns.h"
#include "net/socket.h"

namespace laconic::aggregation {

struct UdpServerSettings {
  std::string bind;  ///< HOST:PORT; port 0: any
  net::Io io = net::Io::gso;
  /// Ports of a switch where a program in the kernel adds; none: no such program.
  std::vector<std::string> interfaces;
  /// GROUP or GROUP:PORT: sums go once for all workers of a job that asks for it; "": to each.
  std::string multicast;
  ServerSettings server;
  /// Called on the serving thread at the beginning, and then about five times a second.
  std::function<void(const Server&)> observe;
};

class UdpServer {
 public:
  static Result<std::unique_ptr<UdpServer>> open(const UdpServerSettings& settings);
  ~UdpServer();

  /// Serves until `stop` is set; looks at it at least every 100 ms.
  void run(const std::atomic<bool>& stop);
  [[nodiscard]] const std::string& address() const noexcept { return address_; }
  [[nodiscard]] const Server& server() const noexcept { return server_; }

 private:
  using Endpoint = net::Endpoint;
  using Socket = net::Socket;
  using Batch = net::Batch;
  using Io = net::Io;
  using Receiver = net::Receiver;

  /// A registered worker.
  struct Peer {
    Address address;
    Endpoint endpoint;
    Socket socket;
    Batch batch;
    uint32_t job = 0;
    bool queued = false;
    uint32_t refused = 0;  ///< times that its port was closed, not reported yet
    bool group = false;    ///< not a worker: all workers in the group
  };
  /// A job's workers; strangers, who share a socket, are one as well.
  struct Group {
    uint32_t job = 0;
    std::vector<Peer*> peers;  ///< null: the listener
    Turn turn;
  };
  struct Hash {
    std::size_t operator()(const Address& a) const noexcept;
  };
  class Out;

  UdpServer(const UdpServerSettings& settings, std::unique_ptr<KernelPath> kernel, Endpoint bound,
            Socket listener, Io io);
  bool read_all();
  uint64_t read_one(Peer* peer);
  [[nodiscard]] std::size_t most_messages() const noexcept;
  void flush();
  void admit_newcomers();
  void admit(const Address& address, uint32_t job);
  void join(Peer& peer);
  void open_group(const Address& address, Socket socket);
  [[nodiscard]] bool serves(const Peer& peer) const noexcept;
  void close_unused(Group& group);
  void sweep();
  void wait(Time now, const std::atomic<bool>& stop);

  std::unique_ptr<KernelPath> kernel_;
  Server server_;
  Io io_;
  std::string address_;
  Socket listener_;
  int epoll_ = -1;
  Receiver receiver_;
  std::unordered_map<Address, std::unique_ptr<Peer>, Hash> peers_;
  std::vector<Group> groups_;  ///< first the strangers'
  std::vector<Peer*> queued_;
  std::vector<std::pair<Address, uint32_t>> newcomers_;
  std::unique_ptr<Out> out_;
  std::function<void(const Server&)> observe_;
  Time swept_ = 0, observed_ = 0;
};

}  // namespace laconic::aggregation

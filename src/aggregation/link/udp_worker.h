// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Drives the links to aggregation servers over UDP, on the thread that calls it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "aggregation/link/aggregation.h"
#include "aggregation/protocol/clock.h"
#include "net/socket.h"

namespace laconic::aggregation {

struct UdpSettings {
  std::vector<std::string> servers;  ///< HOST:PORT, in the same order on all ranks
  LinkSettings link;                 ///< `server` is filled in
  net::Io io = net::Io::gso;         ///< mmsg where the kernel has none
  /// Not null: once it is true, calls fail within a tenth of a second. It outlives the worker.
  const std::atomic<bool>* interrupted = nullptr;
};

class UdpWorker {
 public:
  using Clock = std::chrono::steady_clock;

  /// Registers with all servers; returns when all workers of the job are there. A granule that
  /// does not fit into the path's MTU is refused, naming one that does.
  static Result<std::unique_ptr<UdpWorker>> attach(const UdpSettings& settings,
                                                   Clock::time_point deadline);
  ~UdpWorker();

  /// Runs one exchange to its end or to an error, after which the worker cannot be used.
  Result<void> run(std::span<const Outgoing> out, std::span<Incoming> in,
                   Clock::time_point deadline);
  /// Between exchanges: takes what has come and sends what is due (Link::keep). True: again soon.
  bool keep() noexcept;
  /// Returns when all workers have all results, or at the deadline.
  void close(Clock::time_point deadline) noexcept;

  [[nodiscard]] LinkStats stats() const noexcept { return links_.stats(); }
  /// The rank that the last error was about; -1: none.
  [[nodiscard]] int blamed() const noexcept;

 private:
  struct Path {
    net::Socket socket;
    net::Batch batch;
    net::Endpoint server;
    net::Io io;
    protocol::Group group{};  ///< that `listener` was opened for
    net::Socket listener{};   ///< receives the group's datagrams; closed if that is impossible
  };
  UdpWorker(std::vector<LinkSettings> links, std::vector<Path> paths, net::Io io,
            const std::atomic<bool>* interrupted);
  /// How driving the links ended: words, which take memory, come later.
  struct End {
    const Link* at = nullptr;  ///< it failed, or the deadline has passed and it is not done
    bool interrupted = false;
    [[nodiscard]] bool ok() const noexcept { return at == nullptr && !interrupted; }
  };
  /// Until done(link) is true of all links, or the deadline.
  template <class Done>
  End drive(Clock::time_point deadline, Done done) noexcept;
  /// The error if `what` is incomplete at the deadline.
  static Error error_of(const End& end, const char* what);
  void send_due(Time now) noexcept;
  void wait(Time now, Time until) noexcept;
  void receive() noexcept;
  static void follow_group(Path& path, const protocol::Group& group) noexcept;

  Aggregation links_;
  std::vector<Path> paths_;
  net::Receiver receiver_;
  const std::atomic<bool>* interrupted_;
};

/// Whether all datagrams of a job fit into the path; the hint names a block that does. mtu 0: not
/// known.
[[nodiscard]] Result<void> fits_path(const protocol::JobSettings& job, uint32_t mtu, bool ipv6);

/// Nanoseconds of the steady clock.
[[nodiscard]] Time steady_now() noexcept;

}  // namespace laconic::aggregation

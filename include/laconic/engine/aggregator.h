// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// AggregatorEngine: wraps an engine; aggregation servers (`laconic serve`) execute its aggregate
// steps, the wrapped engine all others.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "laconic/engine.h"

namespace laconic {

/// Coverage of a datagram's tag. Only holders of the token can create tags.
enum class AggregatorAuth : uint8_t {
  header,  ///< the header: an attacker on the path can change payloads
  full,    ///< header and payload, at about 0.5 µs per kB; not with `--io xdp`
};

/// Must be the same on all ranks.
struct AggregatorOptions {
  std::vector<std::string> servers;  ///< HOST:PORT, in the same order
  /// Path of the servers' secret, 32 bytes, not all zero; "": none, for servers on loopback.
  std::string token;
  AggregatorAuth auth = AggregatorAuth::header;
  /// Receive sums by IP multicast from servers with a group (`laconic serve --multicast`). Ranks
  /// that multicast does not reach get them by unicast.
  bool multicast = false;
  /// Share of the ranks, 0 to 1, that is enough for a sum after its deadline.
  double quorum = 1.0;
  std::chrono::microseconds deadline =
      std::chrono::milliseconds(20);  ///< deadline of an exchange, below an hour
  /// Timeout of a rank that others wait for.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

/// Ranks of a quorum: ⌈quorum · world⌉, at least 1.
[[nodiscard]] uint32_t aggregator_quorum(double quorum, uint32_t world) noexcept;

/// After join() a thread keeps the connections alive between batches while other ranks may lack a
/// result that this rank has, at most `timeout` after the last batch: a restarted server needs all
/// ranks again.
class AggregatorEngine final : public Engine {
 public:
  /// `inner` must outlive the engine.
  static Result<std::unique_ptr<AggregatorEngine>> create(Engine& inner,
                                                          const AggregatorOptions& options);
  /// Waits until all ranks have all results, a few seconds at most.
  ~AggregatorEngine() override;

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> join(const AggregationJob& job, std::chrono::milliseconds timeout) override;
  Result<void> run(std::span<const Step> batch) override;

  /// Counters since join.
  struct Stats {
    uint64_t resent_datagrams = 0;
    uint64_t duplicate_datagrams = 0;
    uint64_t aggregator_restarts = 0;
    uint64_t rtt_us = 0;               ///< smoothed round trip of the slowest server, µs
    uint64_t multicast_datagrams = 0;  ///< sums received by multicast
    uint64_t multicast_servers = 0;    ///< servers whose multicast reaches this rank
  };
  /// Call it while no batch is running.
  [[nodiscard]] Stats stats() const noexcept;

 private:
  struct Impl;
  explicit AggregatorEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// An engine around another that has codes added by aggregation servers (`laconic serve`) and hands
// everything else on.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "laconic/engine.h"

namespace laconic {

/// What a datagram's tag covers, besides that nobody without the token can make one.
enum class AggregatorAuth : uint8_t {
  header,  ///< its header: who sits on the path can change payloads
  full,    ///< its payload, too, for about half a microsecond a kilobyte; not with `--io xdp`
};

/// The same on all ranks.
struct AggregatorOptions {
  std::vector<std::string> servers;  ///< HOST:PORT, in the same order
  /// The servers' secret, a file of 32 bytes, not all zero; "": none, as loopback servers allow it.
  std::string token;
  AggregatorAuth auth = AggregatorAuth::header;
  /// Sums come once for all ranks, by IP multicast, from a server that has a group (`laconic serve
  /// --multicast`) to the ranks that hear it; to all others one by one, as ever.
  bool multicast = false;
  /// Of all ranks, how many are enough for a sum once its deadline has passed; 0 to 1.
  double quorum = 1.0;
  std::chrono::microseconds deadline =
      std::chrono::milliseconds(20);  ///< of an exchange, below an hour
  /// A rank that is silent for so long while others wait for it is lost.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
};

/// Ranks that a quorum is: ⌈quorum · world⌉, at least 1.
[[nodiscard]] uint32_t aggregator_quorum(double quorum, uint32_t world) noexcept;

/// From join() on, a thread of its own keeps the links alive between batches, as long as other
/// ranks may lack a result that is here, and for `timeout` behind the last batch at most: a server
/// that is started again needs all ranks back.
class AggregatorEngine final : public Engine {
 public:
  /// `inner` outlives it.
  static Result<std::unique_ptr<AggregatorEngine>> create(Engine& inner,
                                                          const AggregatorOptions& options);
  /// Lingers until all ranks have all results, a few seconds at most.
  ~AggregatorEngine() override;

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> join(const AggregationJob& job, std::chrono::milliseconds timeout) override;
  Result<void> run(std::span<const Step> batch) override;

  /// Since join.
  struct Stats {
    uint64_t resent_datagrams = 0;
    uint64_t duplicate_datagrams = 0;
    uint64_t aggregator_restarts = 0;
    uint64_t rtt_us = 0;               ///< smoothed round trip, of the slowest server
    uint64_t multicast_datagrams = 0;  ///< sums that came by multicast
    uint64_t multicast_servers = 0;    ///< whose group this rank hears
  };
  /// While no batch is running.
  [[nodiscard]] Stats stats() const noexcept;

 private:
  struct Impl;
  explicit AggregatorEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic

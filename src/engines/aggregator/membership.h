// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Membership: the user's options for aggregation servers, and how a rank joins a job there.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <span>

#include "aggregation/link/keeper.h"
#include "laconic/aggregation.h"
#include "laconic/engine/aggregator.h"

namespace laconic::aggregation {

class Membership {
 public:
  /// Checks the options and reads the token; sends nothing.
  static Result<Membership> create(const AggregatorOptions& options, uint32_t world);

  /// Registers with all servers. `number`: of the job, the same on all ranks; random.
  Result<void> join(const AggregationJob& job, uint32_t rank, uint64_t number,
                    UdpWorker::Clock::time_point deadline);
  /// Executes an aggregate step. After a failure the sockets are closed, which the others detect.
  Result<void> run(const Step& step);
  /// Any thread: a run under way, or the next one, fails within a tenth of a second.
  void interrupt() noexcept { interrupted_->store(true); }
  /// Lingers until all ranks have all results.
  void close(std::chrono::milliseconds linger);

  [[nodiscard]] bool joined() const noexcept { return joined_; }
  [[nodiscard]] const AggregatorOptions& options() const noexcept { return options_; }
  /// Since join. Waits for a run that is under way.
  [[nodiscard]] LinkStats stats() const;

 private:
  explicit Membership(AggregatorOptions options) : options_(std::move(options)) {}

  AggregatorOptions options_;
  aggregation::protocol::Token token_{};
  uint32_t world_ = 0;
  std::unique_ptr<Keeper> keeper_;
  std::unique_ptr<std::atomic<bool>> interrupted_ = std::make_unique<std::atomic<bool>>(false);
  LinkStats last_{};  // of a worker that has gone
  bool joined_ = false;
};

}  // namespace laconic::aggregation

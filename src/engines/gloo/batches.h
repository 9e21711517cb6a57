// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The batches of a GlooEngine, from their start to the end of their execution.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <span>
#include <vector>

#include "fault.h"
#include "group.h"
#include "laconic/engine/gloo.h"
#include "ring.h"

namespace laconic::gloo {

/// Batches in their order. Messages of a batch are posted when it starts; only its sums wait until
/// the batches before it have ended.
class Batches {
 public:
  Batches(Group& group, Fault& fault, Ring& ring) : group_(group), fault_(fault), ring_(ring) {}

  void begin(uint64_t number, std::span<const Step> batch) noexcept;
  /// In the order of their starts.
  Result<void> execute(std::span<const Step> batch) noexcept;
  /// For Group::meet.
  void post_what_has_begun() noexcept;

  [[nodiscard]] bool executing() const noexcept { return executing_; }
  [[nodiscard]] bool all_executed();
  /// Ranks whose messages a batch needs, as flags by rank.
  [[nodiscard]] std::vector<bool> needed_by(uint64_t number) const;

 private:
  /// An operation under way. Its buffer waits for nothing else.
  struct Transfer {
    Buffer buffer;
    bool receives;
  };
  struct InFlight {
    std::array<Step, kMaxBatch> steps{};
    size_t count = 0;
    std::vector<Transfer> transfers{};
    std::exception_ptr failure{};
    [[nodiscard]] std::span<const Step> batch() const noexcept { return {steps.data(), count}; }
  };

  [[nodiscard]] InFlight& in_flight(uint64_t number) noexcept {
    return in_flight_[number % kMaxTickets];
  }
  void post(const Step& step, std::vector<Transfer>* transfers);
  void complete(uint64_t number, std::span<const Step> batch);

  Group& group_;
  Fault& fault_;
  Ring& ring_;
  std::atomic<bool> executing_ = false;
  std::mutex mutex_;  // of the numbers below and of what is between them
  std::condition_variable posted_changed_;
  std::array<InFlight, kMaxTickets> in_flight_;
  uint64_t begun_ = 0, posted_ = 0, executed_ = 0;  // of tickets, in order
};

}  // namespace laconic::gloo

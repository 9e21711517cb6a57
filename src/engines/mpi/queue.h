// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The batches of an MpiEngine, from start to wait.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>
#include <span>

#include "group.h"
#include "laconic/engine/mpi.h"
#include "large_sums.h"
#include "process.h"
#include "status.h"
#include "transfers.h"

namespace laconic::mpi {

class Queue {
 public:
  Queue(Status& status, const Process& process, const Group& group, Transfers& transfers,
        LargeSums& sums) noexcept
      : status_(status), process_(process), group_(group), transfers_(transfers), sums_(sums) {}

  Result<Started*> add(std::span<const Step> batch);
  /// Nothing: there is none that has not been waited for.
  Started* find(uint64_t number);
  /// Issues all steps that may begin, in order. A message with calls to come delays all steps with
  /// its tag, and everything after them; so does a large sum while its terms are exchanged.
  void issue();
  /// Whether anything has ended.
  bool progress();
  /// Until the job has ended or the engine is dead. `lock` is let go in between.
  void finish(const Started& started, Deadline deadline, std::unique_lock<std::mutex>& lock);

 private:
  void issue_sum(Started& started, const Step& step);
  void issue_messages(Started& started, const Step& step);
  [[nodiscard]] Error too_late(const Started& started) const;

  Status& status_;
  const Process& process_;
  const Group& group_;
  Transfers& transfers_;
  LargeSums& sums_;
  std::array<Started, kMaxTickets> started_;
  uint64_t last_ = 0;  // started
  uint64_t next_ = 1;  // not all of its steps have been issued
};

}  // namespace laconic::mpi

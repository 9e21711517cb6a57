// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The thread of an MpiEngine that keeps messages moving between start and wait.
#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "process.h"
#include "queue.h"
#include "status.h"
#include "transfers.h"

namespace laconic::mpi {

/// Does not take the lock while a caller waits, which moves messages faster, nor shortly after each
/// start, because most batches are waited for at once.
class Background {
 public:
  /// `mutex` is that of all other parts.
  Background(std::mutex& mutex, Status& status, const Process& process, const Group& group,
             const Transfers& transfers, Queue& queue) noexcept
      : mutex_(mutex),
        status_(status),
        process_(process),
        transfers_(transfers),
        queue_(queue),
        allowed_(group.options().background) {}

  /// Under the mutex: there may be something to move.
  void wake();
  /// Sets whether a caller is in wait() and moves messages.
  void stand_back(bool waiting) noexcept { waiting_ = waiting; }
  void end();

 private:
  void serve();
  [[nodiscard]] bool has_work() const noexcept { return !transfers_.empty() && status_; }

  std::mutex& mutex_;
  Status& status_;
  const Process& process_;
  const Transfers& transfers_;
  Queue& queue_;
  bool allowed_;
  std::condition_variable wake_;
  std::atomic<bool> waiting_ = false;
  std::atomic<bool> ending_ = false;
  bool dozing_ = false;  // the thread has to be woken
  std::thread thread_;
};

}  // namespace laconic::mpi

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Keeper: keeps a worker's links alive between exchanges. A rank that has all results of an
// exchange may next wait for the others in its group; if the server restarts before the others have
// theirs, it needs this rank again, while no caller drives it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

#include "aggregation/link/udp_worker.h"
#include "laconic/error.h"

namespace laconic::aggregation {

class Keeper {
 public:
  using Clock = UdpWorker::Clock;

  /// `timeout`: how long after the last call the links are kept. Error: the system cannot start a
  /// thread.
  static Result<std::unique_ptr<Keeper>> create(std::unique_ptr<UdpWorker> worker,
                                                Clock::duration timeout);
  /// In a process that was forked meanwhile it ends nothing: the thread is not there.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// call(UdpWorker&), alone with it. Wakes no thread.
  template <class Call>
  auto use(Call&& call) {
    wanted_.fetch_add(1);
    const std::scoped_lock lock(guard_);
    wanted_.fetch_sub(1);
    auto result = std::forward<Call>(call)(*worker_);
    used_ = Clock::now();
    return result;
  }
  /// UdpWorker::close. In a process that was forked meanwhile nothing: its parent uses the links.
  LinkStats close(Clock::time_point deadline);
  /// Waits for a call that is under way; is none.
  [[nodiscard]] LinkStats stats() {
    const std::scoped_lock lock(guard_);
    return worker_->stats();
  }

 private:
  Keeper(std::unique_ptr<UdpWorker> worker, Clock::duration timeout)
      : worker_(std::move(worker)), timeout_(timeout), used_(Clock::now()) {}

  /// The thread, and what ends it.
  struct Thread {
    std::mutex stopping;  // of `stop`
    std::condition_variable stops;
    bool stop = false;
    std::thread thread;
  };
  [[nodiscard]] bool forked() const noexcept;
  void run();
  /// True: again soon.
  bool keep();

  std::mutex guard_;  // of worker_ and used_
  std::unique_ptr<UdpWorker> worker_;
  Clock::duration timeout_;
  Clock::time_point used_;
  std::atomic<int> wanted_{0};  // calls that wait for guard_
  int process_ = 0;
  std::unique_ptr<Thread> thread_ = std::make_unique<Thread>();
};

}  // namespace laconic::aggregation

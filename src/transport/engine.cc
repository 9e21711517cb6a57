// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

namespace laconic {

/// Executes batches one after the other. Made by the first start().
class Engine::Thread {
 public:
  explicit Thread(Engine* engine) : engine_(engine), thread_([this] { serve(); }) {}
  ~Thread() { stop(); }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  Ticket add(std::span<const Step> batch) {
    const std::lock_guard lock(mutex_);
    Job& job = jobs_.emplace_back();
    std::copy(batch.begin(), batch.end(), job.steps.begin());
    job.count = batch.size();
    job.number = ++last_;
    changed_.notify_all();
    return {job.number};
  }

  Result<void> wait(uint64_t number, Deadline deadline) {
    std::unique_lock lock(mutex_);
    const auto job = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const Job& j) { return j.number == number && !j.taken; });
    if (job == jobs_.end())
      return Error{Errc::exchange_order, "the engine has no such ticket",
                   "wait for each ticket once"};
    // Neither add() nor another wait() moves a job: references to elements of a deque stay good
    // when its ends change, and only ended jobs at its front are removed.
    Job& mine = *job;
    if (!changed_.wait_until(lock, deadline, [&] { return mine.ended; })) {
      return Error{Errc::timed_out, "the engine did not end a batch in time",
                   "look for the rank that stopped; the group cannot go on"};
    }
    Result<void> result = std::move(mine.result);
    mine.taken = true;
    while (!jobs_.empty() && jobs_.front().taken) jobs_.pop_front();
    return result;
  }

  /// What has not been executed fails.
  void stop() noexcept {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    lock.lock();
    for (Job& job : jobs_) {
      if (!job.ended) job.result = Errc::engine_failed;
      job.ended = true;
    }
    changed_.notify_all();
  }

 private:
  struct Job {
    uint64_t number = 0;
    std::array<Step, kMaxBatch> steps{};
    size_t count = 0;
    Result<void> result;
    bool ended = false;
    bool taken = false;
  };

  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return stopping_ || next() != nullptr; });
      if (stopping_) return;
      Job& job = *next();
      if (failure_.ok()) {
        lock.unlock();
        Result<void> result = run(job);
        lock.lock();
        failure_ = std::move(result);
      }
      job.result = copy(failure_);
      job.ended = true;
      changed_.notify_all();
    }
  }

  Result<void> run(const Job& job) noexcept {
    try {
      return engine_->run({job.steps.data(), job.count});
    } catch (const std::bad_alloc&) {
      return Errc::out_of_memory;
    } catch (...) {
      return Errc::engine_failed;
    }
  }

  static Result<void> copy(const Result<void>& result) noexcept {
    try {
      return result;
    } catch (const std::bad_alloc&) {
      return result.error().code;
    }
  }

  Job* next() {
    const auto at = std::find_if(jobs_.begin(), jobs_.end(), [](const Job& j) { return !j.ended; });
    return at == jobs_.end() ? nullptr : &*at;
  }

  Engine* engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  uint64_t last_ = 0;
  bool stopping_ = false;
  Result<void> failure_;
  std::thread thread_;  // last: it uses the others
};

Engine::Engine() = default;
Engine::~Engine() = default;

EngineCaps Engine::caps() const noexcept { return {}; }

Result<Ticket> Engine::start(std::span<const Step> batch) {
  if (batch.size() > kMaxBatch) {
    return Error{Errc::invalid_argument,
                 "a batch has at most " + std::to_string(kMaxBatch) + " steps, found " +
                     std::to_string(batch.size()),
                 {}};
  }
  try {
    if (!thread_) thread_ = std::make_unique<Thread>(this);
    return thread_->add(batch);
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "no memory", {}};
  } catch (const std::system_error&) {
    return Error{Errc::out_of_memory, "the engine cannot have a thread", "raise ulimit -u"};
  }
}

Result<void> Engine::wait(Ticket ticket, Deadline deadline) {
  if (!thread_)
    return Error{Errc::exchange_order, "the engine has no such ticket",
                 "wait for each ticket once"};
  return thread_->wait(ticket.number, deadline);
}

void Engine::keep_until_end(std::shared_ptr<void> memory) noexcept {
  try {
    kept_.push_back(memory);
  } catch (const std::bad_alloc&) {  // never freed, then: that is safe, too
    alignas(std::shared_ptr<void>) std::byte place[sizeof(std::shared_ptr<void>)];
    ::new (static_cast<void*>(place)) std::shared_ptr<void>(std::move(memory));
  }
}

void Engine::stop() noexcept {
  if (thread_) thread_->stop();
}

}  // namespace laconic

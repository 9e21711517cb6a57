// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstddef>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "engines/lanes.h"

namespace laconic {

/// Executes batches one after the other. Made by the first start(); nothing is allocated later.
class Engine::Thread {
 public:
  explicit Thread(Engine* engine) : engine_(engine), thread_([this] { serve(); }) {}
  ~Thread() { stop(); }
  /// This process was forked from the thread's.
  [[nodiscard]] bool forked() const noexcept { return ::getpid() != process_; }
  Thread(const Thread&) = delete;
  Thread& operator=(const Thread&) = delete;

  Result<Ticket> add(std::span<const Step> batch) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(started_, State::free, &Started::state);
    if (found == started_.end()) {
      return Error{Errc::exchange_order, std::to_string(kMaxTickets) + " tickets are outstanding",
                   "wait for a ticket before starting another batch"};
    }
    Started& started = *found;
    std::copy(batch.begin(), batch.end(), started.steps.begin());
    started.count = batch.size();
    started.number = ++last_;
    started.state = stopping_ ? State::ended : State::waiting;
    started.result = stopping_ ? Result<void>(Errc::engine_failed) : Result<void>();
    changed_.notify_all();
    return Ticket{started.number};
  }

  Result<void> wait(uint64_t number, Deadline deadline) {
    std::unique_lock lock(mutex_);
    Started* const found = find(number);
    if (found == nullptr) return no_such_ticket();
    Started& started = *found;
    if (!changed_.wait_until(lock, deadline, [&] { return started.state == State::ended; })) {
      return Error{Errc::timed_out, "the engine did not complete a batch in time",
                   "find the rank that stopped; this group cannot continue"};
    }
    started.state = State::free;
    return std::move(started.result);
  }

  /// Batches that were not executed fail.
  void stop() noexcept {
    std::unique_lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    lock.lock();
    for (Started& started : started_) {
      if (started.state == State::waiting) end(started, Errc::engine_failed);
    }
  }

  static Error no_such_ticket() {
    return {Errc::exchange_order, "the engine has no such ticket", "wait for each ticket once"};
  }

 private:
  enum class State : uint8_t { free, waiting, ended };
  struct Started {
    uint64_t number = 0;
    std::array<Step, kMaxBatch> steps{};
    size_t count = 0;
    Result<void> result;
    State state = State::free;
  };

  /// A ticket may be waited for long after later ones: numbers say nothing about places.
  Started* find(uint64_t number) {
    for (Started& started : started_) {
      if (started.number == number && started.state != State::free) return &started;
    }
    return nullptr;
  }

  void serve() {
    std::unique_lock lock(mutex_);
    for (uint64_t number = 1;; ++number) {
      changed_.wait(lock, [&] { return stopping_ || last_ >= number; });
      if (stopping_) return;
      Started& started = *find(number);
      if (failure_.ok()) {
        lock.unlock();
        Result<void> result = run(started);
        lock.lock();
        failure_ = std::move(result);
      }
      end(started, copy(failure_));
    }
  }

  void end(Started& started, Result<void> result) noexcept {
    started.result = std::move(result);
    started.state = State::ended;
    changed_.notify_all();
  }

  Result<void> run(const Started& started) noexcept {
    try {
      return engine_->run({started.steps.data(), started.count});
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

  Engine* engine_;
  int process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  std::array<Started, kMaxTickets> started_;
  uint64_t last_ = 0;
  bool stopping_ = false;
  Result<void> failure_;
  std::thread thread_;  // last: it uses the others
};

Engine::Engine() = default;
Engine::~Engine() { stop(); }

Result<void> Engine::join(const AggregationJob&, std::chrono::milliseconds) {
  return Error{Errc::unsupported, "this engine has no aggregator",
               "wrap it in an AggregatorEngine, or use strategy native_sum"};
}

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
    return Error{Errc::out_of_memory, "out of memory", {}};
  } catch (const std::system_error&) {
    return Error{Errc::out_of_memory, "cannot start the engine's thread", "raise ulimit -u"};
  }
}

Result<void> Engine::wait(Ticket ticket, Deadline deadline) {
  return thread_ ? thread_->wait(ticket.number, deadline) : Result<void>(Thread::no_such_ticket());
}

namespace {

/// Its destructor does not run.
template <class T>
void forget(T&& owner) noexcept {
  alignas(T) std::byte place[sizeof(T)];
  ::new (static_cast<void*>(place)) T(std::move(owner));
}

}  // namespace

void Engine::keep_until_end(std::shared_ptr<void> memory) noexcept {
  try {
    kept_.push_back(memory);
  } catch (const std::bad_alloc&) {  // never freed, then: that is safe, too
    forget(std::move(memory));
  }
}

void Engine::keep_for_good() noexcept { forget(std::move(kept_)); }

void Engine::add_lanes(DType type, uint8_t* total, const uint8_t* x, uint64_t count) noexcept {
  engines::add_lanes(type, total, x, count);
}

void Engine::add_lanes(DType type, uint8_t* total, float of_total, const uint8_t* x, float of_x,
                       uint64_t count) noexcept {
  if (type != DType::f32 || (of_total == 1.0F && of_x == 1.0F))
    return engines::add_lanes(type, total, x, count);
  engines::add_scaled_lanes(total, of_total, x, of_x, count);
}

void Engine::scale_lanes(const Step& step, uint8_t* x, uint64_t count) noexcept {
  if (step.scale != 1.0F) engines::scale_lanes(x, step.scale, count);
}

void Engine::stop() noexcept {
  if (!thread_) return;
  if (thread_->forked()) return forget(std::move(thread_));  // no thread would end its wait
  thread_->stop();
}

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/thread_pool.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace laconic {
namespace {

// Both waits spin before they sleep: codecs run several short loops in a row, with work for one
// thread in between, and waking a sleeping thread costs more than such a loop. By the clock, since
// a pause is 140 cycles on one processor and 40 on another.
constexpr std::chrono::microseconds kSpin{15};

inline void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Gives whether `over` held before it was time to sleep.
template <class Over>
bool spin_until(Over over) noexcept {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    if (over()) return true;
    pause();
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

}  // namespace

// A loop is open between two writes of `state`. Threads join an open loop by adding one to `state`,
// so the caller waits at the end only for those who came, never for one that is still asleep; one
// that wakes too late finds the loop closed (or the next one open) and touches nothing of the
// finished loop.
struct ThreadPool::Impl {
  static constexpr uint32_t kOpen = 1U << 31;

  // The loop: written only while closed and empty.
  void (*body)(void*, uint64_t) = nullptr;
  void* context = nullptr;
  uint64_t tasks = 0;

  alignas(64) std::atomic<uint64_t> next{0};   // first task not taken yet
  alignas(64) std::atomic<uint32_t> state{0};  // kOpen, and the number of threads inside
  alignas(64) std::atomic<uint32_t> epoch{0};  // counts loops; threads sleep on it
  std::atomic<bool> busy{false};               // a thread is in run()
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;

  void work() noexcept {
    for (uint64_t i = next.fetch_add(1, std::memory_order_relaxed); i < tasks;
         i = next.fetch_add(1, std::memory_order_relaxed)) {
      body(context, i);
    }
  }

  bool join_loop() noexcept {
    uint32_t seen = state.load(std::memory_order_relaxed);
    while ((seen & kOpen) != 0) {
      if (state.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                      std::memory_order_relaxed)) {
        return true;
      }
    }
    return false;
  }

  void leave_loop() noexcept {
    if (state.fetch_sub(1, std::memory_order_release) == 1) state.notify_one();
  }

  void wait_for_new_epoch(uint32_t seen) noexcept {
    const auto over = [&] { return epoch.load(std::memory_order_acquire) != seen; };
    if (!spin_until(over)) epoch.wait(seen, std::memory_order_acquire);
  }

  void thread_main() noexcept {
    uint32_t seen = 0;
    for (;;) {
      wait_for_new_epoch(seen);
      seen = epoch.load(std::memory_order_acquire);
      if (stop.load(std::memory_order_relaxed)) return;
      if (!join_loop()) continue;
      work();
      leave_loop();
    }
  }

  void open_loop(uint64_t count, void (*f)(void*, uint64_t), void* data) noexcept {
    body = f;
    context = data;
    tasks = count;
    next.store(0, std::memory_order_relaxed);
    state.store(kOpen, std::memory_order_release);
    epoch.fetch_add(1, std::memory_order_release);
    const uint64_t wanted = std::min<uint64_t>(count - 1, threads.size());
    if (wanted == threads.size()) {
      epoch.notify_all();
    } else {
      for (uint64_t i = 0; i < wanted; ++i) epoch.notify_one();
    }
  }

  void close_loop() noexcept {
    uint32_t inside = state.fetch_and(~kOpen, std::memory_order_acquire) & ~kOpen;
    const auto over = [&] { return (inside = state.load(std::memory_order_acquire)) == 0; };
    if (inside == 0 || spin_until(over)) return;
    for (; inside != 0; inside = state.load(std::memory_order_acquire)) {
      state.wait(inside, std::memory_order_acquire);
    }
  }

  // A system that refuses a thread, or memory for one, gives a smaller pool: results are the same.
  void start(uint32_t count) {
    threads.reserve(count);
    try {
      while (threads.size() < count) threads.emplace_back([this] { thread_main(); });
    } catch (const std::system_error&) {
    } catch (const std::bad_alloc&) {
    }
  }
};

ThreadPool::ThreadPool(uint32_t threads) : impl_(std::make_unique<Impl>()) {
  if (threads > 1) impl_->start(threads - 1);
}

ThreadPool::~ThreadPool() {
  impl_->stop.store(true, std::memory_order_relaxed);
  impl_->epoch.fetch_add(1, std::memory_order_release);
  impl_->epoch.notify_all();
  for (std::thread& thread : impl_->threads) thread.join();
}

uint32_t ThreadPool::threads() const noexcept {
  return static_cast<uint32_t>(impl_->threads.size()) + 1;
}

void ThreadPool::run(uint64_t tasks, void (*body)(void* context, uint64_t task), void* context) {
  Impl& pool = *impl_;
  // Busy: called from inside a task, or by a second thread. Doing the work here is always right and
  // cannot deadlock.
  if (tasks <= 1 || pool.threads.empty() || pool.busy.exchange(true, std::memory_order_acquire)) {
    for (uint64_t i = 0; i < tasks; ++i) body(context, i);
    return;
  }
  pool.open_loop(tasks, body, context);
  pool.work();
  pool.close_loop();
  pool.busy.store(false, std::memory_order_release);
}

}  // namespace laconic

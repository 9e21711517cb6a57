// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <numeric>
#include <thread>
#include <vector>

namespace laconic {
namespace {

TEST(ThreadPool, EveryTaskRunsOnce) {
  for (uint32_t threads : {0U, 1U, 2U, 3U, 8U}) {
    ThreadPool pool(threads);
    for (uint64_t tasks : {0U, 1U, 2U, 3U, 7U, 100U, 1000U}) {
      std::vector<int> hits(tasks, 0);  // plain on purpose: a sanitizer sees tasks that share one
      parallel_for(&pool, tasks, [&](uint64_t i) { ++hits[i]; });
      EXPECT_EQ(std::accumulate(hits.begin(), hits.end(), 0), static_cast<int>(tasks));
      for (int h : hits) EXPECT_EQ(h, 1);
    }
  }
}

TEST(ThreadPool, CallerCountsAsThread) {
  EXPECT_EQ(ThreadPool(0).threads(), 1U);
  EXPECT_EQ(ThreadPool(1).threads(), 1U);
  EXPECT_EQ(ThreadPool(3).threads(), 3U);
}

TEST(ThreadPool, NoPoolRunsTasksInOrder) {
  std::vector<uint64_t> order;
  parallel_for(nullptr, 5, [&](uint64_t i) { order.push_back(i); });
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 1, 2, 3, 4}));
}

// Loops in close succession, with data of the caller's frame: a worker that came late would touch a
// dead one.
TEST(ThreadPool, ManyShortLoopsComplete) {
  ThreadPool pool(3);
  uint64_t total = 0;
  for (int loop = 0; loop < 20000; ++loop) {
    std::vector<uint64_t> out(4, 0);
    parallel_for(&pool, out.size(), [&](uint64_t i) { out[i] = i + 1; });
    total += std::accumulate(out.begin(), out.end(), uint64_t{0});
  }
  EXPECT_EQ(total, 20000U * 10U);
}

TEST(ThreadPool, SleepingWorkersWakeUp) {
  ThreadPool pool(2);
  for (int loop = 0; loop < 5; ++loop) {
    std::this_thread::sleep_for(std::chrono::milliseconds(3));
    std::atomic<int> inside{0};
    // Both threads have to be in the loop together, or this never ends.
    parallel_for(&pool, 2, [&](uint64_t) {
      ++inside;
      while (inside.load() < 2) std::this_thread::yield();
    });
    EXPECT_EQ(inside.load(), 2);
  }
}

TEST(ThreadPool, NestedLoopsRunInline) {
  ThreadPool pool(3);
  std::atomic<int> hits{0};
  parallel_for(&pool, 8, [&](uint64_t) { parallel_for(&pool, 8, [&](uint64_t) { ++hits; }); });
  EXPECT_EQ(hits.load(), 64);
}

TEST(ThreadPool, TwoCallersShareOnePool) {
  ThreadPool pool(2);
  std::atomic<int> hits{0};
  const auto caller = [&] {
    for (int loop = 0; loop < 500; ++loop) parallel_for(&pool, 4, [&](uint64_t) { ++hits; });
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(hits.load(), 2 * 500 * 4);
}

TEST(ThreadPool, PoolStartsAndStopsWithoutWork) {
  for (int i = 0; i < 100; ++i) ThreadPool pool(4);
}

}  // namespace
}  // namespace laconic

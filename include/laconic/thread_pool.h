// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace laconic {

/// A fixed set of threads that runs one parallel loop at a time. Results do not depend on the
/// number of threads: tasks are numbered, and task i always has the same elements.
class ThreadPool {
 public:
  /// `threads` counts the calling thread: 1 means no thread of its own.
  explicit ThreadPool(uint32_t threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  [[nodiscard]] uint32_t threads() const noexcept;

  /// Calls body(context, i) for i in [0, tasks), the caller taking part; returns when all are done
  /// and allocates nothing.
  void run(uint64_t tasks, void (*body)(void* context, uint64_t task), void* context);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// body(i) for i in [0, tasks): in order on the caller when pool is null, else spread over it.
template <class Body>
void parallel_for(ThreadPool* pool, uint64_t tasks, Body&& body) {
  if (pool == nullptr || tasks <= 1) {
    for (uint64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  using Plain = std::remove_reference_t<Body>;
  pool->run(
      tasks, [](void* context, uint64_t i) { (*static_cast<Plain*>(context))(i); }, &body);
}

}  // namespace laconic

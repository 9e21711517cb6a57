// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One thread, one poll: file descriptors and timers.
#pragma once

#include <chrono>
#include <functional>
#include <map>

namespace laconic::lab {

class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Callback = std::function<void()>;

  /// Calls `ready` whenever `fd` can be read or has ended, until remove(fd).
  void watch(int fd, Callback ready) { watched_[fd] = std::move(ready); }
  void remove(int fd) { watched_.erase(fd); }

  /// Calls `due` once, at `when` or soon after.
  void at(Clock::time_point when, Callback due) { timers_.emplace(when, std::move(due)); }

  /// Runs until stop().
  void run();
  void stop() { running_ = false; }

 private:
  void fire_timers();
  [[nodiscard]] int wait_ms() const;

  std::map<int, Callback> watched_;
  std::multimap<Clock::time_point, Callback> timers_;
  bool running_ = true;
};

}  // namespace laconic::lab

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "event_loop.h"

#include <poll.h>

#include <algorithm>
#include <vector>

namespace laconic::lab {

int EventLoop::wait_ms() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first - Clock::now();
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::clamp<int64_t>(ms, 0, 60'000));
}

void EventLoop::fire_timers() {
  while (!timers_.empty() && timers_.begin()->first <= Clock::now()) {
    const Callback due = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    due();
  }
}

void EventLoop::run() {
  while (running_) {
    std::vector<pollfd> polled;
    for (const auto& entry : watched_) polled.push_back({entry.first, POLLIN, 0});
    if (poll(polled.data(), polled.size(), wait_ms()) > 0) {
      for (const pollfd& one : polled) {
        // A callback may have removed a later one.
        const auto found = watched_.find(one.fd);
        if (one.revents == 0 || found == watched_.end()) continue;
        const Callback ready = found->second;
        ready();
      }
    }
    fire_timers();
  }
}

}  // namespace laconic::lab

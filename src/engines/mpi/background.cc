// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "background.h"

#include <algorithm>
#include <chrono>
#include <system_error>

namespace laconic::mpi {

void Background::wake() {
  if (transfers_.empty() || !allowed_ || !process_.serves_threads()) return;
  try {
    if (!thread_.joinable()) thread_ = std::thread([this] { serve(); });
  } catch (const std::system_error&) {
    allowed_ = false;  // then only start and wait move messages
  }
  if (dozing_) wake_.notify_one();
}

void Background::serve() {
  constexpr std::chrono::microseconds kPause(100);
  constexpr int kDozeAfter = 10;
  auto pause = kPause;
  for (int quiet = 0; !ending_;) {
    std::this_thread::sleep_for(pause);
    pause = std::clamp(2 * pause, kPause, 5 * kPause);
    if (waiting_) continue;
    std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) continue;
    pause = kPause;
    if (has_work()) {
      quiet = 0;
      status_.guarded([&] {
        if (queue_.progress()) pause = std::chrono::microseconds(0);
        queue_.issue();
      });
    } else if (++quiet >= kDozeAfter) {
      dozing_ = true;
      wake_.wait(lock, [&] { return ending_ || has_work(); });
      dozing_ = false;
      quiet = 0;
    }
  }
}

void Background::end() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

}  // namespace laconic::mpi

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How an MpiEngine waits for MPI, which has to be polled.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <thread>

namespace laconic::mpi {

/// Longer and longer pauses, so that ranks which share cores get on. Where there is a core for
/// each, giving it away costs a large sum more than it is worth: other work keeps it for
/// milliseconds. On one host a rank that sleeps is missed by all others; what comes from another
/// host takes its time.
class Idle {
 public:
  /// How long a wait spins, and until when it yields; then it sleeps.
  struct Waits {
    std::chrono::microseconds spin{50}, yield{2000};
  };
  explicit Idle(const Waits& waits) noexcept : waits_(waits) {}
  /// Once: asking opens a file of the system's.
  static std::chrono::microseconds spin(uint32_t world) noexcept {
    return std::chrono::microseconds(
        ::sysconf(_SC_NPROCESSORS_ONLN) >= static_cast<long>(world) ? 1000 : 50);
  }
  void pause() {
    const auto now = std::chrono::steady_clock::now();
    if (now - since_ < waits_.spin) return;
    if (now - since_ < waits_.yield) return std::this_thread::yield();
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>((now - since_) / 16, std::chrono::microseconds(100)));
  }
  void reset() { since_ = std::chrono::steady_clock::now(); }

 private:
  Waits waits_;
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
};

}  // namespace laconic::mpi

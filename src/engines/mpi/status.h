// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Why an MpiEngine is dead.
#pragma once

#include <new>
#include <utility>

#include "laconic/engine/mpi.h"

namespace laconic::mpi {

/// The first failure of any part; true while there is none.
class Status {
 public:
  explicit operator bool() const noexcept { return first_.ok(); }
  [[nodiscard]] const Result<void>& why() const noexcept { return first_; }
  void die(Result<void> why) noexcept {
    if (first_) first_ = std::move(why);
  }
  /// False, and the end of the engine, if an MPI call gave an error.
  bool good(int code, const char* doing, int peer = -1);
  template <class Body>
  void guarded(const Body& body) noexcept {
    try {
      body();
    } catch (const std::bad_alloc&) {
      die(Errc::out_of_memory);
    } catch (...) {
      die(Errc::engine_failed);
    }
  }

 private:
  Result<void> first_;
};

}  // namespace laconic::mpi

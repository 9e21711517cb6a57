// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// MPI in this process: its beginning, and which threads may call it.
#pragma once

#include <string>

#include "laconic/engine/mpi.h"
#include "status.h"

namespace laconic::mpi {

class Process {
 public:
  explicit Process(Status& status) noexcept : status_(status) {}

  /// "Open MPI 4.1.4"
  [[nodiscard]] static std::string library();
  [[nodiscard]] static bool is_open() noexcept;
  /// MPI can be used; else that is the engine's status.
  bool ready();
  /// Initialises MPI unless it already is. False: it cannot be used.
  bool initialise(int* argc, char*** argv);
  using Environment = char* (*)(const char* name);
  /// Once it is open. Under the launcher of another MPI library every process would be a world of
  /// its own: false, where `environment` is given.
  bool look_around(Environment environment);

  /// MPI is finalised by who has initialised it.
  [[nodiscard]] bool finalises() const noexcept { return finalises_; }
  /// Any thread may call MPI, one at a time.
  [[nodiscard]] bool overlaps() const noexcept { return level_ >= MPI_THREAD_SERIALIZED; }
  /// Several may call at once.
  [[nodiscard]] bool serves_threads() const noexcept { return level_ >= MPI_THREAD_MULTIPLE; }

 private:
  Status& status_;
  int level_ = MPI_THREAD_SINGLE;
  bool finalises_ = false;
};

}  // namespace laconic::mpi

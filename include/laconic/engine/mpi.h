// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks of an MPI job. Its sources are compiled with the MPI of the program that uses it, because
// the ABIs of MPI libraries differ: laconic_target_engine(program mpi). docs/guide/engines.md.
#pragma once

#ifndef OMPI_SKIP_MPICXX
#define OMPI_SKIP_MPICXX 1
#endif
#ifndef MPICH_SKIP_MPICXX
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic {

struct MpiOptions {
  /// Timeout for all ranks to reach the constructor or the destructor.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// A thread of the engine makes progress between start and wait, if MPI allows it
  /// (MPI_THREAD_MULTIPLE): most libraries otherwise move messages only inside their calls.
  bool background = true;
  /// Maximum bytes of one MPI call, whose counts are ints. The same on all ranks; at least 4.
  uint64_t largest_call = uint64_t{1} << 30;
  /// The same between ranks on different hosts. Before a call of more than 64 KiB Open MPI asks the
  /// receiver, and a slow link is idle meanwhile. With MPICH 8000 is faster at 100 Mbit/s, and
  /// takes twice as long on fast networks.
#if defined(OPEN_MPI)
  uint64_t far_call = 64000;
#else
  uint64_t far_call = uint64_t{1} << 30;
#endif
  /// Ranks of the job, where the communicator has some of them: waits leave cores to all of these.
  /// 0: the communicator's.
  uint32_t ranks_of_job = 0;
  /// Host name: ranks with the same one are on one host. Empty: MPI_Get_processor_name.
  std::string host{};
  /// Minimum bytes per rank from which the engine adds, in rank order, instead of MPI_Iallreduce,
  /// which is slower than MPI_Allreduce there. The same on all ranks.
  uint64_t large_share = uint64_t{1} << 18;
  /// Looks up an environment variable: std::getenv. With it the engine compares its world with the
  /// one that the launcher started (OMPI_COMM_WORLD_SIZE, PMI_SIZE) and fails where another MPI's
  /// launcher started the program: there every process would be a world of its own. Null: no check.
  char* (*environment)(const char* name) = nullptr;
};

/// MpiEngine, on a communicator of its own. Below MPI_THREAD_SERIALIZED batches start when they are
/// waited for, on the thread that initialised MPI.
///
/// After an Error the engine cannot be used: later calls return the same one. MPI may still use the
/// memory of batches in flight as long as the process lives: it is never freed.
class MpiEngine final : public Engine {
 public:
  /// All processes of the job. Initialises MPI if needed, and then finalises it in the destructor,
  /// unless the engine has failed: MPI_Finalize waits for every rank. Failures are reported by
  /// status() and by Session::create.
  MpiEngine(int* argc, char*** argv, MpiOptions options = {}) noexcept;
  /// The processes of a communicator; MPI must be initialised. Collective.
  explicit MpiEngine(MPI_Comm communicator, MpiOptions options = {}) noexcept;
  ~MpiEngine() override;

  /// Success, or why the engine cannot be used.
  [[nodiscard]] Result<void> status() const;
  /// "Open MPI 4.1.4"
  [[nodiscard]] static std::string library();

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  [[nodiscard]] EngineCaps caps() const noexcept override;

  Result<void> run(std::span<const Step> batch) override;
  Result<Ticket> start(std::span<const Step> batch) override;
  Result<void> wait(Ticket ticket, Deadline deadline) override;

 private:
  friend class MpiNodes;
  /// Ranks do not meet at the end any more.
  void abandon(const Error& why) noexcept;
  struct Parts;
  std::unique_ptr<Parts> parts_;  // null: out of memory
};

}  // namespace laconic

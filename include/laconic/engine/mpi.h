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
  /// Ranks that do not come within it, to the constructor or to the destructor, are not waited for.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// A thread of the engine's own keeps messages moving between start and wait, where MPI allows it
  /// (MPI_THREAD_MULTIPLE): without it most libraries move them only inside of their calls.
  bool background = true;
  /// Bytes of one MPI call, whose counts are ints. The same on all ranks; at least 4.
  uint64_t largest_call = uint64_t{1} << 30;
  /// The same between ranks on two hosts. Before a call of more than 64 KiB Open MPI asks the
  /// receiver, and meanwhile a slow link stands idle. MPICH gains by 8000 at 100 Mbit/s, and takes
  /// twice as long where the network is fast.
#if defined(OPEN_MPI)
  uint64_t far_call = 64000;
#else
  uint64_t far_call = uint64_t{1} << 30;
#endif
  /// Ranks that give the same are on one host. Empty: MPI_Get_processor_name.
  std::string host{};
  /// From so many bytes for each rank on the engine adds itself, in rank order: MPI_Iallreduce is
  /// slower than MPI_Allreduce there. The same on all ranks.
  uint64_t large_share = uint64_t{1} << 18;
};

/// On a communicator of its own. Between MPI_THREAD_SINGLE and _FUNNELED batches begin when they
/// are waited for, by the thread that initialised MPI.
///
/// After an Error the engine is dead: later calls give the same one. MPI may then still use the
/// memory of batches in flight, as long as the process lives: it is never freed.
class MpiEngine final : public Engine {
 public:
  /// All processes of the job. Initialises MPI where nobody has, and then finalises it in the
  /// destructor, unless the engine has failed: MPI_Finalize waits for every rank. What goes wrong
  /// here is told by status(), and by Session::create.
  MpiEngine(int* argc, char*** argv, MpiOptions options = {}) noexcept;
  /// The processes of a communicator, all together; MPI has been initialised.
  explicit MpiEngine(MPI_Comm communicator, MpiOptions options = {}) noexcept;
  ~MpiEngine() override;

  /// Why the engine cannot be used; nothing while it can.
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
  struct Parts;
  std::unique_ptr<Parts> parts_;  // none: there was not enough memory for it
};

}  // namespace laconic

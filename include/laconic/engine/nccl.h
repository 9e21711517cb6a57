// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened at run time: programs are built without it and without CUDA, and run where the
// libraries are. docs/guide/engines.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic {

/// The libraries to open: paths, or names for the loader.
struct NcclLibraries {
  std::string nccl = "libnccl.so.2";  ///< 2.7 or newer
  std::string cuda = "libcuda.so.1";  ///< the driver's
};

struct NcclFound {
  int32_t version_code = 0;  ///< as ncclGetVersion gives it
  std::string version;       ///< "2.27.3"
  uint32_t gpus = 0;
  std::string why_not;  ///< why an engine cannot run here; empty: it can
};

/// Opens the libraries and queries them; needs no GPU. Error: there is no usable NCCL.
Result<NcclFound> find_nccl(const NcclLibraries& libraries = {});

struct NcclOptions {
  NcclLibraries libraries;
  uint32_t rank = 0;
  uint32_t world = 1;
  /// CUDA index of this rank's GPU. NCCL needs a different one for every rank.
  uint32_t device = 0;
  /// Timeout for all ranks to join, and for each batch.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// Timeout for the end of a communicator, which waits for the other ranks.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// Replaces the bytes by rank 0's on every rank: a broadcast over any channel that the program has.
using NcclShare = std::function<Result<void>(std::span<uint8_t> id)>;

/// NcclEngine: steps over NCCL. Buffers are in host memory: a batch is copied to the GPU, exchanged
/// there in one NCCL group on a stream of the engine's own, and copied back. Page-locked and GPU
/// memory grow to the largest batch, each as large as all its buffers.
///
/// An Error of NCCL, and a timeout of a batch, abort the communicator; every later batch fails with
/// the same Error. No memory of a step is used after run() has returned.
///
/// Ranks in one process destroy their engines concurrently, each on its own thread.
class NcclEngine final : public Engine {
 public:
  /// Collective; `share` is called once on each rank, also on one that cannot continue.
  static Result<std::unique_ptr<NcclEngine>> create(const NcclOptions& options,
                                                    const NcclShare& share);
  ~NcclEngine() override;

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  /// Sums of three float types (bfloat16 from NCCL 2.10 on), in NCCL's order; no short sends.
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> run(std::span<const Step> batch) override;
  /// After the deadline the communicator is aborted, which takes at most 2 · `grace`.
  Result<void> wait(Ticket ticket, Deadline deadline) override;

 private:
  struct Impl;
  explicit NcclEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic

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

/// What is opened: a path, or a name that the loader looks up.
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

/// Opens the libraries and asks them; needs no GPU. An Error if there is no NCCL that an engine
/// could use.
Result<NcclFound> find_nccl(const NcclLibraries& libraries = {});

struct NcclOptions {
  NcclLibraries libraries;
  uint32_t rank = 0;
  uint32_t world = 1;
  /// GPU of this rank, as CUDA counts them. NCCL wants another one for every rank.
  uint32_t device = 0;
  /// A group that has not come together, or a batch that has not been executed by then, has failed.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
  /// How long the end of a communicator may take, which waits for the other ranks.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// Makes the bytes those of rank 0 on every rank: a broadcast over whatever the program has.
using NcclShare = std::function<Result<void>(std::span<uint8_t> id)>;

/// Steps over NCCL. They lie in host memory: a batch is copied to the GPU, exchanged there in one
/// NCCL group on a stream of the engine's own, and copied back, through memory that grows to the
/// largest batch (page-locked and on the GPU, each as large as all buffers of the batch).
///
/// An Error of NCCL's, and a batch that is late, abort the communicator; every later batch has the
/// same Error. No memory of a step is used once run() has returned, whatever it returned.
///
/// Ranks of one process destroy their engines at the same time, each in a thread of its own.
class NcclEngine final : public Engine {
 public:
  /// All ranks together; `share` is called once on each, also on one that cannot go on.
  static Result<std::unique_ptr<NcclEngine>> create(const NcclOptions& options,
                                                    const NcclShare& share);
  ~NcclEngine() override;

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  /// Sums of all three types (bfloat16 from NCCL 2.10 on), in NCCL's order; no short sends.
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> run(std::span<const Step> batch) override;
  /// At the deadline the communicator is aborted, which takes up to twice `grace` more.
  Result<void> wait(Ticket ticket, Deadline deadline) override;

 private:
  struct Impl;
  explicit NcclEngine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace laconic

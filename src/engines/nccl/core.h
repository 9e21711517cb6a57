// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One rank's GPU, communicator and staging memory. Shared by the engine and by the threads in which
// it makes calls that may never return: what these use lives as long as they do.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "engines/nccl/api.h"
#include "engines/nccl/plan.h"
#include "laconic/engine/nccl.h"

namespace laconic::engines::nccl {

using device::CudaAddress, device::CudaCalls, device::CudaContext, device::CudaDevice;
using device::Current;
using device::kCudaNotReady, device::kCudaOutOfMemory, device::kCudaStreamNonBlocking,
    device::kCudaSuccess;

class Core : public std::enable_shared_from_this<Core> {
 public:
  Core(const NcclOptions& options, NcclCalls nccl, CudaCalls cuda);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;

  /// Context and stream.
  Result<void> open();
  /// With all other ranks.
  Result<void> join(const NcclUniqueId& id, Deadline deadline);
  /// Executes `plan`, made from the current steps.
  Result<void> execute(const BatchPlan& plan, Deadline deadline);
  /// Waits until the others end theirs, too.
  void leave() noexcept;
  /// Waits until nothing runs on the GPU. What is still used when the Core ends is never freed.
  void abort() noexcept;

  /// From any thread: execute() and join() return soon, with timed_out.
  void give_up() noexcept { given_up_ = true; }
  [[nodiscard]] Error nccl_error(std::string_view call, int code) const;
  [[nodiscard]] EngineCaps caps() const noexcept;

 private:
  using Condition = std::function<Result<bool>()>;

  [[nodiscard]] Error cuda_error(std::string_view call, int code) const;
  [[nodiscard]] Result<void> cuda_result(std::string_view call, int code) const;
  [[nodiscard]] Result<void> nccl_result(std::string_view call, int code) const;
  [[nodiscard]] std::string about(std::string_view what) const;

  Result<void> reserve(uint64_t bytes);
  void free_memory() noexcept;
  /// `comm` by value: an abandoned call must not see another one.
  Result<void> group(const BatchPlan& plan, NcclComm comm);
  Result<void> call(const Call& call, const BatchPlan& plan, NcclComm comm);
  /// Whether NCCL has completed all requests; its asynchronous error, if there is one.
  Result<bool> settled() const;
  Result<bool> stream_idle() const;
  /// Until `condition` is true or an Error; timed_out with `what` at the deadline.
  Result<void> until(Deadline deadline, std::string_view what, const Condition& condition) const;
  /// A call that may never return, on its own thread, which is abandoned then.
  struct Outcome;
  std::shared_ptr<Outcome> aside(std::function<Result<void>()> work);
  Result<void> until_back(Deadline deadline, std::string_view what,
                          std::function<Result<void>()> work);
  /// The communicator's, for at most `most`.
  template <class Work>
  void end(std::chrono::milliseconds most, Work work) noexcept;

  NcclOptions options_;
  NcclCalls nccl_;
  CudaCalls cuda_;
  CudaDevice device_ = 0;
  CudaContext context_ = nullptr;
  CudaStream stream_ = nullptr;
  NcclComm comm_ = nullptr;
  uint64_t reserved_ = 0;
  CudaAddress gpu_ = 0;
  void* host_ = nullptr;
  std::atomic<bool> given_up_{false};
  bool stuck_ = false;  // the communicator's end has not returned
};

}  // namespace laconic::engines::nccl

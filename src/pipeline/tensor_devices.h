// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The GPUs whose tensors a TensorCodec encodes and decodes: opened by the first of them.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "laconic/tensor_codec.h"
#include "pipeline/device_batch.h"

namespace laconic::pipeline {

/// May be shared by threads.
class TensorDevices {
 public:
  /// A batch for one call, which then comes back.
  class Lease {
   public:
    Lease(TensorDevices& from, uint32_t gpu, std::unique_ptr<DeviceBatch> batch)
        : from_(&from), gpu_(gpu), batch_(std::move(batch)) {}
    Lease(Lease&&) = default;
    Lease& operator=(Lease&&) = delete;
    ~Lease();
    [[nodiscard]] DeviceBatch& batch() const { return *batch_; }
    [[nodiscard]] uint32_t gpu() const { return gpu_; }

   private:
    TensorDevices* from_;
    uint32_t gpu_;
    std::unique_ptr<DeviceBatch> batch_;
  };

  /// On the tensor's GPU, after what is in its stream. unsupported without kernels for `spec`,
  /// driver, GPU, or a binary for it; invalid_argument if the tensor is in no GPU's memory.
  Result<Lease> take(const Spec& spec, const TensorRef& tensor);
  /// invalid_argument unless `residual` is in that GPU's memory.
  Result<void> check(uint32_t gpu, const float* residual);

 private:
  struct Free {
    uint32_t gpu = 0;
    std::unique_ptr<DeviceBatch> batch;
  };
  /// Keeps that number: frames may bring any number of specs.
  static constexpr std::size_t kMostFree = 8;

  Result<uint32_t> gpu_of(const void* at);
  Result<std::shared_ptr<const device::Program>> program_on(uint32_t gpu);
  std::unique_ptr<DeviceBatch> find_free(const Spec& spec, uint32_t gpu);

  std::mutex mutex_;  // guards all
  std::optional<device::CudaCalls> cuda_;
  std::map<uint32_t, std::shared_ptr<const device::Program>> programs_;
  std::vector<Free> free_;
};

}  // namespace laconic::pipeline

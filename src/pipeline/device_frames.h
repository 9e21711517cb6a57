// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Units of bundles on a GPU: gradients, means and residuals are in its memory, bundles in the
// host's. Every call waits until its work is done.
#pragma once

#include <deque>
#include <memory>

#include "device/staging.h"
#include "pipeline/batch_codec.h"
#include "pipeline/device_batch.h"

namespace laconic::pipeline {

/// Batches of one rank, which make what host batches make, bit for bit, where they are given floats
/// on the device, and are host batches where they are not. Sums are made on the host.
class DeviceBatches final : public Batches {
 public:
  /// unsupported, naming the spec, unless its bundles can be made and read on a device: the codec
  /// has kernels, one round, and a residual without decay or none, of what it sent itself.
  static Result<void> check(const Spec& spec);
  /// That GPU with this build's kernels. unsupported without driver, GPU, or a binary for it.
  static Result<std::shared_ptr<const device::Staging>> open(
      uint32_t gpu, const device::DeviceAllocator& allocator = {});
  static Result<std::unique_ptr<DeviceBatches>> create(
      std::shared_ptr<const device::Staging> staging);

  [[nodiscard]] const DeviceBatches* device() const noexcept override { return this; }
  [[nodiscard]] std::unique_ptr<FrameBatch> frames(uint32_t world) const override;
  [[nodiscard]] std::unique_ptr<SumBatch> sums() const override { return host_batches().sums(); }

  [[nodiscard]] const device::Staging& staging() const noexcept { return *staging_; }
  /// floats = halves, of f16 or bf16, and halves = floats, rounded.
  Result<void> widen(float* floats, const void* halves, DType dtype, uint64_t count) const {
    return side_->casts.widen(floats, halves, dtype, count);
  }
  Result<void> narrow(void* halves, DType dtype, const float* floats, uint64_t count) const {
    return side_->casts.narrow(halves, dtype, floats, count);
  }
  /// Bytes of payloads that were copied to the host and to the device.
  [[nodiscard]] uint64_t staged_bytes() const noexcept { return side_->staged; }

 private:
  friend class DeviceFrames;
  /// Shared by all batches; one uses it at a time.
  struct Side {
    explicit Side(DeviceBatch made) : casts(std::move(made)) {}
    DeviceBatch casts;
    std::deque<DeviceBatch> codecs;  // by spec
    device::Memory saved;            // residuals before an encode
    uint64_t staged = 0;
  };
  DeviceBatches(std::shared_ptr<const device::Staging> staging, DeviceBatch casts)
      : staging_(std::move(staging)), side_(std::make_unique<Side>(std::move(casts))) {}

  std::shared_ptr<const device::Staging> staging_;
  std::unique_ptr<Side> side_;
};

}  // namespace laconic::pipeline

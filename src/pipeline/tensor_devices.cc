// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/tensor_devices.h"

#include <algorithm>
#include <new>

#include "kernels/device_images.h"

namespace laconic::pipeline {

TensorDevices::Lease::~Lease() {
  if (batch_ == nullptr) return;
  const std::lock_guard lock(from_->mutex_);
  std::vector<Free>& free = from_->free_;
  try {
    if (free.size() == kMostFree) free.erase(free.begin());
    free.push_back({gpu_, std::move(batch_)});
  } catch (const std::bad_alloc&) {  // no memory to remember it: it ends
  }
}

Result<uint32_t> TensorDevices::gpu_of(const void* at) {
  if (!cuda_) {
    auto opened = device::open_cuda(device::kCudaLibrary);
    if (!opened) return std::move(opened).error();
    cuda_ = *opened;
  }
  if (const auto gpu = device::find_gpu_of(*cuda_, at)) return *gpu;
  return Error{Errc::invalid_argument,
               "the tensor is in no GPU's memory, its field memory says CUDA",
               "LACONIC_MEMORY_HOST, or an address from CUDA"};
}

Result<std::shared_ptr<const device::Program>> TensorDevices::program_on(uint32_t gpu) {
  std::shared_ptr<const device::Program>& known = programs_[gpu];
  if (known == nullptr) {
    auto loaded = kernels::open_kernels(gpu);
    if (!loaded) return std::move(loaded).error();
    known = *std::move(loaded);
  }
  return known;
}

std::unique_ptr<DeviceBatch> TensorDevices::find_free(const Spec& spec, uint32_t gpu) {
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const Free& one) {
    return one.gpu == gpu && one.batch->spec().canonical() == spec.canonical();
  });
  if (found == free_.end()) return nullptr;
  auto batch = std::move(found->batch);
  free_.erase(found);
  return batch;
}

Result<TensorDevices::Lease> TensorDevices::take(const Spec& spec, const TensorRef& tensor) {
  if (!DeviceBatch::decodes(spec)) return DeviceBatch::no_kernels(spec);
  std::unique_lock lock(mutex_);
  auto gpu = gpu_of(tensor.data);
  if (!gpu) return std::move(gpu).error();
  auto batch = find_free(spec, *gpu);
  if (batch == nullptr) {
    auto program = program_on(*gpu);
    if (!program) return std::move(program).error();
    auto created = DeviceBatch::create(spec, *program);
    if (!created) return std::move(created).error();
    batch = std::make_unique<DeviceBatch>(*std::move(created));
  }
  lock.unlock();  // a lease that ends takes it
  Lease lease(*this, *gpu, std::move(batch));
  if (auto r = lease.batch().follow(tensor.stream); !r) return std::move(r).error();
  return lease;
}

Result<void> TensorDevices::check(uint32_t gpu, const float* residual) {
  const std::lock_guard lock(mutex_);
  auto other = gpu_of(residual);
  if (other && *other == gpu) return {};
  return Error{Errc::invalid_argument, "the residual is not in the memory of the tensor's GPU",
               "make it over an array on that GPU"};
}

}  // namespace laconic::pipeline

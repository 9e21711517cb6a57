// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Not beside the images: tests link others in their place.
#include "kernels/device_images.h"
#include "kernels/kernel_list.h"

namespace laconic::kernels {

std::span<const std::string_view> device_kernels() noexcept {
#define LACONIC_NAME(Kernel) Kernel::name,
  static constexpr std::string_view kNames[] = {LACONIC_FOR_EACH_KERNEL(LACONIC_NAME)};
#undef LACONIC_NAME
  return kNames;
}

Result<std::shared_ptr<const device::Program>> load_kernels(const device::GpuRef& gpu) {
  return device::Program::load(gpu, device_images(), device_kernels());
}

Result<std::shared_ptr<const device::Program>> open_kernels(
    uint32_t gpu, const device::DeviceAllocator& allocator) {
  auto opened = device::Gpu::open(device::kCudaLibrary, gpu, allocator);
  if (!opened) return std::move(opened).error();
  return load_kernels(*opened);
}

DeviceFound find_device(const std::string& library) {
  DeviceFound found;
  const auto gpu = device::Gpu::open(library, 0);
  if (!gpu) {
    found.why_not = gpu.error().message;
    return found;
  }
  found.gpu = (*gpu)->card();
  found.driver = (*gpu)->driver();
  const auto program = load_kernels(*gpu);
  (program ? found.image : found.why_not) = program ? (*program)->image() : program.error().message;
  return found;
}

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The kernels of kernel_list.h as compiled for GPUs and embedded here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "device/program.h"

namespace laconic::kernels {

/// Empty in a build without nvcc (LACONIC_CUDA).
[[nodiscard]] std::span<const device::Image> device_images() noexcept;
/// Symbols in each of them.
[[nodiscard]] std::span<const std::string_view> device_kernels() noexcept;
/// The best image on that GPU. Error: as Program::load.
[[nodiscard]] Result<std::shared_ptr<const device::Program>> load_kernels(
    const device::GpuRef& gpu);
/// The same on CUDA's GPU of that number, by CUDA's driver.
[[nodiscard]] Result<std::shared_ptr<const device::Program>> open_kernels(
    uint32_t gpu, const device::DeviceAllocator& allocator = {});

/// The GPU, its driver and the kernels that were loaded, for people.
struct DeviceFound {
  std::string gpu;      ///< "NVIDIA H200, compute capability 9.0"; empty: none
  std::string driver;   ///< the CUDA that it supports: "13.0"
  std::string image;    ///< loaded: "sm_90"; empty: none
  std::string why_not;  ///< why none is; empty: it is
};
/// Opens the driver and GPU 0 and loads the kernels, for a moment.
[[nodiscard]] DeviceFound find_device(const std::string& library = device::kCudaLibrary);

}  // namespace laconic::kernels

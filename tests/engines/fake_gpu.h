// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The GPU of the recording NCCL's driver, with kernels loaded, and memory that is filled and read.
#pragma once

#include <array>
#include <cstring>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/program.h"
#include "engines/fake_images.h"
#include "engines/nccl_group.h"
#include "kernels/kernel_list.h"

namespace laconic::test {

#define LACONIC_NAME(Kernel) kernels::Kernel::name,
inline constexpr std::array kKernelNames{
    std::to_array<std::string_view>({LACONIC_FOR_EACH_KERNEL(LACONIC_NAME)})};
#undef LACONIC_NAME

inline Result<device::GpuRef> open_gpu(const Fake& fake, uint32_t ordinal = 0) {
  return device::Gpu::open(fake.path(), ordinal);
}
inline Result<std::shared_ptr<const device::Program>> load_program(const device::GpuRef& gpu) {
  return device::Program::load(gpu, fake_images(), kKernelNames);
}

/// The driver's faults; "" if there are none.
inline std::string faults_of(const Fake& fake) {
  std::string text(1 << 14, '\0');
  text.resize(fake->faults(text.data(), text.size()));
  return text;
}

/// Arrays in the device's memory. Every call waits.
class OnGpu {
 public:
  explicit OnGpu(device::GpuRef gpu)
      : gpu_(std::move(gpu)), stream_(*device::Stream::create(gpu_)) {}

  template <class T>
  T* put(const std::vector<T>& values) {
    const uint64_t bytes = values.size() * sizeof(T);
    const auto pinned = *allocate(device::Memory::Where::pinned, bytes);
    memory_.push_back(*allocate(device::Memory::Where::device, bytes));
    if (bytes != 0) std::memcpy(pinned.at(), values.data(), bytes);
    EXPECT_TRUE(stream_.copy_in(memory_.back().at(), pinned.at(), bytes));
    EXPECT_TRUE(stream_.wait());
    return reinterpret_cast<T*>(memory_.back().at());
  }
  template <class T>
  std::vector<T> get(const T* at, uint64_t count) {
    const auto pinned = *allocate(device::Memory::Where::pinned, count * sizeof(T));
    EXPECT_TRUE(stream_.copy_out(pinned.at(), at, count * sizeof(T)));
    EXPECT_TRUE(stream_.wait());
    const T* const values = reinterpret_cast<const T*>(pinned.at());
    return {values, values + count};
  }

 private:
  Result<device::Memory> allocate(device::Memory::Where where, uint64_t bytes) {
    return device::Memory::allocate(gpu_, where, bytes);
  }
  device::GpuRef gpu_;
  std::deque<device::Memory> memory_;
  device::Stream stream_;
};

}  // namespace laconic::test

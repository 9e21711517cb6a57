// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "support/checked_device.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>

#include "kernels/kernel_list.h"

namespace laconic::test {
namespace {

template <class Kernel>
void run(device::CheckedMemory& memory, std::span<const uint32_t> blocks,
         std::span<const uint32_t> threads, Bytes args) {
  typename Kernel::Args of_kernel;
  std::memcpy(static_cast<void*>(&of_kernel), args.data(), sizeof of_kernel);
  for (const uint32_t index : blocks) {
    // Not on the stack: every cell remembers who touched it.
    auto shared = std::make_unique<typename Kernel::template Shared<device::CheckedBlock>>();
    device::CheckedBlock block(Kernel::name, index, memory, threads);
    Kernel::run(block, *shared, of_kernel);
  }
}

}  // namespace

void CheckedDevice::enqueue(std::string_view kernel, uint64_t blocks, Bytes args) {
  memory_.begin_launch();
  const std::vector<uint32_t> threads = in_order(device::kThreads);
  const std::vector<uint32_t> indices = in_order(static_cast<uint32_t>(blocks));
#define LACONIC_RUN(Kernel) \
  if (kernel == kernels::Kernel::name) return run<kernels::Kernel>(memory_, indices, threads, args);
  LACONIC_FOR_EACH_KERNEL(LACONIC_RUN)
#undef LACONIC_RUN
  memory_.report("no kernel has the name " + std::string(kernel));
}

std::vector<uint32_t> CheckedDevice::in_order(uint32_t count) const {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  if (order_ == Order::backward) std::reverse(order.begin(), order.end());
  if (order_ == Order::scrambled) {
    uint64_t state = count;
    for (uint32_t i = count; i > 1; --i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
  }
  return order;
}

}  // namespace laconic::test

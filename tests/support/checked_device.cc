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

const CheckedKernel* find_checked_kernel(std::string_view name) {
  static constexpr CheckedKernel kKernels[] = {
#define LACONIC_CHECKED(Kernel) \
  {kernels::Kernel::name, sizeof(kernels::Kernel::Args), &run<kernels::Kernel>},
      LACONIC_FOR_EACH_KERNEL(LACONIC_CHECKED)
#undef LACONIC_CHECKED
  };
  const auto* const at = std::find_if(std::begin(kKernels), std::end(kKernels),
                                      [&](const CheckedKernel& k) { return k.name == name; });
  return at == std::end(kKernels) ? nullptr : at;
}

void CheckedKernel::launch(device::CheckedMemory& memory, Order order, uint64_t blocks,
                           Bytes of_kernel) const {
  memory.begin_launch();
  run(memory, in_order(order, static_cast<uint32_t>(blocks)), in_order(order, device::kThreads),
      of_kernel);
}

void CheckedDevice::enqueue(std::string_view kernel, uint64_t blocks, Bytes args) {
  const CheckedKernel* const known = find_checked_kernel(kernel);
  if (known != nullptr) return known->launch(memory_, order_, blocks, args);
  memory_.report("no kernel has the name " + std::string(kernel));
}

std::vector<uint32_t> in_order(Order of, uint32_t count) {
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0U);
  if (of == Order::backward) std::reverse(order.begin(), order.end());
  if (of == Order::scrambled) {
    uint64_t state = count;
    for (uint32_t i = count; i > 1; --i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      std::swap(order[i - 1], order[(state >> 33) % i]);
    }
  }
  return order;
}

}  // namespace laconic::test

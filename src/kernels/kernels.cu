// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The symbols of all kernels, laconic_<Kernel>, for nvcc. Blocks of a launch lie in one dimension.
#include "device/block.h"
#include "kernels/kernel_list.h"

namespace {

template <class Kernel>
__device__ void run(const typename Kernel::Args& args) {
  using laconic::device::Block;
  __shared__ typename Kernel::template Shared<Block> shared;
  Block block;
  Kernel::run(block, shared, args);
}

}  // namespace

// Two blocks at least share a multiprocessor. Without the bound ptxas aims at four, and spills
// registers for it.
#define LACONIC_SYMBOL(Kernel)                                                        \
  extern "C" __global__ void __launch_bounds__(laconic::device::kThreads, 2)          \
      laconic_##Kernel(const __grid_constant__ laconic::kernels::Kernel::Args args) { \
    run<laconic::kernels::Kernel>(args);                                              \
  }
LACONIC_FOR_EACH_KERNEL(LACONIC_SYMBOL)

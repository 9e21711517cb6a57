// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/lowrank.h"

namespace laconic::kernels {

const LowRankKernels& lowrank_kernels(Isa) noexcept { return kLowRankScalar; }

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/permute.h"

namespace laconic::kernels {

const PermuteKernels& permute_kernels(Isa) noexcept { return kPermuteScalar; }

}  // namespace laconic::kernels

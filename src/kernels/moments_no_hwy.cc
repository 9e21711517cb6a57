// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/moments.h"

namespace laconic::kernels {

const MomentsKernels& moments_kernels(Isa) noexcept { return kMomentsScalar; }

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/threelc.h"

namespace laconic::kernels {

const ThreeLcKernels& threelc_kernels(Isa) noexcept { return kThreeLcScalar; }

}  // namespace laconic::kernels

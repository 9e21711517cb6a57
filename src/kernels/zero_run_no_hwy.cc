// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/zero_run.h"

namespace laconic::kernels {

const ZeroRunKernels& zero_run_kernels(Isa) noexcept { return kZeroRunScalar; }

}  // namespace laconic::kernels

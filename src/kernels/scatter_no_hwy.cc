// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/scatter.h"

namespace laconic::kernels {

const ScatterKernels& scatter_kernels(Isa) noexcept { return kScatterScalar; }

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/select.h"

namespace laconic::kernels {

const SelectKernels& select_kernels(Isa) noexcept { return kSelectScalar; }

}  // namespace laconic::kernels

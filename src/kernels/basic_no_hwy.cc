// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/basic.h"

namespace laconic::kernels {

const BasicKernels& basic_kernels(Isa) noexcept { return kBasicScalar; }

}  // namespace laconic::kernels

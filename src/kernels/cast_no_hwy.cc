// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/cast.h"

namespace laconic::kernels {

const CastKernels& cast_kernels(Isa) noexcept { return kCastScalar; }

}  // namespace laconic::kernels

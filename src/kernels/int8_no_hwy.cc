// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/int8.h"

namespace laconic::kernels {

const Int8Kernels& int8_kernels(Isa) noexcept { return kInt8Scalar; }

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/minifloat/inceptionn.h"
#include "kernels/minifloat/inceptionn_elements.h"

namespace laconic::kernels {

InceptionnForm inceptionn_form(uint32_t bound) noexcept {
  const auto power = [](int32_t exponent) {
    return bits_float(static_cast<uint32_t>(127 + exponent) << 23);
  };
  const auto b = static_cast<int32_t>(bound), h = b / 2;
  return {float_bits(power(-b)), float_bits(power(-h)), power(7 + h), power(-7 - h)};
}

constinit const InceptionnKernels kInceptionnScalar{&inceptionn_classify, &inceptionn_pack,
                                                    &inceptionn_count, &inceptionn_unpack,
                                                    &inceptionn_all_finite};

}  // namespace laconic::kernels

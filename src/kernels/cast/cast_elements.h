// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One element of a cast: the body of the reference and of vector loops' tails.
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/core/weighted_sum_scalar.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

[[nodiscard]] LACONIC_HOST_DEVICE inline uint16_t encode_f16(float w, float x,
                                                             bool saturate) noexcept {
  const float scaled = w * x;
  return float_to_f16(saturate ? saturate_to_f16(scaled) : scaled);
}

[[nodiscard]] LACONIC_HOST_DEVICE inline uint16_t encode_bf16(float w, float x) noexcept {
  return float_to_bf16(w * x);
}

[[nodiscard]] inline float decode_f16(const void* data, uint64_t i) noexcept {
  return f16_to_float(at<uint16_t>(data, i));
}

[[nodiscard]] inline float decode_bf16(const void* data, uint64_t i) noexcept {
  return bf16_to_float(at<uint16_t>(data, i));
}

}  // namespace laconic::kernels

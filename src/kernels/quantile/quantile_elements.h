// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One element's image and code, packed codes: the reference, and the tails of the vector loops.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/quantile/quantile.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

[[nodiscard]] constexpr uint32_t quantile_image_of_bits(uint32_t bits) noexcept {
  const uint32_t magnitude = bits & 0x7FFFFFFFU;
  return 0x80000000U + (bits >> 31 != 0 ? 0U - magnitude : magnitude);
}
[[nodiscard]] inline uint32_t quantile_image(float x) noexcept {
  return quantile_image_of_bits(float_bits(x));
}
[[nodiscard]] inline float quantile_float(uint32_t image) noexcept {
  return bits_float(image >= 0x80000000U ? image - 0x80000000U
                                         : 0x80000000U | (0x80000000U - image));
}

[[nodiscard]] inline uint32_t quantile_code(uint32_t image, const QuantileBins& bins) noexcept {
  uint32_t code = bins.base[image >> 16];
  for (uint32_t step = bins.steps; step > 0; --step) {
    const uint32_t half = 1U << (step - 1);
    code += bins.thresholds[code + half - 1] <= image ? half : 0U;
  }
  return code;
}

/// Sums of a chunk, the lanes of a bin side by side.
struct QuantileSums {
  alignas(64) std::array<double, kQuantileBins * kQuantileLanes> sum;

  explicit QuantileSums(uint32_t bins) { std::fill_n(sum.begin(), bins * kQuantileLanes, 0.0); }
  void add(uint64_t i, uint32_t code, double x) {
    sum[code * kQuantileLanes + i % kQuantileLanes] += x;
  }
  void fold(uint32_t bins, double* sums) const {
    for (uint32_t b = 0; b < bins; ++b) {
      const double* s = &sum[b * kQuantileLanes];
      const double even = (s[0] + s[4]) + (s[2] + s[6]), odd = (s[1] + s[5]) + (s[3] + s[7]);
      sums[b] = even + odd;
    }
  }
};

/// Code i of packed ones.
[[nodiscard]] inline uint32_t quantile_packed(const uint8_t* packed, uint64_t i,
                                              uint32_t width) noexcept {
  const uint64_t bit = i * width;
  uint32_t word = packed[bit / 8];
  if (bit % 8 + width > 8) word |= uint32_t{packed[bit / 8 + 1]} << 8;
  return word >> bit % 8 & ((1U << width) - 1);
}

/// Writes up to eight codes as the bytes that they take.
inline void quantile_pack(const uint8_t* codes, uint64_t n, uint32_t width, uint8_t* packed) {
  uint64_t word = 0;
  for (uint64_t i = 0; i < n; ++i) word |= uint64_t{codes[i]} << i * width;
  for (uint64_t bit = 0; bit < n * width; bit += 8) {
    *packed++ = static_cast<uint8_t>(word >> bit);
  }
}

/// An operand of a weighted sum: the values of its bins in a table of full size.
struct QuantileOperand {
  alignas(64) std::array<float, kQuantileBins> values;
  const uint8_t* codes = nullptr;
  uint32_t bins = 0;
  uint32_t width = 0;

  void open(const void* payload, const QuantileLayout& layout) {
    const auto* bytes = static_cast<const uint8_t*>(payload);
    values.fill(0.0F);
    std::memcpy(values.data(), bytes, layout.bins * sizeof(float));
    codes = bytes + layout.bins * sizeof(float);
    bins = layout.bins;
    width = layout.width;
  }
};
[[nodiscard]] inline float quantile_element(const void* operand, uint64_t i) noexcept {
  const auto& o = *static_cast<const QuantileOperand*>(operand);
  return o.values[quantile_packed(o.codes, i, o.width)];
}

}  // namespace laconic::kernels

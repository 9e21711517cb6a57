// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Dettmers' tree of 8 bits (8-Bit Approximations for Parallelism in Deep Learning, ICLR 2016): a
// sign, and a magnitude of 7 bits that spends one cell on the decade below 10^-5, and twice as many
// on each decade above.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "kernels/levels/levels.h"

namespace laconic::kernels {

/// v[i], the nearest float32: v[0] = 0; decade 10^e, e = −6 … −1, has m = 2^(e+6) cells in
/// [10^e, 4.5·10^e] and m in [4.5·10^e, 10^(e+1)], and v[i] are their midpoints; v[127] =
/// (v[126] + 1) / 2.
[[nodiscard]] constexpr std::array<float, kTreeValues> tree_values() noexcept {
  std::array<float, kTreeValues> v{};
  uint32_t i = 1;
  double unit = 1e6;  // 10^-e
  for (int32_t m = 1; m <= 32; m *= 2, unit /= 10) {
    // 4·m·v·10^-e is an integer, so only the division by 10^-e rounds
    for (int32_t j = 0; j < m; ++j) {
      v[i++] = static_cast<float>((4 * m + 14 * j + 7) / (4.0 * m * unit));
    }
    for (int32_t j = 0; j < m; ++j) {
      v[i++] = static_cast<float>((18 * m + 22 * j + 11) / (4.0 * m * unit));
    }
  }
  v[i] = static_cast<float>(2549.0 / 2560.0);  // v[126] is 1269/1280
  return v;
}
inline constexpr std::array<float, kTreeValues> kTreeValue = tree_values();

/// Bits of the smallest float that is nearer to v[i] than to v[i − 1]; of two equally near values
/// the smaller one is taken.
[[nodiscard]] constexpr uint32_t tree_bound(uint32_t i) noexcept {
  // Exact: the sum of two floats so close in magnitude.
  const double middle =
      (static_cast<double>(kTreeValue[i - 1]) + static_cast<double>(kTreeValue[i])) / 2;
  const auto near = static_cast<float>(middle);
  return std::bit_cast<uint32_t>(near) + (static_cast<double>(near) <= middle ? 1 : 0);
}

// A bin is what floats have in common that agree in exponent and the first 6 bits of the mantissa:
// narrower than any cell, so at most one bound lies in it, and
//
//   index(y) = (kTreeBins[bin(y)] + bits of y) >> 18   (mod 2^32)
//
// carries into the index from that bound on.
inline constexpr uint32_t kTreeBinShift = 17;
inline constexpr uint32_t kTreeLow = 0x35800000U;  ///< 2^-20, nearer to 0 than to v[1]
inline constexpr uint32_t kTreeBinCount = ((0x3F800000U - kTreeLow) >> kTreeBinShift) + 1;

[[nodiscard]] constexpr std::array<uint32_t, kTreeBinCount> tree_bins() noexcept {
  std::array<uint32_t, kTreeBinCount> bins{};
  uint32_t index = 0;
  for (uint32_t b = 0; b < kTreeBinCount; ++b) {
    const uint32_t start = kTreeLow + (b << kTreeBinShift);
    while (index + 1 < kTreeValues && tree_bound(index + 1) <= start) ++index;
    const uint32_t bound = index + 1 < kTreeValues ? tree_bound(index + 1) - start : ~uint32_t{0};
    const uint32_t none = uint32_t{1} << kTreeBinShift;
    bins[b] = ((index + 1) << 18) - (bound < none ? bound : none) - start;
  }
  return bins;
}
inline constexpr std::array<uint32_t, kTreeBinCount> kTreeBins = tree_bins();

/// Index of the value nearest to y in [0, 1]; roundings above 1 are in the last bin, too.
[[nodiscard]] inline uint32_t tree_index(float y) noexcept {
  uint32_t bits = std::bit_cast<uint32_t>(y);
  bits = bits < kTreeLow ? kTreeLow : bits;
  return (kTreeBins[(bits - kTreeLow) >> kTreeBinShift] + bits) >> 18;
}

/// Without branches: signs are as random as they get.
[[nodiscard]] inline int8_t tree_code(float x, float inverse) noexcept {
  const uint32_t bits = std::bit_cast<uint32_t>(x * inverse);
  const uint32_t negative = bits >> 31;
  const uint32_t index = tree_index(std::bit_cast<float>(bits & 0x7FFFFFFFU));
  return static_cast<int8_t>((index ^ (0U - negative)) + negative);
}

/// The value that element i of a term adds.
[[nodiscard]] inline float tree_value(const TreeTerm& term, uint64_t i) noexcept {
  const int32_t code = static_cast<const int8_t*>(term.codes)[i];
  return code < 0 ? -term.value[static_cast<uint32_t>(-code)]
                  : term.value[static_cast<uint32_t>(code)];
}

}  // namespace laconic::kernels

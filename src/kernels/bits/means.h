// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Payloads whose bits stand for means: their layout, and the means from the sums of chunks
// (kernels/bits/bits.h).
#pragma once

#include <cstdint>

#include "base/host_device.h"
#include "kernels/bits/bits.h"
#include "laconic/bytes.h"

namespace laconic::kernels {

/// Sums of a = x + e over elements that share their two values: of chunks, in order.
struct SignSums {
  double negative = 0;
  double positive = 0;
  uint64_t positives = 0;

  LACONIC_HOST_DEVICE void add(const BitsSums& chunk) noexcept {
    negative += static_cast<double>(chunk.negative);
    positive += static_cast<double>(chunk.positive);
    positives += chunk.positives;
  }
};

/// The values of every group of elements that share them, then the bits of the unit.
struct MeansFormat {
  uint64_t group = 0;      ///< elements, a multiple of kBitsChunk; 0: all of the unit
  bool magnitude = false;  ///< a group has one value m, for -m and m; else two, zero's before one's

  [[nodiscard]] constexpr uint64_t groups(uint64_t count) const noexcept {
    return group != 0 ? ceil_div(count, group) : count != 0 ? 1 : 0;
  }
  [[nodiscard]] constexpr uint64_t group_bytes() const noexcept {
    return magnitude ? sizeof(float) : sizeof(BitsValues);
  }
  /// The values of element i's group, and the unit's bits: bytes from the payload's start.
  [[nodiscard]] constexpr uint64_t values_at(uint64_t i) const noexcept {
    return group != 0 ? i / group * group_bytes() : 0;
  }
  [[nodiscard]] constexpr uint64_t bits_at(uint64_t count) const noexcept {
    return groups(count) * group_bytes();
  }
  [[nodiscard]] constexpr uint64_t bytes(uint64_t count) const noexcept {
    return bits_at(count) + ceil_div(count, 8);
  }

  /// The values of a group of `count` elements. The mean of no element is 0.
  [[nodiscard]] LACONIC_HOST_DEVICE BitsValues values(const SignSums& sums,
                                                      uint64_t count) const noexcept {
    if (magnitude) return both_signs(mean(sums.positive - sums.negative, count));
    return {mean(sums.negative, count - sums.positives), mean(sums.positive, sums.positives)};
  }
  [[nodiscard]] LACONIC_HOST_DEVICE static BitsValues both_signs(float m) noexcept {
    return {-m, m};
  }
  /// Whether a payload may have values of these bits: finite, the first not positive, the second
  /// not negative, no -0. The first is not looked at if there is one only.
  [[nodiscard]] constexpr bool valid(uint32_t zero, uint32_t one) const noexcept {
    return one < 0x7F800000U &&
           (magnitude || zero == 0 || (zero > 0x80000000U && zero < 0xFF800000U));
  }

 private:
  [[nodiscard]] LACONIC_HOST_DEVICE static float mean(double sum, uint64_t count) noexcept {
    return count == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(count));
  }
};

}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "pipeline/fixed_point.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace laconic::pipeline::fixed {
namespace {

constexpr uint32_t kBias = 127;
constexpr float kMostRange = 0x1p126F;

float power(int exponent) noexcept {
  const int bounded = std::clamp(exponent, kLeastExponent, kMostExponent);
  return bits_float(static_cast<uint32_t>(bounded + static_cast<int>(kBias)) << 23U);
}

/// ⌊log2 x⌋ of a number that is no denormal.
int exponent_of(float x) noexcept {
  return static_cast<int>(float_bits(x) >> 23U & 0xFFU) - static_cast<int>(kBias);
}

/// To the nearest, ties to even: the sum's last bit counts ones.
int32_t rounded(float x) noexcept {
  return static_cast<int32_t>(
      static_cast<uint32_t>(std::bit_cast<uint64_t>(static_cast<double>(x) + 0x1.8p52)));
}

bool usable(const UnitCodec& codec, const float* x, uint64_t n) {
  return codec.kernels().scan(x, n).max_abs <= kMostRange;
}

}  // namespace

float nearest_range(float range) noexcept {
  // Half of the mantissa rounds up into the exponent.
  return power(exponent_of(bits_float((float_bits(range) & 0x7FFFFFFFU) + 0x00400000U)));
}

uint16_t short_magnitude(float magnitude) noexcept {
  return static_cast<uint16_t>((float_bits(magnitude) + 0xFFFFU) >> 16U);
}

float next_range(float range, uint16_t largest) noexcept {
  const uint32_t bits = uint32_t{largest} << 16U & 0x7FFFFFFFU;
  if (bits == 0) return range == 0 ? power(kLeastExponent) : range;
  const float wanted = power(exponent_of(bits_float(bits)) + 1 + kHeadroomBits);
  return std::max(wanted, range == 0 ? wanted : power(exponent_of(range) - 1));
}

Measured measure(const UnitCodec& codec, const UnitSlot& slot, const float* gradient) {
  const uint64_t n = slot.unit.count;
  const auto& kernels = codec.kernels();
  if (!kernels.any_nonzero(gradient, n)) return {};
  if (slot.memory.values == nullptr) {
    const float most = kernels.scan(gradient, n).max_abs;
    return {std::isfinite(most) ? Outcome::payload : Outcome::non_finite, most};
  }
  float most = feedback::largest_corrected(kernels, slot.memory, gradient, n);
  bool reset = false;
  if (!(most <= kMostRange) && usable(codec, gradient, n) &&
      !usable(codec, slot.memory.values, n)) {
    std::fill_n(slot.memory.values, n, 0.0F);
    reset = true;
    most = feedback::largest_corrected(kernels, slot.memory, gradient, n);
  }
  return {std::isfinite(most) ? Outcome::payload : Outcome::non_finite, most, reset};
}

void encode(const UnitCodec& codec, const UnitSlot& slot, const float* gradient, float range,
            int32_t* codes) {
  const uint64_t n = slot.unit.count;
  const float unit = unit_of(range), units = 1.0F / unit;
  float* const rest = slot.memory.values;
  if (rest == nullptr) {
    for (uint64_t i = 0; i < n; ++i) codes[i] = rounded(gradient[i] * units);
    return;
  }
  feedback::correct(codec.kernels(), slot.memory, gradient, n);
  for (uint64_t i = 0; i < n; ++i) {
    codes[i] = rounded(rest[i] * units);
    rest[i] -= static_cast<float>(codes[i]) * unit;
  }
}

void put_back(const UnitSlot& slot, float range, uint64_t begin, std::span<const int32_t> codes) {
  if (slot.memory.values == nullptr) return;
  const float unit = unit_of(range);
  float* const rest = slot.memory.values + begin;
  for (uint64_t i = 0; i < codes.size(); ++i) rest[i] += static_cast<float>(codes[i]) * unit;
}

void take_gradient(const UnitCodec& codec, const UnitSlot& slot, const float* gradient) {
  if (slot.memory.values == nullptr) return;
  feedback::take_back(codec.kernels(), slot.memory, gradient, slot.unit.count);
}

void decode(std::span<const int32_t> sums, float range, uint32_t divisor, float* mean) {
  const auto unit = static_cast<double>(unit_of(range));
  const auto count = static_cast<double>(divisor);
  for (uint64_t i = 0; i < sums.size(); ++i)
    mean[i] = static_cast<float>(static_cast<double>(sums[i]) * unit / count);
}

}  // namespace laconic::pipeline::fixed

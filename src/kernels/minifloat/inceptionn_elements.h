// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One element, and loops over elements: the reference, and the tails of the vector loops.
#pragma once

#include <cstdint>

#include "kernels/core/weighted_sum_scalar.h"
#include "kernels/minifloat/inceptionn.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

inline constexpr uint32_t kInceptionnOne = 0x3F800000U;  // 1.0

[[nodiscard]] inline uint32_t inceptionn_tag(const InceptionnForm& form, float x) noexcept {
  const uint32_t a = float_bits(x) & 0x7FFFFFFFU;
  return a >= kInceptionnOne ? 3U : a >= form.half_bits ? 2U : a >= form.byte_bits ? 1U : 0U;
}

[[nodiscard]] inline float inceptionn_magnitude(float x) noexcept {
  return bits_float(float_bits(x) & 0x7FFFFFFFU);
}

/// Adding it rounds a magnitude below 2^22 to an integer, which then stands in the low bits.
inline constexpr float kInceptionnMagic = 0x1p23F;

[[nodiscard]] inline uint16_t inceptionn_half(float x) noexcept {
  const uint32_t c = float_bits(inceptionn_magnitude(x) * 0x1p14F + kInceptionnMagic) & 0x7FFFU;
  return static_cast<uint16_t>(c | (float_bits(x) >> 16 & 0x8000U));
}
[[nodiscard]] inline uint8_t inceptionn_byte(const InceptionnForm& form, float x) noexcept {
  const auto c = static_cast<uint32_t>(inceptionn_magnitude(x) * form.byte_scale);
  return static_cast<uint8_t>(c | (float_bits(x) >> 24 & 0x80U));
}

[[nodiscard]] inline float inceptionn_half_value(uint32_t field) noexcept {
  const float magnitude = static_cast<float>(field & 0x7FFFU) * 0x1p-14F;
  return bits_float(float_bits(magnitude) | (field & 0x8000U) << 16);
}
[[nodiscard]] inline float inceptionn_byte_value(const InceptionnForm& form,
                                                 uint32_t field) noexcept {
  const float magnitude = (static_cast<float>(field & 0x7FU) + 0.5F) * form.byte_step;
  return bits_float(float_bits(magnitude) | (field & 0x80U) << 24);
}

inline void inceptionn_pack_element(float x, const InceptionnForm& form, InceptionnOut* to) {
  switch (inceptionn_tag(form, x)) {
    case 3:
      put<float>(to->full, 0, x);
      to->full += sizeof(float);
      return;
    case 2:
      put<uint16_t>(to->half, 0, inceptionn_half(x));
      to->half += sizeof(uint16_t);
      return;
    case 1:
      *to->byte++ = inceptionn_byte(form, x);
      return;
    default:
      return;
  }
}

[[nodiscard]] inline float inceptionn_unpack_element(uint32_t tag, const InceptionnForm& form,
                                                     InceptionnIn* from) noexcept {
  float value = 0;
  switch (tag) {
    case 3:
      value = at<float>(from->full, 0);
      from->full += sizeof(float);
      break;
    case 2:
      value = inceptionn_half_value(at<uint16_t>(from->half, 0));
      from->half += sizeof(uint16_t);
      break;
    case 1:
      value = inceptionn_byte_value(form, *from->byte++);
      break;
    default:
      break;
  }
  return value;
}

inline bool inceptionn_classify(const float* x, uint64_t n, const InceptionnForm& form,
                                uint8_t* tags, InceptionnCounts* counts) noexcept {
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; i += 4) {
    uint32_t byte = 0;
    for (uint64_t j = i; j < std::min(n, i + 4); ++j) {
      const uint32_t tag = inceptionn_tag(form, x[j]);
      counts->full += tag == 3 ? 1U : 0U;
      counts->half += tag == 2 ? 1U : 0U;
      counts->byte += tag == 1 ? 1U : 0U;
      byte |= tag << 2 * (j - i);
      most = std::max(most, float_bits(x[j]) & 0x7FFFFFFFU);
    }
    tags[i / 4] = static_cast<uint8_t>(byte);
  }
  return most < 0x7F800000U;
}

inline void inceptionn_pack(const float* x, uint64_t n, const InceptionnForm& form,
                            InceptionnOut to) noexcept {
  for (uint64_t i = 0; i < n; ++i) inceptionn_pack_element(x[i], form, &to);
}

inline void inceptionn_unpack(const uint8_t* tags, uint64_t n, const InceptionnForm& form,
                              InceptionnIn* from, float w, Output output, float* out) noexcept {
  for (uint64_t i = 0; i < n; ++i) {
    const uint32_t tag = uint32_t{tags[i / 4]} >> 2 * (i % 4) & 3U;
    const float product = w * inceptionn_unpack_element(tag, form, from);
    out[i] = output == Output::add ? out[i] + product : product;
  }
}

inline InceptionnCounts inceptionn_count(const uint8_t* tags, uint64_t n) noexcept {
  InceptionnCounts counts;
  uint64_t low = 0, high = 0;
  const auto see = [&](uint64_t word) {
    const uint64_t odd = word >> 1 & 0x5555555555555555U, even = word & 0x5555555555555555U;
    counts.full += static_cast<uint64_t>(__builtin_popcountll(odd & even));
    high += static_cast<uint64_t>(__builtin_popcountll(odd));
    low += static_cast<uint64_t>(__builtin_popcountll(even));
  };
  uint64_t i = 0;
  for (; i + 32 <= n; i += 32) see(at<uint64_t>(tags + i / 4, 0));
  for (; i < n; ++i) see(uint32_t{tags[i / 4]} >> 2 * (i % 4) & 3U);
  counts.half = high - counts.full;
  counts.byte = low - counts.full;
  return counts;
}

inline bool inceptionn_all_finite(const void* values, uint64_t n) noexcept {
  uint32_t most = 0;
  for (uint64_t i = 0; i < n; ++i) most = std::max(most, at<uint32_t>(values, i) & 0x7FFFFFFFU);
  return most < 0x7F800000U;
}

}  // namespace laconic::kernels

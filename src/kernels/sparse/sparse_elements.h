// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sizes of sparse payloads, and samples of large units, for the CPU and the device. The set of
// (index, value) pairs is described in codecs/sparse/sparse_payload.h.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "base/host_device.h"
#include "laconic/bytes.h"
#include "laconic/dtype.h"

namespace laconic::kernels {

/// Largest unit: its indices and counts fit 32 bits.
inline constexpr uint64_t kMaxSparseCount = (uint64_t{1} << 32) - 1;

/// Elements that a sparsifier keeps of n: max(1, floor(ratio·n)); 0 of 0.
[[nodiscard]] LACONIC_HOST_DEVICE inline uint64_t kept_of(double ratio, uint64_t n) noexcept {
  if (n == 0) return 0;
  const auto kept = static_cast<uint64_t>(std::floor(ratio * static_cast<double>(n)));
  return kept == 0 ? 1 : kept < n ? kept : n;
}

/// Bits of an index below n.
[[nodiscard]] constexpr uint32_t index_width(uint64_t n) noexcept {
  return n <= 1 ? 0 : static_cast<uint32_t>(std::bit_width(n - 1));
}
[[nodiscard]] constexpr uint64_t index_bytes(uint64_t count, uint64_t n) noexcept {
  return ceil_div(count * index_width(n), 8);
}
/// Bytes of a set of `count` out of n. `values`: f32 or bf16.
[[nodiscard]] constexpr uint64_t sparse_bytes(uint64_t count, uint64_t n,
                                              DType values = DType::f32) noexcept {
  return index_bytes(count, n) + count * dtype_size(values);
}

/// Element i of a sample of s out of n: one of each stratum of n/s, at most n/s - room inside it.
[[nodiscard]] constexpr uint64_t sample_position(uint64_t i, uint64_t n, uint64_t s,
                                                 uint64_t room = 0) noexcept {
  const uint64_t begin = n / s * i + n % s * i / s;
  const uint32_t scrambled = static_cast<uint32_t>(i) * 0x9E3779B1U;
  return begin + (((n / s - room) * (scrambled >> 8)) >> 24);
}

}  // namespace laconic::kernels

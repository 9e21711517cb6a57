// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Bytes: spans, little-endian loads and stores, checked arithmetic.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

namespace laconic {

static_assert(std::endian::native == std::endian::little,
              "wire forms are little-endian and written in place");

using Bytes = std::span<const uint8_t>;
using MutBytes = std::span<uint8_t>;

/// Reads a T at any alignment. The caller has checked that sizeof(T) bytes are there.
template <class T>
requires std::is_trivially_copyable_v<T>
[[nodiscard]] inline T load(const uint8_t* p) noexcept {
  T value;
  std::memcpy(&value, p, sizeof(T));
  return value;
}

template <class T>
requires std::is_trivially_copyable_v<T>
inline void store(uint8_t* p, const T& value) noexcept { std::memcpy(p, &value, sizeof(T)); }

/// a + b and a * b that report overflow instead of wrapping: true means that `out` holds the exact
/// result.
[[nodiscard]] inline bool checked_add(uint64_t a, uint64_t b, uint64_t* out) noexcept {
  return !__builtin_add_overflow(a, b, out);
}
[[nodiscard]] inline bool checked_mul(uint64_t a, uint64_t b, uint64_t* out) noexcept {
  return !__builtin_mul_overflow(a, b, out);
}

[[nodiscard]] constexpr uint64_t ceil_div(uint64_t a, uint64_t b) noexcept {
  return a / b + (a % b != 0 ? 1U : 0U);
}
[[nodiscard]] constexpr uint64_t round_up(uint64_t a, uint64_t multiple) noexcept {
  return ceil_div(a, multiple) * multiple;
}

}  // namespace laconic

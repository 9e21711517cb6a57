// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace laconic {

/// The last `digits` hexadecimal digits of a number, no fewer: "00ab".
inline std::string hex_digits(uint64_t value, int digits = 16) {
  std::string text;
  for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) {
    text += "0123456789abcdef"[(value >> shift) & 15U];
  }
  return text;
}

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "laconic/bytes.h"

namespace laconic::test {

/// Quantized value number i of packed ones, the highest bit first.
inline uint32_t code_at(Bytes codes, uint64_t i, uint32_t bits) {
  uint32_t code = 0;
  for (uint64_t bit = i * bits; bit < (i + 1) * bits; ++bit)
    code = 2 * code + (uint32_t{codes[bit / 8]} >> (7 - bit % 8) & 1U);
  return code;
}

}  // namespace laconic::test

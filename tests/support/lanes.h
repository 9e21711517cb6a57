// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Lanes of float32, half and bfloat16, and what their sums have to be.
#pragma once

#include <cstdint>

#include "laconic/bytes.h"
#include "laconic/dtype.h"

namespace laconic::test {

inline float round_to(DType type, float x) {
  if (type == DType::f16) return f16_to_float(float_to_f16(x));
  if (type == DType::bf16) return bf16_to_float(float_to_bf16(x));
  return x;
}

inline float load_lane(DType type, const uint8_t* at) {
  if (type == DType::f32) return load<float>(at);
  const auto half = load<uint16_t>(at);
  return type == DType::f16 ? f16_to_float(half) : bf16_to_float(half);
}
inline void store_lane(DType type, uint8_t* at, float x) {
  if (type == DType::f32) return store(at, x);
  store(at, type == DType::f16 ? float_to_f16(x) : float_to_bf16(x));
}

/// Lane `i` of a rank: a multiple of 1/8, exact in all three types, whose sums are not.
inline float lane(uint32_t rank, uint64_t i) {
  return static_cast<float>(static_cast<int64_t>((i * 37 + rank * 101) % 251) - 125) *
         (rank == 1 ? 16.0F : 0.125F);
}
/// In rank order, rounded to the type after each addition: computed here in doubles.
inline float sum_of_lanes(DType type, uint32_t world, uint64_t i) {
  float total = lane(0, i);
  for (uint32_t r = 1; r < world; ++r) {
    const double exact = static_cast<double>(total) + static_cast<double>(lane(r, i));
    total = round_to(type, static_cast<float>(exact));
  }
  return total;
}

}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "laconic/bytes.h"
#include "laconic/codec.h"

namespace laconic::codecs {

/// `count` vectors of `length` floats, one after another.
struct VectorSet {
  float* values = nullptr;
  uint64_t length = 0;
  uint64_t count = 0;

  [[nodiscard]] float* operator[](uint64_t k) const noexcept { return values + k * length; }
};

/// A vector of which less than this share of its norm is left after the directions before it are
/// taken out depends on them: what is left is rounding noise of f32 sums.
inline constexpr double kDependent = 0x1p-20;

/// Bytes of scratch for vectors of that length.
[[nodiscard]] uint64_t gram_schmidt_scratch(uint64_t length) noexcept;

/// Modified Gram–Schmidt, vector by vector, in place; a vector that loses more than half of its
/// norm is orthogonalised twice (Kahan and Parlett: "twice is enough"). A zero or dependent vector
/// becomes zero. Not-a-number stays in the vectors that it reaches. Same bits on every instruction
/// set and thread count.
void orthonormalize(VectorSet vectors, Work& work, MutBytes scratch);

/// The same, but refill(context, k, vector) replaces a zero or dependent vector.
void orthonormalize(VectorSet vectors, Work& work, MutBytes scratch,
                    void (*refill)(const void* context, uint64_t k, std::span<float> vector),
                    const void* context);

}  // namespace laconic::codecs

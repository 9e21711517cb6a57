// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include "codecs/sparse/sparse_payload.h"

namespace laconic::codecs {

/// values[i] = +0 at every index i of the set: what adding the set with weight -1 does to the
/// elements that it was made of. `values` holds n elements.
void erase_sparse(const SparseView& set, uint64_t n, const Work& work, float* values) noexcept;

/// Subtracts the sent values from the elements that they were made of: leaves +0 where values are
/// float32, and the exact rounding error where they are bfloat16. `values` holds n elements.
void take_out_sparse(const SparseView& set, uint64_t n, const Work& work, float* values) noexcept;

/// The same at the indices within [begin, end).
void take_out_range(const SparseView& set, uint64_t begin, uint64_t end, Isa isa,
                    float* values) noexcept;

/// Whether no sum of values and residual exceeds `most` in magnitude, or is NaN.
[[nodiscard]] bool sums_within(Source source, uint64_t n, float most, const Work& work) noexcept;

/// residual += values, less what was sent.
void leave_rest(Source source, uint64_t n, const SparseView& sent, const Work& work) noexcept;

}  // namespace laconic::codecs

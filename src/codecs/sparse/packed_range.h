// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Walking packed indices: a range of places, or the places whose indices lie in a range.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "kernels/sparse/scatter.h"

namespace laconic::codecs {

/// The first place of [first, last), in which indices increase, whose index is not below `bound`;
/// `last` if there is none.
[[nodiscard]] inline uint64_t first_not_below(const kernels::PackedIndices& packed, uint64_t first,
                                              uint64_t last, uint64_t bound) noexcept {
  while (first < last) {
    const uint64_t middle = first + (last - first) / 2;
    if (kernels::packed_index(packed, middle) < bound) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return first;
}

/// body(indices, m) for positions [first, last), in batches and in order.
template <class Body>
void for_indices(const kernels::PackedIndices& packed, uint64_t first, uint64_t last, Isa isa,
                 Body&& body) {
  constexpr uint32_t kBlock = 512;
  const kernels::ScatterKernels& k = kernels::scatter_kernels(isa);
  alignas(64) std::array<uint32_t, kBlock> index;
  for (uint64_t at = first / 8 * 8; at < last; at += kBlock) {
    const auto m = static_cast<uint32_t>(std::min<uint64_t>(kBlock, last - at));
    const auto skip = static_cast<uint32_t>(first > at ? first - at : 0);
    k.unpack(packed, at, m, index.data());
    body(index.data() + skip, m - skip);
  }
}

}  // namespace laconic::codecs

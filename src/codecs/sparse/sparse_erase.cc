// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/sparse_erase.h"

#include "codecs/sparse/packed_range.h"

namespace laconic::codecs {

void erase_sparse(const SparseView& set, uint64_t n, const Work& work, float* values) noexcept {
  const auto erase = [&](uint64_t first, uint64_t last) {
    for_indices(set.index, first, last, work.isa, [values](const uint32_t* index, uint32_t m) {
      for (uint32_t j = 0; j < m; ++j) values[index[j]] = 0.0F;
    });
  };
  if (work.pool == nullptr) return erase(0, set.count);
  for_slices(work.pool, n, kScatterRange, [&](uint64_t begin, uint64_t end) {
    const uint64_t first = first_not_below(set.index, 0, set.count, begin);
    erase(first, first_not_below(set.index, first, set.count, end));
  });
}

}  // namespace laconic::codecs

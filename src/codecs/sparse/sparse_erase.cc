// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/sparse_erase.h"

#include "codecs/sparse/packed_range.h"

namespace laconic::codecs {
namespace {

void erase_places(const SparseView& set, uint64_t first, uint64_t last, Isa isa, float* values) {
  for_indices(set.index, first, last, isa, [values](const uint32_t* index, uint32_t m) {
    for (uint32_t j = 0; j < m; ++j) values[index[j]] = 0.0F;
  });
}

void erase_range(const SparseView& set, uint64_t begin, uint64_t end, Isa isa, float* values) {
  const uint64_t first = first_not_below(set.index, 0, set.count, begin);
  erase_places(set, first, first_not_below(set.index, first, set.count, end), isa, values);
}

}  // namespace

void erase_sparse(const SparseView& set, uint64_t n, const Work& work, float* values) noexcept {
  if (work.pool == nullptr) return erase_places(set, 0, set.count, work.isa, values);
  for_slices(work.pool, n, kScatterRange,
             [&](uint64_t begin, uint64_t end) { erase_range(set, begin, end, work.isa, values); });
}

void take_out_range(const SparseView& set, uint64_t begin, uint64_t end, Isa isa,
                    float* values) noexcept {
  if (set.type == DType::f32) return erase_range(set, begin, end, isa, values);
  add_range(set, -1.0F, begin, end, isa, values);
}

void take_out_sparse(const SparseView& set, uint64_t n, const Work& work, float* values) noexcept {
  if (set.type == DType::f32) return erase_sparse(set, n, work, values);
  for_slices(work.pool, n, kScatterRange, [&](uint64_t begin, uint64_t end) {
    take_out_range(set, begin, end, work.isa, values);
  });
}

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/sparse/sparse_erase.h"

#include <atomic>

#include "codecs/sparse/packed_range.h"
#include "kernels/core/basic.h"

namespace laconic::codecs {
namespace {

// A thread's share, as in the pipeline.
constexpr uint64_t kSlice = uint64_t{1} << 16;

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

bool sums_within(Source source, uint64_t n, float most, const Work& work) noexcept {
  const auto& kernels = kernels::basic_kernels(work.isa);
  std::atomic<bool> within{true};
  for_slices(work.pool, n, kSlice, [&](uint64_t begin, uint64_t end) {
    const float largest =
        kernels.max_abs_sum(source.values + begin, source.residual + begin, end - begin);
    if (!(largest <= most)) within.store(false, std::memory_order_relaxed);
  });
  return within.load(std::memory_order_relaxed);
}

void leave_rest(Source source, uint64_t n, const SparseView& sent, const Work& work) noexcept {
  const auto& kernels = kernels::basic_kernels(work.isa);
  const auto leave = [&](uint64_t begin, uint64_t end) {
    kernels.add(source.residual + begin, source.values + begin, end - begin);
    take_out_range(sent, begin, end, work.isa, source.residual);
  };
  // The pass that read the sums left their ends in the cache.
  for_slices(work.pool, n, kSlice, leave, Pass::backward);
}

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The largest elements of one block after another. Neighbours resemble each other: where the last
// block was cut is a little above where the next one's candidates begin, so one pass over a block
// in the first-level cache finds them. The result is exact, whatever the blocks before were.
#pragma once

#include <array>
#include <cstdint>

#include "codecs/sparse/sparse_select.h"
#include "kernels/core/basic.h"
#include "kernels/sparse/select.h"

namespace laconic::codecs {

/// Most elements that are kept of a block.
inline constexpr uint32_t kMostKept = 256;

/// The elements kept of a block, in ascending order of indices, and an entry to write to.
struct KeptOfBlock {
  alignas(64) std::array<uint32_t, kMostKept + 1> index;
  alignas(64) std::array<float, kMostKept + 1> value;
};

/// One thread's; 33 KiB.
class BlockSelector {
 public:
  explicit BlockSelector(Isa isa) noexcept
      : kernels_(kernels::select_kernels(isa)), basic_(kernels::basic_kernels(isa)) {}

  /// Keeps the k largest of the m elements of source.values from `begin` on; where there is a
  /// residual, it takes them up and the k largest are those of the sums. `behind` elements follow.
  /// 1 <= k <= min(m, kMostKept), m <= kSelectBlock. Returns the largest key.
  uint32_t select(Source source, uint64_t begin, uint32_t m, uint64_t behind, uint32_t k,
                  KeptOfBlock& kept) noexcept;

 private:
  void collect(Source source, uint64_t begin, uint32_t m, uint64_t behind) noexcept;
  void collect_again(const float* x, uint32_t m, uint32_t floor) noexcept;
  [[nodiscard]] uint32_t bound_of_groups(const float* x, uint32_t m, uint32_t k) const noexcept;
  [[nodiscard]] Cut cut_of(uint32_t k) noexcept;
  [[nodiscard]] uint32_t floor_below(uint32_t cut, uint32_t k) noexcept;
  template <bool kTies>
  uint32_t take(Cut cut, KeptOfBlock& kept) const noexcept;

  const kernels::SelectKernels& kernels_;
  const kernels::BasicKernels& basic_;
  uint32_t next_ = 0;  // where the next block's candidates should begin; 0: nothing is known
  uint32_t margin_ = 0;
  uint32_t floor_ = 0;  // where this one's begin
  uint32_t found_ = 0;  // how many there are
  alignas(64) std::array<uint32_t, kernels::kSelectBlock + kernels::kSelectSlack> index_;
  alignas(64) std::array<float, kernels::kSelectBlock + kernels::kSelectSlack> value_;
};

}  // namespace laconic::codecs

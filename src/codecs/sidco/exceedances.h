// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Questions that SIDCo asks about a unit: moments above a threshold, counts above a threshold. They
// are answered from memory, or, once few elements are left, from a list of those; the answers are
// the same bits either way.
#pragma once

#include <cstdint>

#include "codecs/sidco/sidco_fit.h"
#include "codecs/sparse/sparse_select.h"
#include "kernels/sparse/moments.h"
#include "laconic/codec.h"

namespace laconic::codecs::sidco {

class Exceedances {
 public:
  [[nodiscard]] static uint64_t scratch_bytes(uint64_t n, uint64_t wanted) noexcept;
  /// Only count() and write_above() may be called if `from` has a residual.
  Exceedances(Source from, uint64_t n, uint64_t wanted, Law law, const Work& work) noexcept;

  /// Moments of all non-zero magnitudes, divided by unit(); called first.
  Moments all();
  /// Moments of the distances from the smallest exceedance over `eta`, which is stored in `low`.
  Moments above(Threshold eta, double* low);
  /// How many exceed `eta`. With few expected, they are collected on the way.
  uint64_t count(Threshold eta);
  /// Whether a list holds everything above `eta`.
  [[nodiscard]] bool listed(Threshold eta) const noexcept;
  /// Says that the thresholds asked about from now on close in on the one that `wanted` elements
  /// exceed: a list of somewhat more is made, so that few questions cost a pass over memory.
  void expect_about(uint64_t wanted);
  /// Says that about `expected` elements exceed `eta` and that all later questions lie above it.
  void expect_only_above(Threshold eta, double expected);

  /// A power of two; magnitudes are measured in it, so that no square leaves the range of floats.
  [[nodiscard]] double unit() const noexcept { return 1.0 / static_cast<double>(scale_); }
  [[nodiscard]] uint32_t max_key() const noexcept { return max_key_; }
  /// How often all elements have been read.
  [[nodiscard]] uint32_t passes() const noexcept { return passes_; }

  /// Writes exactly the elements that exceed `eta`, or the `wanted` largest.
  void write_above(Threshold eta, SparseWriter& writer);
  void write_largest(uint64_t wanted, SparseWriter& writer);

 private:
  using Kernel = void (*)(const float*, uint32_t, kernels::MomentsInput, kernels::ChunkMoments*);

  Totals pass_over_memory(Kernel kernel, kernels::MomentsInput in);
  Totals pass_over_list(kernels::MomentsInput in) const;
  void collect(uint32_t floor);
  [[nodiscard]] uint64_t count_in_memory(uint32_t floor);
  void write_from_memory(Cut cut, SparseWriter& writer);
  Pass next_pass() noexcept;

  Source from_;
  const float* x_;
  uint64_t n_;
  uint64_t capacity_;
  Law law_;
  const Work& work_;
  kernels::ChunkMoments* chunk_;
  uint32_t* sample_;
  CandidateList list_;
  bool has_list_ = false;
  bool keep_list_ = false;  ///< it is the one that expect_about() made
  bool backward_ = true;
  float scale_ = 1.0F;
  uint32_t max_key_ = 0;
  uint32_t passes_ = 0;
};

}  // namespace laconic::codecs::sidco

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// NormSample: the size of residuals relative to gradients: sums of squares over the same few
// elements of both, at a fixed stride through the model, independent of buckets.
#pragma once

#include <cstdint>
#include <vector>

#include "collective/exchange/exchange.h"

namespace laconic::session {

class NormSample {
 public:
  /// Elements looked at in a step, at most.
  static constexpr uint64_t kMost = 4096;

  struct Sums {
    double residual = 0;
    double gradient = 0;
    uint64_t elements = 0;
  };

  NormSample() = default;
  explicit NormSample(const collective::RankState& state);

  /// For a bucket that is about to be encoded; its layout fits the model.
  [[nodiscard]] Sums of(const collective::RankState& state, const collective::LayoutView& layout,
                        const void* buffer, DType dtype) const noexcept;

 private:
  uint64_t stride_ = 1;
  std::vector<uint64_t> first_;  // by parameter: its first element that is looked at
};

}  // namespace laconic::session

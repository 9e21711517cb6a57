// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How many bytes to grant a bundle whose length varies: predicted from lengths that every rank
// knows, so that no round carries only sizes (docs/decisions/0004 and 0018). A prediction that was
// too small costs a repeat round, never data.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wire/bundle.h"

namespace laconic::collective {

class Capacity {
 public:
  Capacity() = default;
  /// `exact`: the size never varies (or only downwards), so the bound is the capacity.
  Capacity(uint64_t bound, bool exact) : bound_(std::max(bound, kMinCapacity)), exact_(exact) {}

  [[nodiscard]] uint64_t bytes() const noexcept {
    if (exact_ || !seen_) return bound_;
    const uint64_t margin = std::max(last_ / 16, 2 * growth_) + 64;
    return std::clamp(round_up(last_ + margin, 64), kMinCapacity, bound_);
  }
  /// Payloads have another bound from now on; what was seen is taken to grow with it.
  void rebound(uint64_t bound, bool exact) noexcept {
    const uint64_t before = bound_;
    bound_ = std::max(bound, kMinCapacity);
    exact_ = exact;
    last_ = static_cast<uint64_t>(static_cast<double>(last_) * static_cast<double>(bound_) /
                                  static_cast<double>(before));
  }
  /// Every rank calls it with the same `needed`.
  void saw(uint64_t needed) noexcept {
    const uint64_t grown = seen_ && needed > last_ ? needed - last_ : 0;
    growth_ = std::max(grown, growth_ - growth_ / 4);  // forget slowly: growth comes in bursts
    last_ = needed;
    seen_ = true;
  }

 private:
  uint64_t bound_ = kMinCapacity;
  uint64_t last_ = 0;
  uint64_t growth_ = 0;
  bool exact_ = true;
  bool seen_ = false;
};

}  // namespace laconic::collective

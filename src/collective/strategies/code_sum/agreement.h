// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The values that ranks agree on before they encode: for thc each unit's norm, as float32, of which
// the largest of all ranks counts. A unit is a parameter that a codec compresses. Norms are
// gathered and reduced here, because no engine takes a maximum.
#pragma once

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "base/arena.h"
#include "collective/exchange/held.h"
#include "laconic/engine.h"

namespace laconic::collective {

class Agreement {
 public:
  explicit Agreement(uint32_t world) : counts_(world), send_offsets_(world), recv_offsets_(world) {}
  /// Reserves memory for this number; returns the end of all.
  uint64_t add(uint64_t floats) noexcept { return size_ += floats; }
  [[nodiscard]] bool reserve() {
    const uint64_t bytes = size_ * sizeof(float);
    return own_.reserve(bytes) && gathered_.reserve(counts_.size() * bytes);
  }
  [[nodiscard]] uint64_t size() const noexcept { return size_; }
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(own_, gathered_, counts_, send_offsets_, recv_offsets_);
  }

  /// This rank's; after reduce(), the largest.
  [[nodiscard]] std::span<float> values(uint64_t first, uint64_t floats) {
    return {reinterpret_cast<float*>(own_.bytes().data()) + first, floats};
  }
  Step step() {
    const uint64_t bytes = size_ * sizeof(float);
    std::fill(counts_.begin(), counts_.end(), bytes);
    for (uint64_t r = 0; r < recv_offsets_.size(); ++r) recv_offsets_[r] = r * bytes;
    return {.kind = StepKind::all_gather,
            .send = own_.bytes().data(),
            .recv = gathered_.bytes().data(),
            .send_counts = counts_,
            .send_offsets = send_offsets_,
            .recv_counts = counts_,
            .recv_offsets = recv_offsets_};
  }
  /// Gathered. False: one is not finite.
  bool reduce() {
    const auto* const theirs = reinterpret_cast<const float*>(gathered_.bytes().data());
    const std::span<float> most = values(0, size_);
    std::fill(most.begin(), most.end(), 0.0F);
    bool finite = true;
    for (uint64_t i = 0; i < counts_.size() * size_; ++i) {
      finite = finite && std::isfinite(theirs[i]);
      most[i % size_] = std::max(most[i % size_], theirs[i]);
    }
    return finite;
  }

 private:
  uint64_t size_ = 0;
  Arena own_, gathered_;  // gathered: one rank's after another
  std::vector<uint64_t> counts_, send_offsets_, recv_offsets_;
};

}  // namespace laconic::collective

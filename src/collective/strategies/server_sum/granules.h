// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One rank's contributions to an aggregation server, and the sums that come back.
//
// A contribution is sent in granules: blocks of integers, each of which fits into a datagram. The
// result of a granule is the sum and a bitmap of the ranks in it, the same on all ranks. A rank
// that is not in a sum puts its contribution back into its residual, what error feedback keeps for
// later.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "base/arena.h"
#include "collective/exchange/held.h"
#include "collective/exchange/rank_state.h"
#include "collective/exchange/strategy.h"
#include "laconic/engine.h"

namespace laconic::collective {

/// All of a bucket: numbered from 0, and the memory that they use.
class Granules {
 public:
  Granules(const RankState& state, Counters& counters) : state_(&state), counters_(&counters) {}
  // Adds granules, or bytes, once; returns where they begin.
  uint64_t add(uint64_t granules) noexcept { return std::exchange(size_, size_ + granules); }
  uint64_t take(uint64_t bytes) noexcept {
    return std::exchange(bytes_, bytes_ + round_up(bytes, 64));
  }
  [[nodiscard]] bool reserve() {
    out_.resize(size_);
    in_.resize(size_);
    return memory_.reserve(bytes_);
  }
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(out_, in_, memory_); }
  [[nodiscard]] uint64_t size() const noexcept { return size_; }
  [[nodiscard]] MutBytes bytes(uint64_t at, uint64_t count) {
    return memory_.bytes().subspan(at, count);
  }

  /// All are empty; the first `travelling` travel. `settings` is a hash of what lanes mean.
  void begin(uint32_t settings, uint64_t travelling) {
    settings_ = settings;
    travelling_ = travelling;
    for (Contribution& c : out_) c = {{}, settings, 0, kGranuleEmpty};
  }
  [[nodiscard]] uint32_t settings() const noexcept { return settings_; }
  [[nodiscard]] std::span<Contribution> outs(uint64_t first, uint64_t count) {
    return std::span(out_).subspan(first, count);
  }
  void report_trouble() {
    for (Contribution& c : outs(0, travelling_)) c.flags |= kGranuleTrouble;
  }
  Step step() {
    return {.kind = StepKind::aggregate,
            .contributions = outs(0, travelling_),
            .aggregates = ins(0, travelling_)};
  }

  [[nodiscard]] std::span<Aggregate> ins(uint64_t first, uint64_t count) {
    return std::span(in_).subspan(first, count);
  }
  /// True if the sum is marked, or has an unexpected length.
  [[nodiscard]] bool trouble() const {
    return std::ranges::any_of(std::span(in_).first(travelling_), [](const Aggregate& a) {
      return (a.flags & kGranuleTrouble) != 0 || (a.length != 0 && a.length != a.lanes.size());
    });
  }
  /// Is this rank in a sum? Counts who is missing.
  bool is_in(const Aggregate& a) {
    const bool in = (a.bitmap >> state_->rank() & 1U) != 0;
    counters_->excluded_granules += in ? 0U : 1U;
    counters_->partial_granules += a.divisor < state_->world() ? 1U : 0U;
    return in;
  }

 private:
  const RankState* state_;
  Counters* counters_;
  std::vector<Contribution> out_;
  std::vector<Aggregate> in_;
  Arena memory_;
  uint64_t size_ = 0, bytes_ = 0, travelling_ = 0;
  uint32_t settings_ = 0;
};

/// Arrays of 32-bit lanes, each in granules of its own. Numbered in the order of add.
class ValueGranules {
 public:
  ValueGranules(const RankState& state, Granules& granules)
      : granules_(&granules), most_(state.model().values_per_granule()) {}
  uint64_t add(uint64_t lanes);
  /// After Granules::reserve.
  void place();
  [[nodiscard]] uint64_t held_bytes() const noexcept { return held(arrays_); }

  /// Nothing goes out yet.
  void begin() {
    for (uint64_t i = 0; i < arrays_.size(); ++i) put_norm(i, 0);
  }
  /// Memory for an array's values. It stays in place until the next exchange begins.
  [[nodiscard]] std::span<int32_t> room(uint64_t array) {
    const Array& a = arrays_[array];
    return {reinterpret_cast<int32_t*>(bytes(a.out, a.lanes).data()), a.lanes};
  }
  /// Value of one unit of the integers: the same on all ranks, also on those that send nothing. The
  /// server detects different scales; a sum would not show them.
  void set_scale(uint64_t array, float scale);
  /// `norm`: the largest comes back.
  void put(uint64_t array, uint16_t norm);
  /// No lanes, but a norm.
  void put_norm(uint64_t array, uint16_t norm);

  [[nodiscard]] uint16_t largest_norm(uint64_t array) const;
  /// The sum of one granule of an array.
  struct Sum {
    uint64_t begin = 0, count = 0;   ///< its lanes in the array
    std::span<const int32_t> lanes;  ///< empty: no rank had values
    uint32_t divisor = 1;
    bool left_out = false;  ///< this rank's are not in it
  };
  [[nodiscard]] uint64_t granules_of(uint64_t array) const {
    return ceil_div(arrays_[array].lanes, most_);
  }
  [[nodiscard]] Sum sum_of(uint64_t array, uint64_t granule);
  /// All sums of an array: zeros where no rank added.
  [[nodiscard]] MutBytes sums(uint64_t array);

 private:
  struct Array {
    uint64_t first = 0;  // granule
    uint64_t lanes = 0;
    uint64_t out = 0, in = 0;  // where they lie, and their sums
  };
  [[nodiscard]] std::span<Contribution> outs(uint64_t array) const {
    return granules_->outs(arrays_[array].first, granules_of(array));
  }
  [[nodiscard]] std::span<Aggregate> ins(uint64_t array) const {
    return granules_->ins(arrays_[array].first, granules_of(array));
  }
  [[nodiscard]] MutBytes bytes(uint64_t at, uint64_t lanes) const {
    return granules_->bytes(at, sizeof(int32_t) * lanes);
  }
  /// Those of a granule, among `bytes` of an array.
  template <class Span>
  [[nodiscard]] Span part(Span bytes, uint64_t granule) const {
    const uint64_t size = sizeof(int32_t) * most_;
    return bytes.subspan(granule * size, std::min(size, bytes.size() - granule * size));
  }

  Granules* granules_;
  uint64_t most_;  // lanes in a granule
  std::vector<Array> arrays_;
};

}  // namespace laconic::collective

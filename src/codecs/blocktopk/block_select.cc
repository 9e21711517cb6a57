// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "codecs/blocktopk/block_select.h"

#include <algorithm>

namespace laconic::codecs {
namespace {

using kernels::magnitude_key;

// Bounds of the margin, the distance in keys between a block's cut and the next one's floor; 2^23
// are a factor of two.
constexpr uint64_t kLeastMargin = 1U << 15;
constexpr uint64_t kMostMargin = 1U << 22;
constexpr uint32_t kFirstStep = 1U << 20;
constexpr uint64_t kPadding = 32;     // vectors have no tail then
constexpr uint32_t kKeys = 1U << 31;  // all keys are below

constexpr uint64_t kMostGroups = round_up(3 * kMostKept, kernels::kGroupColumns);

}  // namespace

// k groups have a maximum of at least the k-th of the maxima, so k elements have.
uint32_t BlockSelector::bound_of_groups(const float* x, uint32_t m, uint32_t k) const noexcept {
  std::array<uint32_t, kMostGroups> keys;
  const auto groups = static_cast<uint32_t>(round_up(3 * k, kernels::kGroupColumns));
  kernels_.group_max(x, m, groups, keys.data());
  return bound_of_kth(keys.data(), groups, k);
}

void BlockSelector::collect(Source source, uint64_t begin, uint32_t m, uint64_t behind) noexcept {
  const float* const x = source.values + begin;
  floor_ = next_;
  found_ = 0;
  if (source.residual == nullptr) {
    if (floor_ != 0)
      found_ = kernels_.select(x, m, behind, 0, floor_, index_.data(), value_.data());
    return;
  }
  float* const rest = source.residual + begin;
  if (floor_ == 0) return basic_.add(rest, x, m);
  found_ = kernels_.select_added(x, rest, m, behind, 0, floor_, index_.data(), value_.data());
}

void BlockSelector::collect_again(const float* x, uint32_t m, uint32_t floor) noexcept {
  floor_ = floor;
  found_ = kernels_.select(x, m, 0, 0, floor_, index_.data(), value_.data());
}

// Of the candidates, k of which are kept. Counting finds the cut in about ten steps of a few
// vectors each; once k are counted there are no ties to share.
Cut BlockSelector::cut_of(uint32_t k) noexcept {
  const auto count = [&](uint32_t key) {
    return kernels_.count(value_.data(), round_up(found_, kPadding), key);
  };
  if (found_ == k) return {floor_ - 1, 0};
  std::fill_n(value_.begin() + found_, round_up(found_, kPadding) - found_, 0.0F);
  uint32_t low = floor_;                              // at least k have this key or more
  uint32_t high = std::min(low + kFirstStep, kKeys);  // and fewer than k this one
  uint64_t above = 0;
  for (uint32_t step = 2 * kFirstStep; high < kKeys; step *= 2) {
    above = count(high);
    if (above == k) return {high - 1, 0};
    if (above < k) break;
    low = high;
    high = std::min(low + std::min(step, kKeys - low), kKeys);
    above = 0;
  }
  while (high - low > 1) {
    const uint32_t middle = low + (high - low) / 2;
    const uint64_t counted = count(middle);
    if (counted == k) return {middle - 1, 0};
    if (counted < k) {
      high = middle;
      above = counted;
    } else {
      low = middle;
    }
  }
  return {low, k - above};
}

// Moves to `kept` what lies above the cut, and as many ties as there are; returns the largest key.
template <bool kTies>
uint32_t BlockSelector::take(Cut cut, KeptOfBlock& kept) const noexcept {
  uint64_t ties = cut.ties;
  uint32_t taken = 0;
  uint32_t most = 0;
  for (uint32_t j = 0; j < found_; ++j) {
    const uint32_t key = magnitude_key(value_[j]);
    kept.index[taken] = index_[j];
    kept.value[taken] = value_[j];
    most = std::max(most, key);
    // No branch: whether a candidate is kept is a toss.
    taken += key > cut.key ? 1U : 0U;
    if constexpr (kTies) {
      const uint64_t tie = uint64_t{key == cut.key} & uint64_t{ties != 0};
      taken += static_cast<uint32_t>(tie);
      ties -= tie;
    }
  }
  return most;
}

// One and a half times the number of kept elements, if keys lie as close together below the cut as
// they did in this block.
uint32_t BlockSelector::floor_below(uint32_t cut, uint32_t k) noexcept {
  const uint64_t wanted = k / 2 + 8;
  const uint64_t seen = std::max(found_ - k, k / 8 + 1);
  const uint64_t below = cut < floor_ ? 0 : cut - floor_;
  margin_ = static_cast<uint32_t>(std::clamp(below * wanted / seen, kLeastMargin, kMostMargin));
  return cut > margin_ ? cut - margin_ : 1;
}

uint32_t BlockSelector::select(Source source, uint64_t begin, uint32_t m, uint64_t behind,
                               uint32_t k, KeptOfBlock& kept) noexcept {
  collect(source, begin, m, behind);
  const float* const x = (source.residual != nullptr ? source.residual : source.values) + begin;
  if (found_ < k && floor_ > 4 * margin_) collect_again(x, m, floor_ - 4 * margin_);
  if (found_ < k) collect_again(x, m, std::max(bound_of_groups(x, m, k), 1U));  // not the zeros
  if (found_ < k) {
    const uint64_t zeros = k - found_;  // fill up, the first ones
    collect_again(x, m, 0);
    next_ = 0;
    return take<true>({0, zeros}, kept);
  }
  const Cut cut = cut_of(k);
  next_ = floor_below(cut.key, k);
  return cut.ties == 0 ? take<false>(cut, kept) : take<true>(cut, kept);
}

}  // namespace laconic::codecs

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace laconic::collective {

/// Which parameters lie where in a bucket. Only transport: no value depends on it, except
/// engine-added float sums.
struct Layout {
  std::vector<uint32_t> parameters;
  std::vector<uint64_t> offsets;  ///< in elements, by position in `parameters`
  uint64_t elements = 0;
  friend bool operator==(const Layout&, const Layout&) = default;
};

/// A layout stored elsewhere: a lookup must not need memory.
struct LayoutView {
  std::span<const uint32_t> parameters;
  std::span<const uint64_t> offsets;
  uint64_t elements = 0;

  LayoutView() = default;
  LayoutView(std::span<const uint32_t> p, std::span<const uint64_t> o, uint64_t n)
      : parameters(p), offsets(o), elements(n) {}
  LayoutView(const Layout& l)  // NOLINT(google-explicit-constructor)
      : parameters(l.parameters), offsets(l.offsets), elements(l.elements) {}

  [[nodiscard]] bool same(const Layout& other) const noexcept {
    return elements == other.elements && std::ranges::equal(parameters, other.parameters) &&
           std::ranges::equal(offsets, other.offsets);
  }
  [[nodiscard]] Layout copy() const {
    return {{parameters.begin(), parameters.end()}, {offsets.begin(), offsets.end()}, elements};
  }
};

/// Buckets are cut between parameters into parts of at most `bytes` of float32, unless a single
/// parameter has more; 0: not at all. The part that begins with entry `begin` of a back-to-back
/// layout ends before the entry that this gives.
inline size_t end_of_part(const LayoutView& whole, size_t begin, uint64_t bytes) noexcept {
  const size_t entries = whole.parameters.size();
  if (bytes == 0) return entries;
  const uint64_t first = begin == 0 ? 0 : whole.offsets[begin];
  size_t end = std::min(begin + 1, entries);
  for (; end < entries; ++end) {
    const uint64_t last = end + 1 < entries ? whole.offsets[end + 1] : whole.elements;
    if ((last - first) * sizeof(float) > bytes) break;
  }
  return end;
}

}  // namespace laconic::collective

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

/// A layout that somebody else holds: looking one up must not need memory.
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

/// A piece of a bucket that is exchanged on its own.
struct Part {
  uint64_t first = 0;  ///< element of the bucket
  Layout layout;       ///< as of a bucket that begins there
};

/// Cuts a back-to-back layout between parameters, into parts of at most `bytes` of float32 unless a
/// single parameter has more. 0: one part.
inline std::vector<Part> cut(const LayoutView& whole, uint64_t bytes) {
  std::vector<Part> parts(1);
  for (size_t i = 0; i < whole.parameters.size(); ++i) {
    const uint64_t begin = whole.offsets[i];
    const uint64_t end = i + 1 < whole.offsets.size() ? whole.offsets[i + 1] : whole.elements;
    const bool full = bytes != 0 && (end - parts.back().first) * sizeof(float) > bytes;
    if (full && !parts.back().layout.parameters.empty()) parts.push_back({begin, {}});
    Part& last = parts.back();
    last.layout.parameters.push_back(whole.parameters[i]);
    last.layout.offsets.push_back(begin - last.first);
    last.layout.elements = end - last.first;
  }
  return parts;
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/nearest.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace laconic {
namespace {

/// Levenshtein distance, one row at a time.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substituted = diagonal + (a[i - 1] == b[j - 1] ? 0U : 1U);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substituted});
    }
  }
  return row.back();
}

/// Abbreviations ("power" for "powersgd") count as one slip, whatever their length.
std::size_t slips(std::string_view text, std::string_view candidate) {
  const std::size_t common = std::min(text.size(), candidate.size());
  if (common >= 3 && text.substr(0, common) == candidate.substr(0, common)) return 1;
  return edit_distance(text, candidate);
}

}  // namespace

std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates) {
  constexpr std::size_t kLongest = 64;  // of hostile input, enough to compare
  text = text.substr(0, kLongest);
  std::string_view best;
  std::size_t fewest = std::max<std::size_t>(2, text.size() / 3) + 1;
  for (const std::string_view candidate : candidates) {
    const std::size_t distance = slips(text, candidate);
    if (distance >= fewest || distance >= candidate.size()) continue;
    best = candidate;
    fewest = distance;
  }
  return best;
}

}  // namespace laconic

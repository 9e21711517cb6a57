// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine/names_of.h"

namespace laconic {

std::string names_of(const std::vector<uint32_t>& ranks) {
  std::string names = ranks.empty() ? "" : ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i)
    names += (i == 0 ? "" : i + 1 < ranks.size() ? ", " : " and ") + std::to_string(ranks[i]);
  return names;
}

}  // namespace laconic

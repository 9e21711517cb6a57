// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Who is on which node, by the hosts of all ranks.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace laconic::mpi {

struct Places {
  uint32_t node = 0;   ///< of this rank, in the order of their first ranks
  uint32_t place = 0;  ///< in the node, in rank order
  std::string why;     ///< why there are no nodes; empty: there are
};

/// `hosts`: by rank. The same `why` on every rank.
inline Places places_of(std::span<const uint64_t> hosts, uint32_t rank) {
  Places mine;
  std::vector<uint64_t> names;
  std::vector<uint32_t> sizes;
  for (uint32_t r = 0; r < hosts.size(); ++r) {
    const auto node = static_cast<size_t>(std::ranges::find(names, hosts[r]) - names.begin());
    if (node == names.size()) {
      names.push_back(hosts[r]);
      sizes.push_back(0);
    }
    if (r == rank) mine.node = static_cast<uint32_t>(node), mine.place = sizes[node];
    ++sizes[node];
  }
  const auto [least, most] = std::ranges::minmax(sizes);
  if (sizes.size() == 1) {
    mine.why = "all ranks are on one host";
  } else if (most == 1) {
    mine.why = "each host has one rank";
  } else if (least != most) {
    mine.why = "hosts have " + std::to_string(least) + " to " + std::to_string(most) + " ranks";
  }
  return mine;
}

}  // namespace laconic::mpi

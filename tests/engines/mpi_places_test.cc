// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Nodes of an MPI job, by the hosts of its ranks. Needs no MPI.
#include <gtest/gtest.h>

#include "engines/mpi/places.h"

namespace laconic::mpi {
namespace {

TEST(MpiPlaces, RanksOfInterleavedHostsAreCountedByHost) {
  const std::vector<uint64_t> hosts{7, 3, 7, 3, 7, 3};
  for (uint32_t r = 0; r < hosts.size(); ++r) {
    const Places mine = places_of(hosts, r);
    EXPECT_EQ(mine.why, "");
    EXPECT_EQ(mine.node, r % 2) << r;
    EXPECT_EQ(mine.place, r / 2) << r;
  }
}

TEST(MpiPlaces, HostsThatAreNoNodesHaveReason) {
  const auto why = [](const std::vector<uint64_t>& hosts) { return places_of(hosts, 0).why; };
  EXPECT_EQ(why({7, 3, 7}), "hosts have 1 to 2 ranks");
  EXPECT_EQ(why({7, 3, 5}), "each host has one rank");
  EXPECT_EQ(why({7, 7}), "all ranks are on one host");
}

}  // namespace
}  // namespace laconic::mpi

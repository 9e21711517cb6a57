// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/random.h"

#include <gtest/gtest.h>

#include <set>
#include <utility>

namespace laconic {
namespace {

// Known answers of Random123 1.14, kat_vectors, philox4x32 with 10 rounds.
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox({0, 0}, 0), (RandomBlock{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(philox({~0U, ~0U}, ~uint64_t{0}, ~uint64_t{0}),
            (RandomBlock{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox({0xa4093822, 0x299f31d0}, 0x85a308d3243f6a88, 0x0370734413198a2e),
            (RandomBlock{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, PhiloxIsConstantExpression) { static_assert(philox({0, 0}, 0)[0] == 0x6627e8d5); }

using Pair = std::pair<uint32_t, uint32_t>;
Pair pair_of(RandomKey key) { return {key.k0, key.k1}; }

// Part of the format: a key that changed would decode stored random-k frames to other indices.
TEST(Keys, KeysNeverChange) {
  EXPECT_EQ(pair_of(shared_key(0, 0, 0)), Pair(0x724b89f5, 0x29ef277f));
  EXPECT_EQ(pair_of(shared_key(1, 2, 3)), Pair(0x7ae83180, 0x13903447));
  EXPECT_EQ(pair_of(own_key(0, 0, 0, 0, 0)), Pair(0x8c45526c, 0xab9bca9a));
  EXPECT_EQ(pair_of(own_key(1, 2, 3, 4, 5)), Pair(0xc5d4c241, 0x96606c09));
}

TEST(Keys, EveryInputMattersAndStreamsDiffer) {
  std::set<Pair> seen;
  uint64_t made = 0;
  const auto add = [&](RandomKey key) {
    seen.insert(pair_of(key));
    ++made;
  };
  for (uint64_t seed : {0U, 1U, 2U, 1U << 20}) {
    for (uint64_t step = 0; step < 8; ++step) {
      for (uint64_t parameter = 0; parameter < 8; ++parameter) {
        add(shared_key(seed, step, parameter));
        for (uint32_t rank = 0; rank < 8; ++rank) {
          for (uint32_t hop = 0; hop < 2; ++hop) add(own_key(seed, step, parameter, rank, hop));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), made);
}

TEST(Keys, InputsDoNotCommute) {
  EXPECT_NE(shared_key(1, 2, 3), shared_key(2, 1, 3));
  EXPECT_NE(shared_key(1, 2, 3), shared_key(1, 3, 2));
  EXPECT_NE(own_key(1, 2, 3, 1, 0), own_key(1, 2, 3, 0, 1));
}

// Each of 64 key bits is set about as often as not over neighbouring inputs.
TEST(Keys, BitsAreBalanced) {
  for (int bit = 0; bit < 64; ++bit) {
    int ones = 0;
    for (uint64_t step = 0; step < 4096; ++step) {
      const RandomKey key = own_key(7, step, 11, 3, 0);
      ones += static_cast<int>(((static_cast<uint64_t>(key.k1) << 32 | key.k0) >> bit) & 1U);
    }
    EXPECT_NEAR(ones, 2048, 5 * 32) << "bit " << bit;  // five standard deviations
  }
}

}  // namespace
}  // namespace laconic

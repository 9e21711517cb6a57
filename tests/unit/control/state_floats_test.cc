// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/state_floats.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

namespace laconic::control {
namespace {

TEST(StateFloats, FloatsKeepEveryBit) {
  std::mt19937_64 random(1);
  std::vector<uint64_t> words{0, ~uint64_t{0}, uint64_t{1} << 63U};
  for (int i = 0; i < 100; ++i) words.push_back(random());
  std::vector<float> floats(kFloatsPerWord * words.size());
  words_to_floats(words, floats);
  std::vector<uint64_t> back(words.size());
  ASSERT_TRUE(floats_to_words(floats, back));
  EXPECT_EQ(back, words);
}

TEST(StateFloats, UnrepresentableFloatsAreRefused) {
  std::vector<uint64_t> word(1);
  for (const float bad : {-1.0F, 0.5F, 65536.0F, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity()}) {
    EXPECT_FALSE(floats_to_words(std::vector<float>{0, 0, bad, 0}, word)) << bad;
  }
  EXPECT_FALSE(floats_to_words(std::vector<float>{0, 0, 0}, word));
  EXPECT_TRUE(floats_to_words(std::vector<float>{0, 0, 65535, 0}, word));
}

}  // namespace
}  // namespace laconic::control

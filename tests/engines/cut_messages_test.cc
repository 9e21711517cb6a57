// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/shared/cut_messages.h"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace laconic::detail {
namespace {

constexpr int kTag = 5;

/// Lengths of all calls, which end one by one.
std::vector<uint64_t> calls_of(uint64_t bytes, bool ends_short) {
  std::array<uint8_t, 64> memory{};
  CutMessages messages;
  const size_t number = messages.add(kTag, memory.data(), bytes, 10, ends_short);
  std::vector<uint64_t> found;
  uint64_t from = 0;
  while (const auto call = messages.next(number)) {
    EXPECT_EQ(call->at, memory.data() + from);
    from += call->bytes;
    found.push_back(call->bytes);
    messages.ended(number, false);
  }
  EXPECT_EQ(from, bytes);
  EXPECT_FALSE(messages.hold_up(kTag));
  return found;
}

using Lengths = std::vector<uint64_t>;

TEST(CutMessages, MessagesHaveFullCallsAndRest) {
  EXPECT_EQ(calls_of(25, false), (Lengths{10, 10, 5}));
  EXPECT_EQ(calls_of(20, false), (Lengths{10, 10}));
}

TEST(CutMessages, MessagesOfUnknownLengthEndWithShortCall) {
  EXPECT_EQ(calls_of(25, true), (Lengths{10, 10, 5}));
  EXPECT_EQ(calls_of(20, true), (Lengths{10, 10, 0}));
}

TEST(CutMessages, MessagesBlockTheirTagUntilLastCall) {
  CutMessages messages;
  std::array<uint8_t, 64> memory{};
  const size_t number = messages.add(kTag, memory.data(), 25, 10, false);
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(messages.hold_up(kTag));
    EXPECT_FALSE(messages.hold_up(kTag + 1));
    EXPECT_TRUE(messages.next(number));
  }
  EXPECT_FALSE(messages.hold_up(kTag));  // though all three are under way
  const size_t room = messages.add(kTag, memory.data(), 64, 10, true);
  EXPECT_TRUE(messages.next(room));
  EXPECT_TRUE(messages.hold_up(kTag));
  EXPECT_FALSE(messages.ended(room, true));  // it held less than it might
  EXPECT_FALSE(messages.hold_up(kTag));
  EXPECT_FALSE(messages.next(room));
}

TEST(CutMessages, MessagesKeepNumbersWhileCallsAreInFlight) {
  CutMessages messages;
  std::array<uint8_t, 64> memory{};
  const size_t first = messages.add(1, memory.data(), 20, 10, false);
  EXPECT_TRUE(messages.next(first));
  EXPECT_TRUE(messages.next(first));
  EXPECT_NE(messages.add(2, memory.data(), 20, 10, false), first);
  messages.ended(first, false);
  EXPECT_NE(messages.add(3, memory.data(), 20, 10, false), first);
  messages.ended(first, false);
  EXPECT_EQ(messages.add(4, memory.data(), 20, 10, false), first);
  EXPECT_FALSE(messages.hold_up(1));
  EXPECT_TRUE(messages.hold_up(4));
}

}  // namespace
}  // namespace laconic::detail

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The small pieces of base: errors, arena, hash, checked arithmetic.
#include <gtest/gtest.h>

#include <array>
#include <set>

#include "base/arena.h"
#include "base/hash.h"
#include "base/hex.h"
#include "laconic/bytes.h"
#include "laconic/error.h"

namespace laconic {
namespace {

TEST(Errc, NamesAreUniqueAndUnknownIsNamed) {
  std::set<std::string_view> names;
  int listed = 0;
  for (int number = -1; number < 200; ++number) {
    const std::string_view name = errc_name(static_cast<Errc>(number));
    if (name == "unknown") continue;
    names.insert(name);
    ++listed;
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(listed));
  EXPECT_EQ(errc_name(Errc::frame_checksum), "frame_checksum");
  EXPECT_EQ(errc_name(Errc::internal), "internal");
  EXPECT_EQ(errc_name(static_cast<Errc>(-1)), "unknown");
}

TEST(Result, ResultHoldsValueOrError) {
  const Result<int> value = 7;
  ASSERT_TRUE(value);
  EXPECT_EQ(*value, 7);
  const Result<int> error = Errc::timed_out;
  EXPECT_FALSE(error);
  EXPECT_EQ(error.error().code, Errc::timed_out);
  EXPECT_TRUE(Result<void>());
  EXPECT_TRUE(Result<void>(Errc::ok));
  EXPECT_FALSE(Result<void>(Errc::internal));
}

TEST(Arena, GrowsAlignedAndNeverShrinks) {
  Arena arena;
  EXPECT_EQ(arena.capacity(), 0U);
  EXPECT_TRUE(arena.reserve(0));
  ASSERT_TRUE(arena.reserve(100));
  EXPECT_GE(arena.capacity(), 100U);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.bytes().data()) % 64, 0U);
  const uint8_t* small = arena.bytes().data();
  ASSERT_TRUE(arena.reserve(1));
  EXPECT_EQ(arena.bytes().data(), small);
  ASSERT_TRUE(arena.reserve((uint64_t{2} << 20) + 1));
  EXPECT_EQ(arena.capacity(), uint64_t{4} << 20);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(arena.bytes().data()) % (uint64_t{2} << 20), 0U);
  arena.bytes().front() = 1;
  arena.bytes().back() = 2;
}

TEST(Arena, ImpossibleSizeIsRefusedAndMemoryKept) {
  Arena arena;
  ASSERT_TRUE(arena.reserve(64));
  const uint8_t* before = arena.bytes().data();
  EXPECT_FALSE(arena.reserve(UINT64_MAX));
  EXPECT_FALSE(arena.reserve(UINT64_MAX / 2 + 1));
  EXPECT_EQ(arena.bytes().data(), before);
  EXPECT_EQ(arena.capacity(), 64U);
}

TEST(Arena, ArenaMoves) {
  Arena a;
  ASSERT_TRUE(a.reserve(64));
  const uint8_t* data = a.bytes().data();
  Arena b = std::move(a);
  EXPECT_EQ(b.bytes().data(), data);
  Arena c;
  c = std::move(b);
  EXPECT_EQ(c.bytes().data(), data);
}

// Vectors of the XXH3-64 specification's test program (seed 0): the empty input and a text.
TEST(Hash, HashIsXxh3) {
  EXPECT_EQ(hash64(std::string_view()), 0x2D06800538D394C2U);
  const std::string_view text = "topk:ratio=0.01";
  EXPECT_EQ(hash64(text),
            hash64(Bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size())));
  EXPECT_NE(hash64(Bytes(), 1), hash64(Bytes(), 0));
  const std::array<uint32_t, 2> words{0x6B706F74U, 0x7461723AU};  // "topk:rat"
  EXPECT_EQ(hash64(std::span<const uint32_t>(words)), hash64(text.substr(0, 8)));
}

TEST(Hex, HexHasRequestedNumberOfDigits) {
  EXPECT_EQ(hex_digits(0xABU), "00000000000000ab");
  EXPECT_EQ(hex_digits(0xFEDCBA9876543210U), "fedcba9876543210");
  EXPECT_EQ(hex_digits(0x4CU, 2), "4c");
  EXPECT_EQ(hex_digits(7, 2), "07");
}

TEST(Arithmetic, OverflowIsReported) {
  uint64_t out = 0;
  EXPECT_TRUE(checked_add(UINT64_MAX - 1, 1, &out));
  EXPECT_EQ(out, UINT64_MAX);
  EXPECT_FALSE(checked_add(UINT64_MAX, 1, &out));
  EXPECT_TRUE(checked_mul(1U << 31, 1U << 31, &out));
  EXPECT_FALSE(checked_mul(uint64_t{1} << 32, uint64_t{1} << 32, &out));
  EXPECT_EQ(ceil_div(UINT64_MAX, 2), uint64_t{1} << 63);
  EXPECT_EQ(round_up(9, 8), 16U);
}

}  // namespace
}  // namespace laconic

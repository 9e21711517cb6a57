// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Launches with a block per unit, for more tiles than such a block has threads: 3 million elements
// would take long from end to end.
#include "kernels/threelc/threelc_device.h"

#include <gtest/gtest.h>

#include <random>

#include "support/checked_device.h"

namespace laconic::kernels {
namespace {

using test::CheckedDevice;
using test::Order;

constexpr uint64_t kTiles = 2 * device::kThreads + 90;
constexpr uint64_t kCount = kTiles * kTileElements - 3;

/// Tiles of which two thirds are all zero, so that runs are longer than 256 tiles' threads see.
std::vector<ThreeLcCoded> coded_tiles(bool all_zero_start) {
  std::mt19937 random(1);
  std::vector<ThreeLcCoded> coded;
  for (uint64_t i = 0; i < kTiles; ++i) {
    const bool zero = (all_zero_start && i < 300) || random() % 3 != 0;
    if (zero) {
      coded.push_back({kTileColumns, 0, 0, 0});
    } else {
      coded.push_back({static_cast<uint32_t>(random() % 40),
                       1 + static_cast<uint32_t>(random() % 900),
                       static_cast<uint32_t>(random() % 40), 0});
    }
  }
  return coded;
}

TEST(ThreeLcDeviceTest, RunsReachOverManyTiles) {
  for (const bool chunks : {false, true}) {
    for (const bool zeros_first : {false, true}) {
      const ThreeLcFormat format{1.0F, chunks, true, false};
      CheckedDevice gpu(Order::scrambled);
      const auto measured = gpu.memory().allocate<device::Measured>(
          "measured", std::vector{device::Measured{1, 0, 1}});
      device::EncodeRow row;
      row.count = kCount;
      row.measured = measured;
      row.scratch = gpu.memory().allocate("scratch", ThreeLcScratch::bytes(kTiles), 1);
      gpu.memory().set_written(row.scratch);
      const ThreeLcScratch scratch{row.scratch, kTiles};
      const std::vector<ThreeLcCoded> coded = coded_tiles(zeros_first);
      std::copy(coded.begin(), coded.end(), scratch.coded());
      const auto* rows = gpu.memory().allocate<device::EncodeRow>("rows", std::vector{row});
      gpu.launch<ThreeLcJoin>(1, {{rows, 1, kTiles, false}, format});

      uint64_t run = 0, run_at = 0;
      for (uint64_t i = 0; i < kTiles; ++i) {
        const ThreeLcPart part = threelc_part(format, kCount, i);
        ASSERT_EQ(scratch.places()[i].run, run) << "tile " << i;
        ASSERT_EQ(scratch.places()[i].run_at, run_at) << "tile " << i;
        run += coded[i].head;
        if (coded[i].body != 0) {
          run_at += run_codes(run) + coded[i].body;
          run = coded[i].tail;
        }
        if (!part.last(i)) continue;
        run_at += run_codes(run);
        run = 0;
      }
      EXPECT_EQ(measured->bytes, threelc_header(format, kCount) + run_at);
      EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
    }
  }
}

TEST(ThreeLcDeviceTest, StartsAreSumsOfSizes) {
  CheckedDevice gpu(Order::backward);
  std::vector<uint64_t> sizes(2 * kTiles);
  for (uint64_t i = 0; i < sizes.size(); ++i) sizes[i] = i * 7919 % 28'673;
  device::DecodeRow row;
  row.count = kCount;
  row.terms = 2;
  auto* const starts = gpu.memory().allocate<uint64_t>("starts", sizes);
  row.scratch = reinterpret_cast<uint8_t*>(starts);
  const auto* rows = gpu.memory().allocate<device::DecodeRow>("rows", std::vector{row});
  gpu.launch<ThreeLcStarts>(1, {{rows, 1, kTiles}, {}});
  for (const uint64_t term : {0U, 1U}) {
    uint64_t start = 0;
    for (uint64_t i = term * kTiles; i < (term + 1) * kTiles; ++i) {
      ASSERT_EQ(starts[i], start) << i;
      start += sizes[i];
    }
  }
  EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
}

TEST(ThreeLcDeviceTest, SlicesHaveToMakeAllColumns) {
  const uint64_t columns = ceil_div(kCount, kDigits);
  for (const uint64_t off : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    CheckedDevice gpu(Order::forward);
    std::vector<uint64_t> words(1 + kTiles, columns / kTiles);
    words[0] = 1;
    words[kTiles] += columns % kTiles + off;
    device::CheckRow row;
    row.count = kCount;
    row.malformed = gpu.memory().allocate<uint32_t>("malformed", std::vector<uint32_t>(1));
    row.scratch = reinterpret_cast<uint8_t*>(gpu.memory().allocate<uint64_t>("words", words));
    const auto* rows = gpu.memory().allocate<device::CheckRow>("rows", std::vector{row});
    gpu.launch<ThreeLcTotal>(1, {{rows, 1, kTiles}, {}});
    EXPECT_EQ(*row.malformed, off == 0 ? 0U : 1U);
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace laconic::kernels

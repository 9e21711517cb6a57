// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Blocks of kernels/bits/means_device.h that go over a whole unit, for more chunks and groups than
// such a block has threads: such units would take long from end to end.
#include "kernels/bits/means_device.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/checked_device.h"

namespace laconic::kernels {
namespace {

using test::CheckedDevice;
using test::Order;

constexpr uint64_t kChunks = 2 * device::kThreads + 90;
constexpr uint64_t kCount = kChunks * kBitsChunk - 3;

/// Sums that show in which order they are added.
BitsSums sums_of(uint64_t chunk) {
  const auto size = static_cast<float>(1 + chunk * 7919 % 4093);
  return {-std::ldexp(size, static_cast<int>(chunk % 5) * 12),
          std::ldexp(size, static_cast<int>(chunk % 7) * 9), chunk * 31 % kBitsChunk};
}

TEST(MeansDeviceTest, TotalsAddChunksInOrder) {
  for (const MeansFormat format :
       {MeansFormat{}, MeansFormat{0, true}, MeansFormat{2 * kBitsChunk, false}}) {
    CheckedDevice gpu(Order::scrambled);
    std::vector<BitsSums> chunks;
    for (uint64_t i = 0; i < kChunks; ++i) chunks.push_back(sums_of(i));
    device::EncodeRow row;
    row.count = kCount;
    row.measured = gpu.memory().allocate<device::Measured>(
        "measured", std::vector{device::Measured{1, 0, 0, 1}});
    row.scratch = reinterpret_cast<uint8_t*>(gpu.memory().allocate<BitsSums>("scratch", chunks));
    row.out = gpu.memory().allocate("values", format.bits_at(kCount), 1, 1);
    const auto* rows = gpu.memory().allocate<device::EncodeRow>("rows", std::vector{row});
    gpu.launch<MeansTotal>(1, {{rows, 1, kChunks, false}, format});
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});

    const uint64_t group = format.group != 0 ? format.group : kCount;
    for (uint64_t begin = 0; begin < kCount; begin += group) {
      const uint64_t end = std::min(begin + group, kCount);
      SignSums sums;
      for (uint64_t i = begin; i < end; i += kBitsChunk) sums.add(chunks[i / kBitsChunk]);
      const BitsValues values = format.values(sums, end - begin);
      const uint8_t* const at = row.out + format.values_at(begin);
      if (!format.magnitude) {
        ASSERT_EQ(load<float>(at), values.zero) << begin;
      }
      ASSERT_EQ(load<float>(at + format.group_bytes() - sizeof(float)), values.one) << begin;
    }
  }
}

TEST(MeansDeviceTest, CheckLooksAtEveryGroup) {
  const MeansFormat format{2 * kBitsChunk, false};
  const uint64_t groups = device::kThreads + 40;
  for (const uint64_t bad : {uint64_t{0}, uint64_t{255}, groups - 1, groups}) {
    CheckedDevice gpu(Order::forward);
    std::vector<float> values(2 * groups, 0.0F);
    if (bad < groups) values[2 * bad] = 1.0F;  // the mean of negative elements
    device::CheckRow row;
    row.count = groups * format.group;  // no bits after the last one: none are read
    row.bytes = format.bytes(row.count);
    row.payload = reinterpret_cast<const uint8_t*>(gpu.memory().allocate<float>("values", values));
    row.malformed = gpu.memory().allocate<uint32_t>("malformed", std::vector<uint32_t>(1));
    const auto* rows = gpu.memory().allocate<device::CheckRow>("rows", std::vector{row});
    gpu.launch<MeansCheck>(1, {{rows, 1, 1}, format});
    EXPECT_EQ(*row.malformed, bad < groups ? 1U : 0U) << bad;
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace laconic::kernels

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Units of more chunks than a block has threads, and state that a step leaves as it is.
#include "kernels/sidco/sidco_device.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "support/checked_device.h"

namespace laconic::kernels {
namespace {

using test::CheckedDevice;
using test::Order;

TEST(SidcoDeviceTest, ManyChunksAreAddedInOrder) {
  constexpr uint64_t kChunks = 2 * device::kThreads + 37;
  SidcoFormat format;
  format.sparse = {1e-4, 8, 5};
  format.stages = format.most_stages = 2;
  for (const Order order : {Order::forward, Order::backward, Order::scrambled}) {
    CheckedDevice gpu(order);
    device::EncodeRow row;
    row.count = kChunks * kMomentsChunk - 5;
    row.limit = 1;
    row.measured =
        gpu.memory().allocate<device::Measured>("measured", std::vector{device::Measured{1, 0, 1}});
    row.scratch = gpu.memory().allocate("scratch", sidco_scratch_bytes(format, row.count), 64);
    gpu.memory().set_written(row.scratch);
    const SidcoScratch scratch = sidco_scratch(format, row);
    SidcoWork work;
    work.eta = sidco::threshold_at(0.5);
    work.step = 0.1;
    work.left = 1;
    *scratch.work = work;
    sidco::Totals totals;
    for (uint64_t c = 0; c < kChunks; ++c) {
      ChunkMoments m;
      m.sum = c % 3 == 0 ? 3e7F : 1.0F / static_cast<float>(c);
      m.square = c % 5 == 0 ? 1e30F : 1e3F / static_cast<float>(c);
      m.count = static_cast<uint32_t>(c % 7 * 100);
      m.min_key = float_bits(1.0F + (c == 300 ? 0.0F : static_cast<float>(c % 11 + 1)));
      scratch.moments[c] = m;
      totals.count += m.count;
      totals.sum += static_cast<double>(m.sum);
      totals.square += static_cast<double>(m.square);
      totals.min_key = std::min(totals.min_key, m.min_key);
    }
    const auto* rows = gpu.memory().allocate<device::EncodeRow>("rows", std::vector{row});
    gpu.launch<SidcoFit>(1, {{rows, 1, 1, false}, format, 1});

    double low = 0;
    const sidco::Moments z = sidco::moments_above(totals, work.eta.value, 1.0F, &low);
    const double eta = sidco::tail_threshold(format.law, low, z, work.step);
    EXPECT_EQ(low, 1.0);
    EXPECT_EQ(scratch.work->eta.key, sidco::threshold_at(eta).key);
    EXPECT_EQ(scratch.work->left, 0U);
    EXPECT_EQ(scratch.select.state()->floor, scratch.work->eta.key);
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  }
}

TEST(SidcoDeviceTest, UndeliveredUnitsKeepTheirState) {
  for (const bool adapts : {false, true}) {
    SidcoFormat format;
    format.sparse = {0.1, 8, 5};
    format.adapts = adapts;
    format.most_stages = 4;
    CheckedDevice gpu(Order::forward);
    const std::vector<float> state{2, 1, 1, 3, 4, 1};
    device::CommitRow row;
    row.state = gpu.memory().allocate<float>("state", state);
    row.count = 100;
    const auto* rows = gpu.memory().allocate<device::CommitRow>("rows", std::vector{row});
    gpu.launch<SidcoCommit>(1, {{rows, 1}, format});
    EXPECT_TRUE(std::equal(state.begin(), state.end(), row.state));
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  }
}

}  // namespace
}  // namespace laconic::kernels

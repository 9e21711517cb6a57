// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Places of tiles in units of more tiles than a block has threads, payloads with a header, and the
// number of launches.
#include "kernels/sparse/select_device.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/sparse/radix_device.h"
#include "support/checked_device.h"

namespace laconic::kernels {
namespace {

using test::CheckedDevice;
using test::Order;

constexpr uint64_t kTiles = 2 * device::kThreads + 90;
constexpr uint64_t kCount = kTiles * kSparseTile - 3;

TEST(SelectDeviceTest, TiesGoToFirstOfManyTiles) {
  for (const uint32_t most_ties : {0U, 1U, 1000U, 1'000'000U}) {
    SCOPED_TRACE(most_ties);
    const SparseFormat format{0.01, 8, 5};
    CheckedDevice gpu(Order::scrambled);
    device::EncodeRow row;
    row.count = kCount;
    row.limit = 1;
    row.measured =
        gpu.memory().allocate<device::Measured>("measured", std::vector{device::Measured{1, 0, 1}});
    row.out = gpu.memory().allocate("payload", 64, 1, 1);
    row.scratch = gpu.memory().allocate("scratch", 32 + kTiles * 16, 1);  // up to the places
    gpu.memory().set_written(row.scratch);
    const SelectScratch scratch = select_scratch(format, row.scratch, kCount);
    *scratch.state() = {1, 0, 7, most_ties, 0, 1};
    for (uint64_t i = 0; i < kTiles; ++i)
      scratch.counts()[i] = {static_cast<uint32_t>(i * 7919 % 100),
                             static_cast<uint32_t>(i * 6101 % 5)};
    const auto* rows = gpu.memory().allocate<device::EncodeRow>("rows", std::vector{row});
    gpu.launch<SelectPlace>(1, {{rows, 1, kTiles, false}, format});

    uint64_t kept = 0, left = most_ties;
    for (uint64_t i = 0; i < kTiles; ++i) {
      const SelectCounts counts = scratch.counts()[i];
      const SelectPlaceOf place = scratch.places()[i];
      const uint64_t ties = std::min<uint64_t>(left, counts.ties);
      ASSERT_EQ(place.first, kept) << "tile " << i;
      ASSERT_EQ(place.ties, ties == counts.ties ? SelectPlaceOf::kAllTies : ties) << "tile " << i;
      kept += counts.above + ties;
      left -= ties;
    }
    EXPECT_EQ(load<uint32_t>(row.out), kept);
    EXPECT_EQ(row.measured->bytes, 8 + sparse_bytes(kept, kCount));
    EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  }
}

/// A payload with a header of eight bytes.
std::vector<uint8_t> payload_of(const std::vector<uint32_t>& indices, uint64_t n) {
  const uint32_t width = index_width(n);
  std::vector<uint8_t> payload(8 + sparse_bytes(indices.size(), n));
  store(payload.data(), static_cast<uint32_t>(indices.size()));
  for (uint64_t j = 0; j < indices.size(); ++j) {
    for (uint32_t bit = 0; bit < width; ++bit)
      payload[8 + (j * width + bit) / 8] |=
          static_cast<uint8_t>((indices[j] >> bit & 1) << ((j * width + bit) % 8));
    store(payload.data() + 8 + index_bytes(indices.size(), n) + 4 * j,
          static_cast<float>(indices[j] + 1));
  }
  return payload;
}

struct Received {
  bool good = false;
  std::vector<float> values;  ///< if good
};
Received receive(const std::vector<uint8_t>& payload, uint64_t n) {
  const SparseFormat format{0.001, 8, 5};
  const uint64_t tiles = ceil_div(n, kSparseTile);
  CheckedDevice gpu(Order::scrambled);
  device::CheckRow checked;
  auto* const bytes = gpu.memory().allocate<uint8_t>("payload", payload);
  checked.payload = bytes;
  checked.bytes = payload.size();
  checked.count = n;
  checked.malformed = gpu.memory().allocate<uint32_t>("malformed", std::vector<uint32_t>(1));
  gpu.launch<SparseCheck>(
      tiles,
      {{gpu.memory().allocate<device::CheckRow>("rows", std::vector{checked}), 1, tiles}, format});
  Received received{*checked.malformed == 0, {}};
  if (received.good) {
    device::DecodeRow row;
    row.values = reinterpret_cast<float*>(gpu.memory().allocate("values", 4 * n, 4));
    row.scratch = gpu.memory().allocate("scratch", sparse_decode_scratch(n), 1);
    row.count = n;
    row.terms = 2;
    for (uint32_t k = 0; k < 2; ++k) {
      row.payload[k] = bytes;
      row.bytes[k] = payload.size();
      row.weight[k] = 1.0F;
    }
    const device::DecodeBatch batch{
        gpu.memory().allocate<device::DecodeRow>("rows", std::vector{row}), 1, tiles};
    gpu.launch<SparseStarts>(tiles, {batch, format});
    gpu.launch<SparseDecode>(tiles, {batch, format});
    received.values.assign(row.values, row.values + n);
  }
  EXPECT_EQ(gpu.faults(), std::vector<std::string>{});
  return received;
}

TEST(SelectDeviceTest, CountedPayloadsAreDecoded) {
  constexpr uint64_t n = 20'000;  // at most 24 pairs
  for (const std::vector<uint32_t>& indices :
       {std::vector<uint32_t>{}, std::vector<uint32_t>{0}, std::vector<uint32_t>{19'999},
        std::vector<uint32_t>{8191, 8192}, std::vector<uint32_t>{16'383, 16'384, 16'385},
        std::vector<uint32_t>{0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10,     11,
                              12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 19'998, 19'999}}) {
    const Received received = receive(payload_of(indices, n), n);
    ASSERT_TRUE(received.good);
    std::vector<float> expected(n);
    for (const uint32_t i : indices) expected[i] = 2.0F * static_cast<float>(i + 1);
    EXPECT_EQ(received.values, expected);
  }
}

TEST(SelectDeviceTest, NonCanonicalSetsAreRefused) {
  constexpr uint64_t n = 20'000;  // indices of 15 bits
  for (const std::vector<uint32_t>& indices :
       {std::vector<uint32_t>{5, 20'000}, std::vector<uint32_t>{5, 32'767},
        std::vector<uint32_t>{5, 5}, std::vector<uint32_t>{7, 5}, std::vector<uint32_t>{0, 0}})
    EXPECT_FALSE(receive(payload_of(indices, n), n).good) << indices[1];
  const std::vector<uint8_t> good = payload_of({5, 19'999}, n);
  ASSERT_TRUE(receive(good, n).good);
  for (const float bad : {INFINITY, -INFINITY, NAN}) {
    std::vector<uint8_t> payload = good;
    store(payload.data() + payload.size() - 4, bad);
    EXPECT_FALSE(receive(payload, n).good) << bad;
  }
  for (const uint8_t bit : {uint8_t{0x40}, uint8_t{0x80}}) {  // after 30 bits of indices
    std::vector<uint8_t> payload = good;
    payload[8 + 3] = static_cast<uint8_t>(payload[8 + 3] | bit);
    EXPECT_FALSE(receive(payload, n).good) << int{bit};
  }
  for (const int more : {-4, -1, 1, 4}) {
    std::vector<uint8_t> payload = good;
    payload.resize(payload.size() + static_cast<std::size_t>(more));
    EXPECT_FALSE(receive(payload, n).good) << more;
  }
}

TEST(SelectDeviceTest, CountsBeyondBoundAreRefused) {
  constexpr uint64_t n = 20'000;
  std::vector<uint32_t> indices;
  for (uint32_t i = 0; i < 25; ++i) indices.push_back(i);
  EXPECT_FALSE(receive(payload_of(indices, n), n).good);
  std::vector<uint8_t> lying = payload_of({1, 2, 3}, n);
  store(lying.data(), UINT32_MAX);
  EXPECT_FALSE(receive(lying, n).good);
  lying.resize(3);
  EXPECT_FALSE(receive(lying, n).good);
  EXPECT_FALSE(receive({}, n).good);
}

class CountingQueue final : public device::Queue {
 public:
  uint32_t launches = 0;

 protected:
  void enqueue(std::string_view, uint64_t, Bytes) override { ++launches; }
};

TEST(SelectDeviceTest, LargestAreEncodedInTwelveLaunches) {
  CountingQueue queue;
  encode_largest(queue, {nullptr, 1, 1, true}, {0.01});
  EXPECT_EQ(queue.launches, 12U);
}

}  // namespace
}  // namespace laconic::kernels

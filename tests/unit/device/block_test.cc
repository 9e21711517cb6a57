// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// nvcc's block on threads of the host: the same bytes as the checked block's, and ThreadSanitizer
// sees its barriers and shuffles.
#include "unit/device/cuda_on_threads.h"
// (before what uses it)
#include <gtest/gtest.h>

#include <cmath>

#include "device/block.h"
#include "kernels/kernel_list.h"
#include "support/checked_device.h"

namespace laconic::device {
namespace {

template <class Kernel>
void run_on_threads(uint64_t blocks, const typename Kernel::Args& args) {
  test::ThreadedBlock together;
  std::vector<std::unique_ptr<typename Kernel::template Shared<Block>>> shared;
  for (uint64_t i = 0; i < blocks; ++i)
    shared.push_back(std::make_unique<typename Kernel::template Shared<Block>>());
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      test::this_block = &together;
      threadIdx.x = t;
      for (uint32_t i = 0; i < blocks; ++i) {
        blockIdx.x = i;
        Block block;
        Kernel::run(block, *shared[i], args);
        __syncthreads();  // the next block
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class ThreadedDevice final : public Queue {
 public:
  CheckedMemory& memory() { return memory_; }

 protected:
  void enqueue(std::string_view kernel, uint64_t blocks, Bytes args) override {
#define LACONIC_RUN(Kernel)                                                     \
  if (kernel == kernels::Kernel::name) {                                        \
    kernels::Kernel::Args of_kernel;                                            \
    std::memcpy(static_cast<void*>(&of_kernel), args.data(), sizeof of_kernel); \
    return run_on_threads<kernels::Kernel>(blocks, of_kernel);                  \
  }
    LACONIC_FOR_EACH_KERNEL(LACONIC_RUN)
#undef LACONIC_RUN
    ADD_FAILURE() << kernel;
  }

 private:
  CheckedMemory memory_;
};

constexpr uint64_t kCount = kernels::kTileElements + 700;  // two tiles
constexpr uint64_t kTiles = 2;

/// Laplace-like, with long runs of small ones.
std::vector<float> values(uint64_t seed) {
  std::vector<float> made(kCount);
  for (uint64_t i = 0; i < kCount; ++i) {
    const auto x = static_cast<float>((i * 2654435761U + seed * 40503U) % 10007U) - 5003.0F;
    made[i] = i % 1999 < 1000 ? x * 1e-6F : x;
  }
  return made;
}

struct Results {
  std::vector<uint8_t> payload;
  std::vector<float> residual, decoded;
  uint32_t malformed = 0;
  Measured measured;
};

/// Encodes, checks and decodes a unit; `encode`, `check` and `decode` issue the launches.
template <class Gpu, class Encode, class Check, class Decode>
Results run_codec(Gpu& gpu, uint64_t payload, Encode encode, Check check, Decode decode) {
  EncodeRow row;
  row.values = gpu.memory().template allocate<float>("values", values(1));
  row.residual = gpu.memory().template allocate<float>("residual", values(2));
  row.out = gpu.memory().allocate("payload", payload, 1, 1);
  row.scratch = gpu.memory().allocate("scratch", 1 << 16, 1);
  row.measured = gpu.memory().template allocate<Measured>("measured", std::vector<Measured>(1));
  row.count = kCount;
  row.limit = float_bits(1e30F);
  encode({gpu.memory().template allocate<EncodeRow>("rows", std::vector{row}), 1, kTiles, true});
  const uint64_t bytes = row.measured->bytes == 0 ? payload : row.measured->bytes;
  CheckRow checked;
  checked.payload = row.out;
  checked.scratch = gpu.memory().allocate("scratch", 256, 1);
  checked.malformed =
      gpu.memory().template allocate<uint32_t>("malformed", std::vector<uint32_t>(1));
  checked.bytes = bytes;
  checked.count = kCount;
  check({gpu.memory().template allocate<CheckRow>("rows", std::vector{checked}), 1, kTiles});
  DecodeRow decoded;
  decoded.values = reinterpret_cast<float*>(gpu.memory().allocate("decoded", kCount * 4, 4));
  decoded.scratch = gpu.memory().allocate("scratch", 256, 1);
  decoded.count = kCount;
  decoded.terms = 2;
  for (uint32_t k = 0; k < 2; ++k) {
    decoded.payload[k] = row.out;
    decoded.bytes[k] = bytes;
    decoded.weight[k] = 0.3F;
  }
  decode({gpu.memory().template allocate<DecodeRow>("rows", std::vector{decoded}), 1, kTiles});
  return {{row.out, row.out + bytes},
          {row.residual, row.residual + kCount},
          {decoded.values, decoded.values + kCount},
          *checked.malformed,
          *row.measured};
}

template <class Gpu>
Results run_int8(Gpu& gpu) {
  constexpr uint32_t kBlock = 8192;  // a block of threads for each
  return run_codec(
      gpu, kTiles * 4 + kCount,
      [&](EncodeBatch batch) {
        gpu.template launch<kernels::Measure>(kTiles, {batch, kBlock});
        gpu.template launch<kernels::Int8Encode>(kTiles, {batch, kBlock, true, false});
      },
      [&](CheckBatch batch) {
        gpu.template launch<kernels::Int8Check>(
            kTiles, {batch, kBlock, float_bits(kernels::kInt8LargestScale)});
      },
      [&](DecodeBatch batch) {
        gpu.template launch<kernels::Int8Decode>(kTiles, {batch, kBlock});
      });
}

template <class Gpu>
Results run_threelc(Gpu& gpu) {
  const kernels::ThreeLcFormat format{1.5F, false, true, false};
  return run_codec(
      gpu, 4 + ceil_div(kCount, 5),
      [&](EncodeBatch batch) {
        gpu.template launch<kernels::Measure>(kTiles, {batch, kernels::kTileElements});
        gpu.template launch<kernels::ThreeLcPack>(kTiles, {batch, format});
        gpu.template launch<kernels::ThreeLcJoin>(1, {batch, format});
        gpu.template launch<kernels::ThreeLcPut>(kTiles, {batch, format});
      },
      [&](CheckBatch batch) {
        gpu.template launch<kernels::ThreeLcOutline>(1, {batch, format});
        gpu.template launch<kernels::ThreeLcCheck>(kTiles, {batch, format});
        gpu.template launch<kernels::ThreeLcTotal>(1, {batch, format});
      },
      [&](DecodeBatch batch) {
        gpu.template launch<kernels::ThreeLcSizes>(kTiles, {batch, format});
        gpu.template launch<kernels::ThreeLcStarts>(1, {batch, format});
        gpu.template launch<kernels::ThreeLcDecode>(kTiles, {batch, format});
      });
}

template <class Gpu>
Results run_topk(Gpu& gpu) {
  const kernels::SparseFormat format{0.01};
  return run_codec(
      gpu, kernels::sparse_bytes(kernels::kept_of(format.ratio, kCount), kCount),
      [&](EncodeBatch batch) { kernels::encode_largest(gpu, batch, format); },
      [&](CheckBatch batch) {
        gpu.template launch<kernels::SparseCheck>(kTiles, {batch, format});
      },
      [&](DecodeBatch batch) {
        gpu.template launch<kernels::SparseStarts>(kTiles, {batch, format});
        gpu.template launch<kernels::SparseDecode>(kTiles, {batch, format});
      });
}

template <class Gpu>
Results run_means(Gpu& gpu) {
  const kernels::MeansFormat format{};
  static_assert(kCount <= kernels::kBitsChunk);
  return run_codec(
      gpu, format.bytes(kCount),
      [&](EncodeBatch batch) {
        gpu.template launch<kernels::MeansPack>(1, {batch, format});
        gpu.template launch<kernels::MeansTotal>(1, {batch, format});
        gpu.template launch<kernels::MeansRest>(1, {batch, format});
      },
      [&](CheckBatch batch) {
        gpu.template launch<kernels::MeansCheck>(1, {batch, format});
      },
      [&](DecodeBatch batch) {
        gpu.template launch<kernels::MeansDecode>(1, {batch, format});
      });
}

void expect_same(const Results& a, const Results& b) {
  EXPECT_EQ(a.payload, b.payload);
  EXPECT_EQ(a.residual, b.residual);
  EXPECT_EQ(a.decoded, b.decoded);
  EXPECT_EQ(a.malformed, 0U);
  EXPECT_EQ(b.malformed, 0U);
  EXPECT_EQ(a.measured.sum, b.measured.sum);
}

TEST(DeviceBlockTest, Int8OnThreadsEqualsCheckedBlock) {
  ThreadedDevice threads;
  test::CheckedDevice checked(test::Order::forward);
  expect_same(run_int8(threads), run_int8(checked));
  EXPECT_EQ(checked.faults(), std::vector<std::string>{});
}

TEST(DeviceBlockTest, ThreeLcOnThreadsEqualsCheckedBlock) {
  ThreadedDevice threads;
  test::CheckedDevice checked(test::Order::forward);
  expect_same(run_threelc(threads), run_threelc(checked));
  EXPECT_EQ(checked.faults(), std::vector<std::string>{});
}

TEST(DeviceBlockTest, TopKOnThreadsEqualsCheckedBlock) {
  ThreadedDevice threads;
  test::CheckedDevice checked(test::Order::forward);
  expect_same(run_topk(threads), run_topk(checked));
  EXPECT_EQ(checked.faults(), std::vector<std::string>{});
}

TEST(DeviceBlockTest, MeansOnThreadsEqualCheckedBlock) {
  ThreadedDevice threads;
  test::CheckedDevice checked(test::Order::forward);
  expect_same(run_means(threads), run_means(checked));
  EXPECT_EQ(checked.faults(), std::vector<std::string>{});
}

}  // namespace
}  // namespace laconic::device

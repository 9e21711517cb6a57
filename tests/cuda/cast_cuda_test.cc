// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The GPU against the CPU's functions, over every 32-bit and every 16-bit pattern.
#include "kernels/cast_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "laconic/dtype.h"

namespace laconic {
namespace {

class CastCuda : public ::testing::Test {
 protected:
  void SetUp() override {
    int devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&devices);
    if (error != cudaSuccess || devices == 0) {
      GTEST_SKIP() << "no usable GPU: " << cudaGetErrorString(error);
    }
  }
};

template <typename T>
struct DeviceFree {
  void operator()(T* p) const { cudaFree(p); }
};
template <typename T>
using DeviceArray = std::unique_ptr<T[], DeviceFree<T>>;

template <typename T>
DeviceArray<T> device_array(size_t n) {
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
  return DeviceArray<T>(static_cast<T*>(p));
}

template <typename Out, typename In>
std::vector<Out> on_gpu(const std::vector<In>& in,
                        int32_t (*cast)(const In*, Out*, uint64_t, void*)) {
  const auto device_in = device_array<In>(in.size());
  const auto device_out = device_array<Out>(in.size());
  std::vector<Out> out(in.size());
  EXPECT_EQ(cudaMemcpy(device_in.get(), in.data(), in.size() * sizeof(In), cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(cast(device_in.get(), device_out.get(), in.size(), nullptr), 0);
  EXPECT_EQ(cudaMemcpy(out.data(), device_out.get(), out.size() * sizeof(Out), cudaMemcpyDefault),
            cudaSuccess);
  return out;
}

// The index of the first element whose bits differ from what `expected` says, or in.size().
template <typename Out, typename In>
size_t first_difference(const std::vector<In>& in, const std::vector<Out>& out,
                        Out (*expected)(In)) {
  for (size_t i = 0; i < in.size(); ++i) {
    const Out want = expected(in[i]);
    if constexpr (std::is_same_v<In, float>) {
      if (std::isnan(in[i])) continue;
    } else {
      if (std::isnan(want)) continue;
    }
    if (std::memcmp(&want, &out[i], sizeof want) != 0) return i;
  }
  return in.size();
}

// The kernels multiply by a weight; 1 leaves every number as it is. What is left of a NaN after a
// product is the processor's business: tests/unit/kernels/cast_cuda_test.cc pins the rule for
// those.
int32_t narrow_f16(const float* x, uint16_t* out, uint64_t n, void* stream) {
  return laconic_cuda_narrow_f16(out, 1.0F, x, n, 0, stream);
}
int32_t narrow_bf16(const float* x, uint16_t* out, uint64_t n, void* stream) {
  return laconic_cuda_narrow_bf16(out, 1.0F, x, n, stream);
}
int32_t widen_f16(const uint16_t* x, float* out, uint64_t n, void* stream) {
  return laconic_cuda_widen_f16(out, 1.0F, x, n, 0, stream);
}
int32_t widen_bf16(const uint16_t* x, float* out, uint64_t n, void* stream) {
  return laconic_cuda_widen_bf16(out, 1.0F, x, n, 0, stream);
}

// Slices of the 2^32 patterns, shared by the cores of this machine.
void every_float(uint16_t (*expected)(float),
                 int32_t (*cast)(const float*, uint16_t*, uint64_t, void*)) {
  constexpr uint64_t kSlice = uint64_t{1} << 24;
  constexpr uint64_t kSlices = (uint64_t{1} << 32) / kSlice;
  const uint64_t workers = std::max(1U, std::min(16U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (uint64_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([=] {
      std::vector<float> in(kSlice);
      for (uint64_t slice = worker; slice < kSlices; slice += workers) {
        for (uint64_t i = 0; i < kSlice; ++i) {
          in[i] = std::bit_cast<float>(static_cast<uint32_t>(slice * kSlice + i));
        }
        const size_t at = first_difference<uint16_t>(in, on_gpu<uint16_t>(in, cast), expected);
        EXPECT_EQ(at, kSlice) << "bits 0x" << std::hex << slice * kSlice + at;
      }
    });
  }
}

std::vector<uint16_t> every_16_bits() {
  std::vector<uint16_t> all(1U << 16);
  for (uint32_t i = 0; i < all.size(); ++i) all[i] = static_cast<uint16_t>(i);
  return all;
}

TEST_F(CastCuda, EveryFloatToHalf) { every_float(&float_to_f16, &narrow_f16); }

TEST_F(CastCuda, EveryFloatToBfloat) { every_float(&float_to_bf16, &narrow_bf16); }

TEST_F(CastCuda, EveryHalfToFloat) {
  const auto in = every_16_bits();
  EXPECT_EQ(first_difference<float>(in, on_gpu<float>(in, &widen_f16), &f16_to_float), in.size());
}

TEST_F(CastCuda, EveryBfloatToFloat) {
  const auto in = every_16_bits();
  EXPECT_EQ(first_difference<float>(in, on_gpu<float>(in, &widen_bf16), &bf16_to_float), in.size());
}

TEST_F(CastCuda, NoElementsIsNoLaunch) { EXPECT_EQ(narrow_f16(nullptr, nullptr, 0, nullptr), 0); }

}  // namespace
}  // namespace laconic

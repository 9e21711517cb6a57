// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The GPU against the CPU's functions: every 32-bit and every 16-bit pattern with weight 1,
// weights, saturation and sums on patterns of all kinds.
#include "kernels/cast/cast_cuda.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "kernels/cast/cast_elements.h"
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

/// What `cast(in, out)` leaves on the GPU in `out`, which starts as given.
template <typename In, typename Out, typename Cast>
std::vector<Out> on_gpu(const std::vector<In>& in, std::vector<Out> out, Cast&& cast) {
  const auto device_in = device_array<In>(in.size());
  const auto device_out = device_array<Out>(out.size());
  const size_t bytes = out.size() * sizeof(Out);
  EXPECT_EQ(cudaMemcpy(device_in.get(), in.data(), in.size() * sizeof(In), cudaMemcpyDefault),
            cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device_out.get(), out.data(), bytes, cudaMemcpyDefault), cudaSuccess);
  EXPECT_EQ(cast(device_in.get(), device_out.get()), 0);
  EXPECT_EQ(cudaMemcpy(out.data(), device_out.get(), bytes, cudaMemcpyDefault), cudaSuccess);
  return out;
}

// A product's NaN has the sign and the payload that the processor gives it: of a NaN only that it
// is one can be asked.
bool is_nan(float x) { return std::isnan(x); }

/// The index of the first element that is not `expected(i)`, or the size. `nan(v)` tells NaNs.
template <typename T, typename Expected, typename Nan>
size_t first_difference(const std::vector<T>& out, Expected&& expected, Nan&& nan) {
  for (size_t i = 0; i < out.size(); ++i) {
    const T want = expected(i);
    if (std::memcmp(&want, &out[i], sizeof want) != 0 && !(nan(want) && nan(out[i]))) return i;
  }
  return out.size();
}

struct Narrow {
  const char* name;
  uint16_t (*expected)(float w, float x);
  int32_t (*cast)(uint16_t* out, float w, const float* x, uint64_t n, void* stream);
  float (*widened)(uint16_t);
};
constexpr Narrow kNarrow[] = {
    {"f16", [](float w, float x) { return kernels::encode_f16(w, x, false); },
     [](uint16_t* out, float w, const float* x, uint64_t n, void* stream) {
       return laconic_cuda_narrow_f16(out, w, x, n, 0, stream);
     },
     &f16_to_float},
    {"f16 saturated", [](float w, float x) { return kernels::encode_f16(w, x, true); },
     [](uint16_t* out, float w, const float* x, uint64_t n, void* stream) {
       return laconic_cuda_narrow_f16(out, w, x, n, 1, stream);
     },
     &f16_to_float},
    {"bf16", &kernels::encode_bf16, &laconic_cuda_narrow_bf16, &bf16_to_float}};

size_t first_difference(const Narrow& narrow, float w, const std::vector<float>& x) {
  const auto out = on_gpu(x, std::vector<uint16_t>(x.size()), [&](const float* in, uint16_t* to) {
    return narrow.cast(to, w, in, x.size(), nullptr);
  });
  return first_difference(
      out, [&](size_t i) { return narrow.expected(w, x[i]); },
      [&](uint16_t h) { return is_nan(narrow.widened(h)); });
}

// Slices of the 2^32 patterns, shared by the cores of this machine.
void every_float(const Narrow& narrow) {
  constexpr uint64_t kSlice = uint64_t{1} << 24;
  constexpr uint64_t kSlices = (uint64_t{1} << 32) / kSlice;
  const uint64_t workers = std::max(1U, std::min(16U, std::thread::hardware_concurrency()));
  std::vector<std::jthread> threads;
  for (uint64_t worker = 0; worker < workers; ++worker) {
    threads.emplace_back([=] {
      std::vector<float> x(kSlice);
      for (uint64_t slice = worker; slice < kSlices; slice += workers) {
        for (uint64_t i = 0; i < kSlice; ++i) {
          x[i] = std::bit_cast<float>(static_cast<uint32_t>(slice * kSlice + i));
        }
        const size_t at = first_difference(narrow, 1.0F, x);
        EXPECT_EQ(at, kSlice) << narrow.name << ", bits 0x" << std::hex << slice * kSlice + at;
      }
    });
  }
}

TEST_F(CastCuda, EveryFloatToHalf) { every_float(kNarrow[0]); }
TEST_F(CastCuda, EveryFloatToSaturatedHalf) { every_float(kNarrow[1]); }
TEST_F(CastCuda, EveryFloatToBfloat) { every_float(kNarrow[2]); }

TEST_F(CastCuda, NarrowingMultipliesByTheWeight) {
  std::mt19937_64 random(17);
  std::vector<float> x(1'000'003);
  for (float& v : x) v = std::bit_cast<float>(static_cast<uint32_t>(random()));
  for (const Narrow& narrow : kNarrow) {
    for (const float w : {0.3F, -1.0F / 7, 65536.0F}) {
      EXPECT_EQ(first_difference(narrow, w, x), x.size()) << narrow.name << " " << w;
    }
  }
}

TEST_F(CastCuda, WideningOfEveryPatternWithWeightAndSum) {
  std::vector<uint16_t> h(1U << 16);
  for (uint32_t i = 0; i < h.size(); ++i) h[i] = static_cast<uint16_t>(i);
  std::mt19937_64 random(18);
  std::normal_distribution<float> normal(0.0F, 1e-2F);
  std::vector<float> base(h.size());
  for (float& v : base) v = normal(random);
  struct Widen {
    float (*expected)(uint16_t);
    int32_t (*cast)(float*, float, const uint16_t*, uint64_t, int32_t, void*);
  };
  for (const Widen& widen : {Widen{&f16_to_float, &laconic_cuda_widen_f16},
                             Widen{&bf16_to_float, &laconic_cuda_widen_bf16}}) {
    for (const float w : {1.0F, 0.3F}) {
      for (const int32_t add : {0, 1}) {
        const auto out = on_gpu(h, base, [&](const uint16_t* in, float* to) {
          return widen.cast(to, w, in, h.size(), add, nullptr);
        });
        const auto expected = [&](size_t i) {
          const float product = w * widen.expected(h[i]);
          return add != 0 ? base[i] + product : product;
        };
        EXPECT_EQ(first_difference(out, expected, &is_nan), h.size()) << w << " " << add;
      }
    }
  }
}

TEST_F(CastCuda, NoElementsIsNoLaunch) {
  for (const Narrow& narrow : kNarrow) {
    EXPECT_EQ(narrow.cast(nullptr, 1.0F, nullptr, 0, nullptr), 0) << narrow.name;
  }
}

}  // namespace
}  // namespace laconic

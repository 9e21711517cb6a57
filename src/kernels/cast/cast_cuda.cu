// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime.h>

#include "kernels/cast/cast_cuda.h"
#include "kernels/cast/cast_elements.h"

namespace laconic::kernels {
namespace {

constexpr uint32_t kThreads = 256;
constexpr uint64_t kMaxBlocks = 4096;  // a grid-stride loop covers the rest

/// out_i = body(i) for i < n, in a grid-stride loop.
template <class Body>
__global__ void for_each(uint64_t n, Body body) {
  const uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = static_cast<uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < n;
       i += stride)
    body(i);
}

struct NarrowF16 {
  uint16_t* out;
  float w;
  const float* x;
  bool saturate;
  __device__ void operator()(uint64_t i) const { out[i] = encode_f16(w, x[i], saturate); }
};

struct NarrowBf16 {
  uint16_t* out;
  float w;
  const float* x;
  __device__ void operator()(uint64_t i) const { out[i] = encode_bf16(w, x[i]); }
};

template <float (*kToFloat)(uint16_t)>
struct Widen {
  float* out;
  float w;
  const uint16_t* x;
  bool add;
  __device__ void operator()(uint64_t i) const {
    const float product = w * kToFloat(x[i]);
    out[i] = add ? out[i] + product : product;
  }
};

template <class Body>
int32_t launch(uint64_t n, void* stream, Body body) {
  if (n == 0) return 0;
  const uint64_t wanted = (n + kThreads - 1) / kThreads;
  const auto blocks = static_cast<uint32_t>(wanted < kMaxBlocks ? wanted : kMaxBlocks);
  for_each<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(n, body);
  return static_cast<int32_t>(cudaGetLastError());
}

}  // namespace
}  // namespace laconic::kernels

using namespace laconic::kernels;  // NOLINT: the C symbols below

int32_t laconic_cuda_narrow_f16(uint16_t* out, float w, const float* x, uint64_t n,
                                int32_t saturate, void* stream) {
  return launch(n, stream, NarrowF16{out, w, x, saturate != 0});
}

int32_t laconic_cuda_narrow_bf16(uint16_t* out, float w, const float* x, uint64_t n, void* stream) {
  return launch(n, stream, NarrowBf16{out, w, x});
}

int32_t laconic_cuda_widen_f16(float* out, float w, const uint16_t* x, uint64_t n, int32_t add,
                               void* stream) {
  return launch(n, stream, Widen<&laconic::f16_to_float>{out, w, x, add != 0});
}

int32_t laconic_cuda_widen_bf16(float* out, float w, const uint16_t* x, uint64_t n, int32_t add,
                                void* stream) {
  return launch(n, stream, Widen<&laconic::bf16_to_float>{out, w, x, add != 0});
}

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The bodies are the constexpr functions of laconic/dtype.h, so that CPU and GPU cannot differ; not
// the conversion instructions, whose NaN payloads do.
#include <algorithm>

#include "kernels/cast_cuda.h"
#include "laconic/dtype.h"

namespace {

constexpr unsigned kThreads = 256;
// Enough blocks to fill any GPU; the loop in the kernel takes the rest.
constexpr uint64_t kMaxBlocks = 8192;

struct F32ToF16 {
  __device__ uint16_t operator()(float x) const { return laconic::float_to_f16(x); }
};
struct F32ToBf16 {
  __device__ uint16_t operator()(float x) const { return laconic::float_to_bf16(x); }
};
struct F16ToF32 {
  __device__ float operator()(uint16_t h) const { return laconic::f16_to_float(h); }
};
struct Bf16ToF32 {
  __device__ float operator()(uint16_t h) const { return laconic::bf16_to_float(h); }
};

template <typename Op, typename In, typename Out>
__global__ void map_elements(const In* __restrict__ in, Out* __restrict__ out, uint64_t n) {
  const uint64_t stride = uint64_t{gridDim.x} * blockDim.x;
  for (uint64_t i = uint64_t{blockIdx.x} * blockDim.x + threadIdx.x; i < n; i += stride) {
    out[i] = Op{}(in[i]);
  }
}

template <typename Op, typename In, typename Out>
int32_t launch(const In* in, Out* out, uint64_t n, void* stream) {
  if (n == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>(std::min((n + kThreads - 1) / kThreads, kMaxBlocks));
  map_elements<Op><<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(in, out, n);
  return cudaGetLastError();
}

}  // namespace

int32_t laconic_cuda_f32_to_f16(const float* in, uint16_t* out, uint64_t n, void* stream) {
  return launch<F32ToF16>(in, out, n, stream);
}
int32_t laconic_cuda_f32_to_bf16(const float* in, uint16_t* out, uint64_t n, void* stream) {
  return launch<F32ToBf16>(in, out, n, stream);
}
int32_t laconic_cuda_f16_to_f32(const uint16_t* in, float* out, uint64_t n, void* stream) {
  return launch<F16ToF32>(in, out, n, stream);
}
int32_t laconic_cuda_bf16_to_f32(const uint16_t* in, float* out, uint64_t n, void* stream) {
  return launch<Bf16ToF32>(in, out, n, stream);
}

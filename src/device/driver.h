// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The calls of CUDA's driver that Laconic uses, declared here so that CUDA is not needed to build
// it, and opened at run time. https://docs.nvidia.com/cuda/cuda-driver-api
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "laconic/error.h"

namespace laconic::device {

// CUresult, as far as it is looked at.
inline constexpr int kCudaSuccess = 0, kCudaOutOfMemory = 2, kCudaNoDevice = 100,
                     kCudaInvalidImage = 200, kCudaNoBinary = 209, kCudaInvalidPtx = 218,
                     kCudaNoPtxCompiler = 221, kCudaNewPtx = 222, kCudaPtxDisabled = 223,
                     kCudaNotReady = 600;
inline constexpr unsigned int kCudaStreamNonBlocking = 1;
// CUdevice_attribute, CUpointer_attribute and what the latter gives.
inline constexpr int kCudaCapabilityMajor = 75, kCudaCapabilityMinor = 76;
inline constexpr int kCudaMemoryType = 2, kCudaDeviceMemory = 2, kCudaDeviceOrdinal = 9;

using CudaDevice = int;        // CUdevice
using CudaContext = void*;     // CUcontext
using CudaStream = void*;      // CUstream, which is cudaStream_t
using CudaEvent = void*;       // CUevent
using CudaModule = void*;      // CUmodule
using CudaFunction = void*;    // CUfunction
using CudaAddress = uint64_t;  // CUdeviceptr
static_assert(sizeof(void*) == 8, "CUDA has 64-bit platforms only");

struct CudaCalls {
  struct {
    int (*init)(unsigned int) = nullptr;
    int (*version)(int*) = nullptr;
    int (*error_string)(int, const char**) = nullptr;
    int (*count)(int*) = nullptr;
    int (*get)(CudaDevice*, int) = nullptr;
    int (*name)(char*, int, CudaDevice) = nullptr;
    int (*attribute)(int*, int, CudaDevice) = nullptr;
    int (*context_retain)(CudaContext*, CudaDevice) = nullptr;
    int (*context_release)(CudaDevice) = nullptr;
    int (*context_push)(CudaContext) = nullptr;
    int (*context_pop)(CudaContext*) = nullptr;
  } device;
  struct {
    int (*alloc)(CudaAddress*, size_t) = nullptr;
    int (*free)(CudaAddress) = nullptr;
    int (*host_alloc)(void**, size_t, unsigned int) = nullptr;
    int (*host_free)(void*) = nullptr;
    int (*copy_to_device)(CudaAddress, const void*, size_t, CudaStream) = nullptr;
    int (*copy_to_host)(void*, CudaAddress, size_t, CudaStream) = nullptr;
    int (*copy)(CudaAddress, CudaAddress, size_t, CudaStream) = nullptr;
    int (*set)(CudaAddress, unsigned char, size_t, CudaStream) = nullptr;
    int (*attribute)(void*, int, CudaAddress) = nullptr;
  } memory;
  struct {
    int (*create)(CudaStream*, unsigned int) = nullptr;
    int (*destroy)(CudaStream) = nullptr;
    int (*query)(CudaStream) = nullptr;
    int (*synchronize)(CudaStream) = nullptr;
    int (*wait)(CudaStream, CudaEvent, unsigned int) = nullptr;
  } stream;
  struct {
    int (*create)(CudaEvent*, unsigned int) = nullptr;
    int (*destroy)(CudaEvent) = nullptr;
    int (*record)(CudaEvent, CudaStream) = nullptr;
    int (*milliseconds)(float*, CudaEvent, CudaEvent) = nullptr;
  } event;
  struct {
    int (*load)(CudaModule*, const void*) = nullptr;
    int (*unload)(CudaModule) = nullptr;
    int (*function)(CudaFunction*, CudaModule, const char*) = nullptr;
    int (*launch)(CudaFunction, unsigned int, unsigned int, unsigned int, unsigned int,
                  unsigned int, unsigned int, unsigned int, CudaStream, void**, void**) = nullptr;
  } module;
};

/// The driver's library for the loader.
inline constexpr const char* kCudaLibrary = "libcuda.so.1";

/// Initialised, with at least one GPU; otherwise unsupported, with the reason.
Result<CudaCalls> open_cuda(const std::string& library);

/// True for a GPU's memory that the host may not touch. False where kCudaLibrary is not open in
/// this process.
[[nodiscard]] bool is_on_device(const void* at) noexcept;

/// The index of the GPU in whose memory `at` is; nothing if it is in none's.
[[nodiscard]] std::optional<uint32_t> find_gpu_of(const CudaCalls& cuda, const void* at) noexcept;

/// One line, without a full stop at its end.
std::string text_of(const CudaCalls& cuda, int code);

/// A context that is current for a thread and a scope. The thread's own is current again
/// afterwards.
class Current {
 public:
  Current(const CudaCalls& cuda, CudaContext context)
      : cuda_(cuda), code_(cuda.device.context_push(context)) {}
  ~Current() {
    CudaContext popped = nullptr;
    if (code_ == kCudaSuccess) cuda_.device.context_pop(&popped);
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  /// Result of cuCtxPushCurrent.
  [[nodiscard]] int code() const noexcept { return code_; }

 private:
  const CudaCalls& cuda_;
  int code_;
};

}  // namespace laconic::device

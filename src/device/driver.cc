// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "device/driver.h"

#include <dlfcn.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "base/concat.h"
#include "base/symbols.h"

namespace laconic::device {
namespace {

/// The kernel reads the 8 bytes there before it refuses a way that does not exist: a hundred
/// nanoseconds, where a look for the driver takes tens of microseconds.
bool host_reads(const void* at) noexcept {
  const int before = errno;
  const auto words = reinterpret_cast<uintptr_t>(at) & ~uintptr_t{7};
  const bool reads = syscall(SYS_rt_sigprocmask, -1, words, nullptr, 8) == 0 || errno != EFAULT;
  errno = before;
  return reads;
}

}  // namespace

Result<CudaCalls> open_cuda(const std::string& library) {
  Symbols symbols(library);
  CudaCalls cuda;
  symbols.required("cuInit", cuda.device.init);
  symbols.required("cuDriverGetVersion", cuda.device.version);
  symbols.required("cuGetErrorString", cuda.device.error_string);
  symbols.required("cuDeviceGetCount", cuda.device.count);
  symbols.required("cuDeviceGet", cuda.device.get);
  symbols.required("cuDeviceGetName", cuda.device.name);
  symbols.required("cuDeviceGetAttribute", cuda.device.attribute);
  symbols.required("cuDevicePrimaryCtxRetain", cuda.device.context_retain);
  symbols.required("cuDevicePrimaryCtxRelease_v2", cuda.device.context_release);
  symbols.required("cuCtxPushCurrent_v2", cuda.device.context_push);
  symbols.required("cuCtxPopCurrent_v2", cuda.device.context_pop);
  symbols.required("cuMemAlloc_v2", cuda.memory.alloc);
  symbols.required("cuMemFree_v2", cuda.memory.free);
  symbols.required("cuMemHostAlloc", cuda.memory.host_alloc);
  symbols.required("cuMemFreeHost", cuda.memory.host_free);
  symbols.required("cuMemcpyHtoDAsync_v2", cuda.memory.copy_to_device);
  symbols.required("cuMemcpyDtoHAsync_v2", cuda.memory.copy_to_host);
  symbols.required("cuMemcpyDtoDAsync_v2", cuda.memory.copy);
  symbols.required("cuMemsetD8Async", cuda.memory.set);
  symbols.required("cuPointerGetAttribute", cuda.memory.attribute);
  symbols.required("cuStreamCreate", cuda.stream.create);
  symbols.required("cuStreamDestroy_v2", cuda.stream.destroy);
  symbols.required("cuStreamQuery", cuda.stream.query);
  symbols.required("cuStreamSynchronize", cuda.stream.synchronize);
  symbols.required("cuStreamWaitEvent", cuda.stream.wait);
  symbols.required("cuEventCreate", cuda.event.create);
  symbols.required("cuEventDestroy_v2", cuda.event.destroy);
  symbols.required("cuEventRecord", cuda.event.record);
  symbols.required("cuEventElapsedTime", cuda.event.milliseconds);
  symbols.required("cuModuleLoadData", cuda.module.load);
  symbols.required("cuModuleUnload", cuda.module.unload);
  symbols.required("cuModuleGetFunction", cuda.module.function);
  symbols.required("cuLaunchKernel", cuda.module.launch);
  if (!symbols.complete()) {
    return Error{Errc::unsupported, concat({"no NVIDIA driver: ", symbols.why()}),
                 "run on a machine with a GPU and its driver"};
  }
  if (const int code = cuda.device.init(0); code != kCudaSuccess) {
    return Error{Errc::unsupported,
                 concat({code == kCudaNoDevice ? "no GPU: " : "the NVIDIA driver does not start: ",
                         "cuInit failed: ", text_of(cuda, code)}),
                 "run on a machine with a GPU that this process can use"};
  }
  return cuda;
}

bool is_on_device(const void* at) noexcept {
  if (host_reads(at)) return false;
  void* const library = dlopen(kCudaLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
  if (library == nullptr) return false;
  const auto ask = reinterpret_cast<decltype(CudaCalls{}.memory.attribute)>(
      dlsym(library, "cuPointerGetAttribute"));
  unsigned int type = 0;
  const bool known = ask != nullptr &&
                     ask(&type, kCudaMemoryType, reinterpret_cast<CudaAddress>(at)) == kCudaSuccess;
  dlclose(library);
  return known && type == kCudaDeviceMemory;
}

std::optional<uint32_t> find_gpu_of(const CudaCalls& cuda, const void* at) noexcept {
  const auto address = reinterpret_cast<CudaAddress>(at);
  unsigned int type = 0, ordinal = 0;
  const bool known = cuda.memory.attribute(&type, kCudaMemoryType, address) == kCudaSuccess &&
                     type == kCudaDeviceMemory &&
                     cuda.memory.attribute(&ordinal, kCudaDeviceOrdinal, address) == kCudaSuccess;
  return known ? std::optional<uint32_t>(ordinal) : std::nullopt;
}

std::string text_of(const CudaCalls& cuda, int code) {
  const char* text = nullptr;
  const bool known = cuda.device.error_string(code, &text) == kCudaSuccess && text != nullptr;
  return known ? one_line(text) : "CUDA error " + std::to_string(code);
}

}  // namespace laconic::device

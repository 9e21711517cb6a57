// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/nccl/api.h"

#include <dlfcn.h>

#include "base/concat.h"

namespace laconic::engines::nccl {
namespace {

/// A library's symbols; remembers the first that is missing.
class Symbols {
 public:
  explicit Symbols(const std::string& library)
      : handle_(dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)), library_(library) {
    if (handle_ == nullptr) {
      const char* const reason = dlerror();
      why_ = reason != nullptr ? reason : library + " cannot be opened";
    }
  }

  template <class F>
  void optional(const char* name, F*& to) {
    if (handle_ != nullptr) to = reinterpret_cast<F*>(dlsym(handle_, name));
  }
  template <class F>
  void required(const char* name, F*& to) {
    optional(name, to);
    if (to == nullptr && why_.empty()) why_ = concat({library_, " has no ", name});
  }

  [[nodiscard]] bool complete() const { return why_.empty(); }
  [[nodiscard]] const std::string& why() const { return why_; }

 private:
  void* handle_;
  std::string library_;
  std::string why_;
};

/// 2708 is 2.7.8, 21003 is 2.10.3.
std::string version_text(int code) {
  const int unit = code < 10000 ? 1000 : 10000;
  return std::to_string(code / unit) + "." + std::to_string(code % unit / 100) + "." +
         std::to_string(code % 100);
}

std::string one_line(std::string text) {
  for (char& c : text) {
    if (c == '\n' || c == '\r') c = ' ';
  }
  while (!text.empty() && (text.back() == ' ' || text.back() == '.')) text.pop_back();
  return text;
}

}  // namespace

Result<NcclCalls> open_nccl(const std::string& library) {
  Symbols symbols(library);
  NcclCalls nccl;
  symbols.required("ncclGetVersion", nccl.get_version);
  symbols.required("ncclGetUniqueId", nccl.get_unique_id);
  symbols.required("ncclCommInitRank", nccl.comm_init_rank);
  symbols.optional("ncclCommInitRankConfig", nccl.comm_init_rank_config);
  symbols.optional("ncclCommFinalize", nccl.comm_finalize);
  symbols.required("ncclCommDestroy", nccl.comm_destroy);
  symbols.required("ncclCommAbort", nccl.comm_abort);
  symbols.required("ncclCommGetAsyncError", nccl.comm_get_async_error);
  symbols.required("ncclGroupStart", nccl.group_start);
  symbols.required("ncclGroupEnd", nccl.group_end);
  symbols.required("ncclAllReduce", nccl.all_reduce);
  symbols.required("ncclAllGather", nccl.all_gather);
  symbols.required("ncclSend", nccl.send);
  symbols.required("ncclRecv", nccl.recv);
  symbols.required("ncclGetErrorString", nccl.get_error_string);
  symbols.optional("ncclGetLastError", nccl.get_last_error);
  if (!symbols.complete()) {
    return Error{
        Errc::unsupported, concat({"NCCL cannot be used: ", symbols.why()}),
        "install nvidia-nccl-cu12 with pip, or set the path of libnccl.so.2 of NCCL 2.7 or newer"};
  }
  if (const int code = nccl.get_version(&nccl.version_code); code != kNcclSuccess) {
    return Error{Errc::unsupported,
                 concat({"NCCL cannot be used: ncclGetVersion failed: ", text_of(nccl, code)}),
                 "install another version of NCCL"};
  }
  nccl.version = version_text(nccl.version_code);
  if (nccl.version_code < kOldestNccl) {
    return Error{
        Errc::unsupported,
        concat({"NCCL ", nccl.version, " does not support point-to-point messages: ", library}),
        "install NCCL 2.7 or newer"};
  }
  return nccl;
}

Result<CudaCalls> open_cuda(const std::string& library) {
  Symbols symbols(library);
  CudaCalls cuda;
  symbols.required("cuInit", cuda.init);
  symbols.required("cuGetErrorString", cuda.get_error_string);
  symbols.required("cuDeviceGetCount", cuda.device_get_count);
  symbols.required("cuDeviceGet", cuda.device_get);
  symbols.required("cuDevicePrimaryCtxRetain", cuda.primary_context_retain);
  symbols.required("cuDevicePrimaryCtxRelease_v2", cuda.primary_context_release);
  symbols.required("cuCtxPushCurrent_v2", cuda.context_push);
  symbols.required("cuCtxPopCurrent_v2", cuda.context_pop);
  symbols.required("cuStreamCreate", cuda.stream_create);
  symbols.required("cuStreamDestroy_v2", cuda.stream_destroy);
  symbols.required("cuStreamQuery", cuda.stream_query);
  symbols.required("cuMemAlloc_v2", cuda.memory_alloc);
  symbols.required("cuMemFree_v2", cuda.memory_free);
  symbols.required("cuMemHostAlloc", cuda.host_alloc);
  symbols.required("cuMemFreeHost", cuda.host_free);
  symbols.required("cuMemcpyHtoDAsync_v2", cuda.copy_to_device);
  symbols.required("cuMemcpyDtoHAsync_v2", cuda.copy_to_host);
  if (!symbols.complete()) {
    return Error{Errc::unsupported, concat({"no NVIDIA driver: ", symbols.why()}),
                 "run on a machine with a GPU and its driver"};
  }
  if (const int code = cuda.init(0); code != kCudaSuccess) {
    return Error{Errc::unsupported,
                 concat({code == kCudaNoDevice ? "no GPU: " : "the NVIDIA driver does not start: ",
                         "cuInit failed: ", text_of(cuda, code)}),
                 "run on a machine with a GPU that this process can use"};
  }
  return cuda;
}

std::string text_of(const NcclCalls& nccl, int code) {
  const char* const name = nccl.get_error_string(code);
  std::string text = one_line(name != nullptr ? name : "error " + std::to_string(code));
  const char* const last = nccl.get_last_error != nullptr ? nccl.get_last_error(nullptr) : nullptr;
  if (last != nullptr && *last != '\0') text += concat({": ", one_line(last)});
  return text;
}

std::string text_of(const CudaCalls& cuda, int code) {
  const char* text = nullptr;
  const bool known = cuda.get_error_string(code, &text) == kCudaSuccess && text != nullptr;
  return known ? one_line(text) : "CUDA error " + std::to_string(code);
}

}  // namespace laconic::engines::nccl

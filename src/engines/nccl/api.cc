// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/nccl/api.h"

#include "base/concat.h"
#include "base/symbols.h"

namespace laconic::engines::nccl {
namespace {

/// 2708 is 2.7.8, 21003 is 2.10.3.
std::string version_text(int code) {
  const int unit = code < 10000 ? 1000 : 10000;
  return std::to_string(code / unit) + "." + std::to_string(code % unit / 100) + "." +
         std::to_string(code % 100);
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

std::string text_of(const NcclCalls& nccl, int code) {
  const char* const name = nccl.get_error_string(code);
  std::string text = one_line(name != nullptr ? name : "error " + std::to_string(code));
  const char* const last = nccl.get_last_error != nullptr ? nccl.get_last_error(nullptr) : nullptr;
  if (last != nullptr && *last != '\0') text += concat({": ", one_line(last)});
  return text;
}

}  // namespace laconic::engines::nccl

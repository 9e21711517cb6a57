// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The calls of NCCL that the engine uses, declared here so that it is not needed to build Laconic.
// https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "device/driver.h"
#include "laconic/engine/nccl.h"
#include "laconic/error.h"

namespace laconic::engines::nccl {

// ncclResult_t, as far as it is looked at.
inline constexpr int kNcclSuccess = 0, kNcclRemoteError = 6, kNcclInProgress = 7;
// ncclRedOp_t, ncclDataType_t.
inline constexpr int kNcclSum = 0;
inline constexpr int kNcclUint8 = 1, kNcclUint32 = 3, kNcclFloat16 = 6, kNcclFloat32 = 7,
                     kNcclBfloat16 = 9;
/// NCCL_VERSION(2, 7, 0) and NCCL_VERSION(2, 10, 0): up to 2.8 minor versions count hundreds of
/// thousands.
inline constexpr int kOldestNccl = 2700, kFirstNcclWithBfloat16 = 21000;

using NcclComm = void*;  // ncclComm_t
struct NcclUniqueId {
  char internal[128];
};
/// ncclConfig_t as of 2.14, which newer versions take for what it is: it carries size and version.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 1;
};

using device::CudaStream;

struct NcclCalls {
  int (*get_version)(int*) = nullptr;
  int (*get_unique_id)(NcclUniqueId*) = nullptr;
  int (*comm_init_rank)(NcclComm*, int, NcclUniqueId, int) = nullptr;
  int (*comm_init_rank_config)(NcclComm*, int, NcclUniqueId, int, NcclConfig*) = nullptr;  // 2.14
  int (*comm_finalize)(NcclComm) = nullptr;                                                // 2.14
  int (*comm_destroy)(NcclComm) = nullptr;
  int (*comm_abort)(NcclComm) = nullptr;
  int (*comm_get_async_error)(NcclComm, int*) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*all_reduce)(const void*, void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  int (*all_gather)(const void*, void*, size_t, int, NcclComm, CudaStream) = nullptr;
  int (*send)(const void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  int (*recv)(void*, size_t, int, int, NcclComm, CudaStream) = nullptr;
  const char* (*get_error_string)(int) = nullptr;
  const char* (*get_last_error)(NcclComm) = nullptr;  // 2.13

  int version_code = 0;
  std::string version;

  /// Whether calls can return before they have done their work: all waits are bounded then.
  [[nodiscard]] bool nonblocking() const noexcept {
    return comm_init_rank_config != nullptr && comm_finalize != nullptr;
  }
};

Result<NcclCalls> open_nccl(const std::string& library);

/// One line, without a full stop at its end.
std::string text_of(const NcclCalls& nccl, int code);

}  // namespace laconic::engines::nccl

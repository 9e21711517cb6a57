// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What an exchange asks of an engine: three collectives on bytes and lanes. Whatever drives an
// exchange (c10d from Python, threads in one process, later MPI, Gloo, NCCL, a simulator) executes
// steps and asks for the next batch.
#pragma once

#include <cstdint>
#include <span>

#include "laconic/dtype.h"

namespace laconic::transport {

enum class StepKind : uint8_t {
  all_reduce = 0,  ///< `send` == `recv`: `count` lanes of `dtype`, summed in place
  all_gather = 1,  ///< own bytes at `send`; rank r's recv_counts[r] bytes at recv + recv_offsets[r]
  all_to_all = 2,  ///< send_counts[r] bytes at send + send_offsets[r] to r; received likewise
};

/// One collective. Steps of one batch are independent: a driver may have all of them in flight at
/// once, but issues them in order on every rank. Pointers stay valid until the next call on the
/// exchange.
struct Step {
  StepKind kind = StepKind::all_reduce;
  DType dtype = DType::u8;
  bool needs_host = true;    ///< the result is read on the host before the next batch is known
  bool short_sends = false;  ///< recv_counts are room: what arrives may be shorter (EngineCaps)
  /// The same number on all ranks, and not that of another step of the last 2^20 exchanges: for
  /// engines whose messages carry tags. Below 2^28.
  uint32_t tag = 0;
  uint64_t count = 0;  ///< all_reduce: lanes
  uint8_t* send = nullptr;
  uint8_t* recv = nullptr;
  std::span<const uint64_t> send_counts{};   ///< bytes, by rank; all_gather: all the same
  std::span<const uint64_t> send_offsets{};  ///< bytes from `send`, by rank; all_gather: zeros
  std::span<const uint64_t> recv_counts{};
  std::span<const uint64_t> recv_offsets{};
};

inline constexpr uint32_t kMaxBatch = 4;

}  // namespace laconic::transport

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Rendezvous: how the ranks of a group find each other before they are connected, by a folder that
// all of them can access or by a TCP port of rank 0. For engines whose library has no launcher. The
// port has no password: any program that reaches it can disturb the group, as in Gloo and MPI, but
// not harm the process that listens.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic::rendezvous {

using Clock = std::chrono::steady_clock;
inline constexpr size_t kMaxKey = 64;
inline constexpr size_t kMaxValue = size_t{1} << 20;
/// Prefix of news: over TCP every rank receives them at once, so that they outlive rank 0.
inline constexpr std::string_view kNews = "news.";
inline constexpr size_t kMaxNews = 1024;
/// Keys of news: why ranks cannot meet, and why a group has ended.
inline constexpr std::string_view kMeeting = "news.meeting", kFault = "news.fault";

/// Values by key, written once, the same for all ranks. Keys: 1 to kMaxKey letters, digits, '.',
/// '_', '-', not starting with '.'; values: 1 to kMaxValue bytes, news at most kMaxNews.
/// Thread-safe.
class Board {
 public:
  Board() = default;
  virtual ~Board() = default;
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  /// Writes `value` unless `key` has one. Returns the value of `key`.
  virtual Result<std::string> put(const std::string& key, const std::string& value,
                                  Deadline deadline) = 0;
  /// Returns the value of `key`; empty: none yet.
  virtual Result<std::string> get(const std::string& key, Deadline deadline) = 0;
  /// True if rank 0 stores the values: an Error of put or get is then about rank 0.
  [[nodiscard]] virtual bool kept_by_rank_0() const noexcept = 0;
};

[[nodiscard]] bool is_key(std::string_view key) noexcept;
[[nodiscard]] bool is_value(std::string_view key, std::string_view value) noexcept;

/// where: "file:FOLDER" or "tcp:HOST:PORT", HOST in brackets if it is an IPv6 address.
/// invalid_argument if it is neither; engine_failed, timed_out if rank 0's port cannot be reached.
Result<std::unique_ptr<Board>> open(std::string_view where, uint32_t rank, uint32_t world,
                                    Deadline deadline);

/// Serializes an Error for other ranks: the code's number, a blank, the message without control
/// characters.
std::string write_news(const Error& error);
/// Reads what write_news() wrote; any other text gives engine_failed with it as message.
Error read_news(std::string text, std::string hint);

/// Returns when all ranks have joined, with the same world, each once. A rank that finds out that
/// this will not happen reports the reason to the others: ranks_disagree, invalid_argument (a rank
/// joined twice), timed_out. `timeout` is for the message.
Result<void> meet(Board& board, uint32_t rank, uint32_t world, std::chrono::milliseconds timeout,
                  Deadline deadline);

}  // namespace laconic::rendezvous

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Engines move bytes between ranks and do not interpret them. An exchange requests batches of
// steps; its driver (a session over an Engine, torch.distributed from Python, a C program) executes
// each batch and requests the next. docs/guide/engines.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "laconic/aggregation.h"
#include "laconic/dtype.h"
#include "laconic/error.h"

namespace laconic {

enum class StepKind : uint8_t {
  all_reduce = 0,  ///< `send` == `recv`: `count` elements of `dtype`, summed in place
  all_gather = 1,  ///< this rank's bytes at `send`; rank r's at recv + recv_offsets[r]
  all_to_all = 2,  ///< send_counts[r] bytes at send + send_offsets[r] to rank r
  messages = 3,    ///< the entries of `messages`, all at once
  aggregate = 4,   ///< `contributions` to an aggregator, sums into `aggregates`
};

/// A message to another rank, and one from it. If this rank sends nothing, the peer's recv_room is
/// 0, and the peer need not list this rank.
struct Message {
  uint32_t peer = 0;
  const uint8_t* send = nullptr;
  uint64_t send_bytes = 0;
  uint8_t* recv = nullptr;
  uint64_t recv_room = 0;  ///< bytes received; with Step::short_sends the maximum
};

/// One collective. Steps of a batch are independent: an engine may run them concurrently, but
/// issues them in order on every rank. Pointers stay valid until the next call on the exchange.
struct Step {
  StepKind kind = StepKind::all_reduce;
  DType dtype = DType::u8;
  bool short_sends = false;  ///< recv_counts are maxima: data may be shorter (EngineCaps)
  /// For engines whose messages carry tags: the same number on all ranks, different from those of
  /// all other steps of the last 2^20 exchanges. Below 2^28.
  uint32_t tag = 0;
  uint64_t count = 0;  ///< all_reduce: number of elements
  /// Factor of float32 elements, the same on all ranks: each rank's elements are multiplied by it
  /// before they are added. 1 unless the engine does that (EngineCaps::scales_from).
  float scale = 1.0F;
  uint8_t* send = nullptr;
  uint8_t* recv = nullptr;
  std::span<const uint64_t> send_counts{};   ///< bytes, by rank; all_gather: all the same
  std::span<const uint64_t> send_offsets{};  ///< bytes from `send`, by rank; all_gather: zeros
  std::span<const uint64_t> recv_counts{};
  std::span<const uint64_t> recv_offsets{};
  std::span<const Message> messages{};            ///< every peer at most once, this rank not at all
  std::span<const Contribution> contributions{};  ///< the same number on all ranks
  std::span<Aggregate> aggregates{};              ///< one per contribution
};

inline constexpr uint32_t kMaxBatch = 8;

/// Capabilities of an engine, the same on all ranks: agreement compares them.
struct EngineCaps {
  /// Types that all_reduce adds, a bit per DType.
  uint32_t sums = 1U << static_cast<uint32_t>(DType::f32);
  /// A rank may send fewer bytes than the receiver's buffer holds: payloads of varying length then
  /// travel exactly, without prediction.
  bool short_sends = false;
  /// Minimum bytes of float32 from which the engine multiplies by Step::scale, which saves a pass
  /// over the gradient if the engine reads it piece by piece anyway. May differ between ranks:
  /// agreement takes the largest.
  uint64_t scales_from = ~uint64_t{0};
  bool aggregates = false;  ///< supports aggregate steps, after Engine::join
  [[nodiscard]] constexpr bool can_sum(DType t) const noexcept {
    return (sums >> static_cast<uint32_t>(t) & 1U) != 0;
  }
};
/// float32, half, bfloat16, and int32, which wraps on overflow.
inline constexpr uint32_t kAllSums =
    1U << static_cast<uint32_t>(DType::f32) | 1U << static_cast<uint32_t>(DType::f16) |
    1U << static_cast<uint32_t>(DType::bf16) | 1U << static_cast<uint32_t>(DType::i32);

/// Maximum number of batches started and not waited for.
inline constexpr uint32_t kMaxTickets = 16;
/// A started batch.
struct Ticket {
  uint64_t number = 0;
};
using Deadline = std::chrono::steady_clock::time_point;

/// Moves bytes between ranks. An implementation defines at least rank, world and run; start and
/// wait then run batches on one thread of the engine, in order.
class Engine {
 public:
  Engine();
  virtual ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] virtual uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual uint32_t world() const noexcept = 0;
  /// Constant, and the same on all ranks. Default: sums of float32 only.
  [[nodiscard]] virtual EngineCaps caps() const noexcept;

  /// Announces the job to the aggregator, before the first step of kind `aggregate`. Collective.
  /// Error `unsupported` without an aggregator.
  virtual Result<void> join(const AggregationJob& job, std::chrono::milliseconds timeout);

  /// Executes a batch; returns when all its steps have completed or one has failed (peer gone,
  /// timeout). Not called concurrently.
  virtual Result<void> run(std::span<const Step> batch) = 0;

  /// Starts a batch of at most kMaxBatch steps; at most kMaxTickets batches are outstanding. All
  /// ranks start the same batches in the same order. Memory of the steps must stay valid until
  /// wait() has returned success, and after a failure as long as the engine. After a failed batch
  /// nothing is executed: later batches fail with the same Error.
  virtual Result<Ticket> start(std::span<const Step> batch);
  /// Returns when the batch has completed. Called once per ticket, else exchange_order.
  /// `timed_out`: it was not complete at the deadline and may still be running; the engine can no
  /// longer be used.
  virtual Result<void> wait(Ticket ticket, Deadline deadline);
  /// Keeps `memory` until the engine is destroyed: a batch that timed out may still use it.
  void keep_until_end(std::shared_ptr<void> memory) noexcept;

 protected:
  /// Returns when no batch is running; no batch runs afterwards. For destructors of engines that
  /// can be destroyed while tickets are outstanding: they make run() return, then call this while
  /// their members still exist.
  void stop() noexcept;
  /// total[i] += x[i], rounded to the type. Any alignment.
  static void add_lanes(DType type, uint8_t* total, const uint8_t* x, uint64_t count) noexcept;
  /// total[i] = total[i] * of_total + x[i] * of_x in float32; the factors are step.scale, or 1 for
  /// values that were already multiplied. Other types are added only. Any alignment.
  static void add_lanes(DType type, uint8_t* total, float of_total, const uint8_t* x, float of_x,
                        uint64_t count) noexcept;
  /// x[i] *= step.scale for `count` elements of an all_reduce, unless scale is 1. Any alignment.
  static void scale_lanes(const Step& step, uint8_t* x, uint64_t count) noexcept;
  /// Never frees the memory given to keep_until_end. For destructors of engines whose network may
  /// use it as long as the process lives.
  void keep_for_good() noexcept;

 private:
  class Thread;
  std::vector<std::shared_ptr<void>> kept_;
  std::unique_ptr<Thread> thread_;  // last: it ends first
};

/// An engine defined by rank, world and move: every step becomes messages, and sums are taken in
/// rank order, with the same bits as LoopbackHub.
class MessageEngine : public Engine {
 public:
  /// All sums; no short sends, unless a derived engine overrides this.
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> run(std::span<const Step> batch) final;

 protected:
  /// Moves all messages concurrently: a peer may send before it receives, or after. Each peer is
  /// listed at most once, this rank not at all. `tag`: as in Step. Returns when everything has
  /// arrived and no memory of `messages` is used any more, or with an Error.
  virtual Result<void> move(std::span<const Message> messages, uint32_t tag) = 0;

 private:
  Result<void> run_one(const Step& step);
  Result<void> exchange(const Step& step);
  Result<void> sum(const Step& step);

  std::vector<Message> messages_;
  std::vector<uint8_t> terms_;
};

}  // namespace laconic

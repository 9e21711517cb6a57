// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Engines: what moves bytes between ranks, and never sees what they mean. An exchange asks for
// steps; whatever drives it (a session over an Engine, torch.distributed from Python, a C program)
// executes them and asks for the next batch. docs/guide/engines.md.
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
  all_reduce = 0,  ///< `send` == `recv`: `count` lanes of `dtype`, summed in place
  all_gather = 1,  ///< own bytes at `send`; rank r's recv_counts[r] bytes at recv + recv_offsets[r]
  all_to_all = 2,  ///< send_counts[r] bytes at send + send_offsets[r] to r; received likewise
  messages = 3,    ///< what `messages` lists, all at once
  aggregate = 4,   ///< `contributions` to an aggregator; the sums into `aggregates`
};

/// To one other rank, and from it. Where this rank sends nothing, the peer's message has no room,
/// and the peer need not list this rank.
struct Message {
  uint32_t peer = 0;
  const uint8_t* send = nullptr;
  uint64_t send_bytes = 0;
  uint8_t* recv = nullptr;
  uint64_t recv_room = 0;  ///< exactly what arrives, or, with Step::short_sends, at least
};

/// One collective. Steps of one batch are independent: an engine may have all of them in flight at
/// once, but issues them in order on every rank. Pointers stay valid until the next call on the
/// exchange.
struct Step {
  StepKind kind = StepKind::all_reduce;
  DType dtype = DType::u8;
  bool short_sends = false;  ///< recv_counts are room: what arrives may be shorter (EngineCaps)
  /// The same number on all ranks, and not that of another step of the last 2^20 exchanges: for
  /// engines whose messages carry tags. Below 2^28.
  uint32_t tag = 0;
  uint64_t count = 0;  ///< all_reduce: lanes
  /// Of float32 lanes, the same on all ranks: every rank's are multiplied by it before they are
  /// added. 1 unless the engine does that (EngineCaps::scales_from).
  float scale = 1.0F;
  uint8_t* send = nullptr;
  uint8_t* recv = nullptr;
  std::span<const uint64_t> send_counts{};   ///< bytes, by rank; all_gather: all the same
  std::span<const uint64_t> send_offsets{};  ///< bytes from `send`, by rank; all_gather: zeros
  std::span<const uint64_t> recv_counts{};
  std::span<const uint64_t> recv_offsets{};
  std::span<const Message> messages{};            ///< every peer at most once, this rank not at all
  std::span<const Contribution> contributions{};  ///< the same number on all ranks
  std::span<Aggregate> aggregates{};              ///< as many
};

inline constexpr uint32_t kMaxBatch = 8;

/// What an engine can do. The same on all ranks: agreement compares it.
struct EngineCaps {
  /// Types whose lanes it adds; bits by DType.
  uint32_t sums = 1U << static_cast<uint32_t>(DType::f32);
  /// A rank may send fewer bytes than the receiver has room for: varying lengths then need no
  /// prediction and travel exactly.
  bool short_sends = false;
  /// From so many bytes of float32 on it multiplies the lanes by Step::scale, at this rank or where
  /// they are added: an engine that reads them piece by piece anyway saves a pass over the
  /// gradient. Ranks need not have the same: the agreement takes the largest.
  uint64_t scales_from = ~uint64_t{0};
  bool aggregates = false;  ///< steps of that kind, after Engine::join
  [[nodiscard]] constexpr bool can_sum(DType t) const noexcept {
    return (sums >> static_cast<uint32_t>(t) & 1U) != 0;
  }
};
/// float32, half, bfloat16 and int32, which wraps.
inline constexpr uint32_t kAllSums =
    1U << static_cast<uint32_t>(DType::f32) | 1U << static_cast<uint32_t>(DType::f16) |
    1U << static_cast<uint32_t>(DType::bf16) | 1U << static_cast<uint32_t>(DType::i32);

/// Batches that may have been started and not waited for.
inline constexpr uint32_t kMaxTickets = 16;
/// A batch that has been started.
struct Ticket {
  uint64_t number = 0;
};
using Deadline = std::chrono::steady_clock::time_point;

/// Moves bytes between ranks. Only rank, world and run have to be written; start and wait then run
/// batches on one thread of the engine's own, in the order of their starts.
class Engine {
 public:
  Engine();
  virtual ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  [[nodiscard]] virtual uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual uint32_t world() const noexcept = 0;
  /// Fixed; all ranks' are the same. By default sums of float32 alone.
  [[nodiscard]] virtual EngineCaps caps() const noexcept;

  /// Before the first step of kind `aggregate`: tells the aggregator what there will be. All
  /// ranks together. `unsupported` without one.
  virtual Result<void> join(const AggregationJob& job, std::chrono::milliseconds timeout);

  /// Executes a batch; returns when all its steps are complete or one has failed (peer gone, time
  /// out). Never called by two threads at once.
  virtual Result<void> run(std::span<const Step> batch) = 0;

  /// Begins a batch of at most kMaxBatch steps, of at most kMaxTickets at a time; all ranks begin
  /// the same ones in the same order. What the steps point to has to live until wait() has returned
  /// a value, and after a failure as long as the engine. Behind a batch that failed nothing is
  /// executed: later ones fail with the same Error.
  virtual Result<Ticket> start(std::span<const Step> batch);
  /// Returns when the batch is complete. Once for each ticket, else exchange_order. `timed_out`: it
  /// was not at the deadline, and may still be running; the engine is of no use any more.
  virtual Result<void> wait(Ticket ticket, Deadline deadline);
  /// Frees `memory` when the engine ends: a batch that has timed out may still use it.
  void keep_until_end(std::shared_ptr<void> memory) noexcept;

 protected:
  /// Returns when no batch is being executed; none will be from then on. For destructors of engines
  /// that can be destroyed before all tickets have been waited for: they see to it that run()
  /// returns, then call this, while their members are still there.
  void stop() noexcept;
  /// total[i] += x[i], rounded to the type. No alignment is needed.
  static void add_lanes(DType type, uint8_t* total, const uint8_t* x, uint64_t count) noexcept;
  /// total[i] = total[i] * of_total + x[i] * of_x in float32; the factors are step.scale, or 1 for
  /// what has been multiplied. Lanes of other types are added. No alignment is needed.
  static void add_lanes(DType type, uint8_t* total, float of_total, const uint8_t* x, float of_x,
                        uint64_t count) noexcept;
  /// x[i] *= step.scale for `count` lanes of an all_reduce, unless it is 1. No alignment is needed.
  static void scale_lanes(const Step& step, uint8_t* x, uint64_t count) noexcept;
  /// What keep_until_end was given is never freed. For destructors of engines whose network may use
  /// the memory as long as the process lives.
  void keep_for_good() noexcept;

 private:
  class Thread;
  std::vector<std::shared_ptr<void>> kept_;
  std::unique_ptr<Thread> thread_;  // last: it ends first
};

/// An engine of which only rank, world and move have to be written: all steps are made of messages,
/// and sums are taken in rank order, so that they are the same bits as those of LoopbackHub.
class MessageEngine : public Engine {
 public:
  /// All sums; no short sends, unless the engine below overrides this.
  [[nodiscard]] EngineCaps caps() const noexcept override;
  Result<void> run(std::span<const Step> batch) final;

 protected:
  /// Moves all messages at once: a peer may send before it receives, or the other way round. Every
  /// peer is listed at most once, this rank not at all. `tag` as in Step. Returns when everything
  /// has arrived and no memory of `messages` is needed any more, or with what went wrong.
  virtual Result<void> move(std::span<const Message> messages, uint32_t tag) = 0;

 private:
  Result<void> run_one(const Step& step);
  Result<void> exchange(const Step& step);
  Result<void> sum(const Step& step);

  std::vector<Message> messages_;
  std::vector<uint8_t> terms_;
};

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The exchange of one bucket: the strategy that the planner chose, the uncompressed way out when
// some gradient is not finite or a flush is due, and the 16-bit inputs, which everything below sees
// as float32. No I/O.
#pragma once

#include <memory>
#include <optional>

#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

struct Bucket {
  void* buffer = nullptr;  ///< layout.elements of dtype: gradients in, means out
  DType dtype = DType::f32;
  uint64_t step = 0;
  uint32_t index = 0;
  bool flush = false;  ///< send uncompressed with the residual added; residuals become zero
  bool raw = false;    ///< send uncompressed, residuals untouched
};

class Exchange {
 public:
  /// Allocates what the layout needs; reused for every step with this layout.
  Exchange(RankState& state, Layout layout, Counters& counters);
  ~Exchange();

  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }
  /// Encodes. `sequence` counts the exchanges since attach, alike on all ranks.
  void begin(const Bucket& bucket, uint32_t sequence);
  /// Before the first next(): this rank has failed; all ranks will report it.
  void fail(Error error);
  /// The next batch; 0 steps: finished. On an error everything undelivered was put back.
  Result<uint32_t> next(std::span<transport::Step> batch);
  /// The engine failed: puts back what was not delivered. Idempotent.
  void abort();
  /// This exchange went out uncompressed because of a gradient that is not finite.
  [[nodiscard]] bool fell_back() const noexcept { return fell_back_; }

 private:
  enum class Phase : uint8_t { idle, begun, strategy, raw, status };

  void start();
  Result<uint32_t> after_raw(transport::Step& step);
  Result<uint32_t> after_status();
  void poison();
  [[nodiscard]] bool poisoned();
  [[nodiscard]] Input input() noexcept;
  void add_residuals();
  void drop_residuals();
  Next emit_raw(transport::Step& step);
  void finish_raw();
  void widen();
  void narrow();
  [[nodiscard]] float* gradient() noexcept;

  RankState* state_;
  Counters* counters_;
  Layout layout_;
  std::unique_ptr<Strategy> strategy_;
  StatusRound status_;
  std::vector<uint8_t> flushed_;  // by parameter of the layout: went out with its residual
  Arena wide_;
  Bucket bucket_;
  uint32_t sequence_ = 0;
  std::optional<Error> failure_;
  Phase phase_ = Phase::idle;
  bool raw_wide_ = false;  // the uncompressed sum travels as float32 because the engine cannot add
                           // the bucket's type
  bool fell_back_ = false;
  bool out_of_memory_ = false;
};

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The exchange of one bucket: its strategies (a leg for each that the planner chose, or
// uncompressed when a flush is due or a gradient is not finite), and the conversion of 16-bit
// inputs to float32. No I/O.
//
// Parameters that a control policy sends as float32 have their own leg; if nothing else is
// compressed, the whole bucket is sent uncompressed.
//
// An exchange allocates all memory of its strategies when it is made. The first use of a layout
// begins with a status round, in which a rank that is out of memory or rejects the layout reports
// it to the others; an Exchange without a layout can do only that.
#pragma once

#include <memory>
#include <optional>

#include "collective/exchange/float_bucket.h"
#include "collective/exchange/leg_set.h"
#include "collective/exchange/owner_turn.h"
#include "collective/exchange/status_round.h"
#include "collective/exchange/strategy.h"
#include "collective/strategies/uncompressed/uncompressed.h"

namespace laconic::collective {

struct Bucket {
  void* buffer = nullptr;  ///< layout.elements of dtype: gradients in, means out
  DType dtype = DType::f32;
  uint64_t step = 0;
  uint32_t index = 0;
  bool raw = false;  ///< send uncompressed, residuals untouched
};

/// The part of a session's flush in one exchange.
struct FlushTurn {
  uint32_t request = 0;  ///< steps of the flush that this rank requests; 0: none
  uint32_t parts = 0;    ///< draining: 1/parts of each residual goes out; 0: not draining
};

class Exchange {
 public:
  /// For this layout and type of buffer, with all memory that the strategy will need.
  static Result<std::unique_ptr<Exchange>> create(RankState& state, Layout layout, DType dtype,
                                                  Counters& counters);
  /// Only for telling the other ranks of a failure.
  static Result<std::unique_ptr<Exchange>> create_spare(RankState& state, Counters& counters);

  [[nodiscard]] bool is_for(const LayoutView& layout, DType dtype) const noexcept {
    return dtype == dtype_ && layout.same(layout_);
  }
  /// Between two exchanges: units have other plans. False: no memory.
  [[nodiscard]] bool replan() { return legs_.replan(); }
  /// The steps that next() gave last only ask whether every rank is ready.
  [[nodiscard]] bool enrolling() const noexcept { return stage_ == Stage::enrolling; }
  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }
  /// Every rank has used this layout; its buffer has that many elements.
  [[nodiscard]] bool enrolled() const noexcept { return enrolled_; }
  [[nodiscard]] DType dtype() const noexcept { return dtype_; }
  /// The bucket that was exchanged last.
  [[nodiscard]] const Bucket& bucket() const noexcept { return given_.bucket; }
  /// Notes what the next exchange is about; the first next() begins it. `sequence` counts the
  /// exchanges since attach, the same on all ranks.
  /// `report`: for the first exchange of a step, the same on all ranks but for what it says.
  void prepare(const Bucket& bucket, uint32_t sequence, const FlushTurn& flush,
               const OwnReport* report = nullptr);
  /// Before the first next(): this rank has failed; all ranks will report it. The gradient goes
  /// into the residuals, unless the buffer is not one of this layout.
  void fail(Error error, bool keep_gradient = true);
  /// The next batch; 0 steps: finished. On an error everything undelivered was put back.
  Result<uint32_t> next(std::span<Step> batch);
  /// next() gave 0 steps because the way up is complete: it is the owner's turn until resume().
  [[nodiscard]] bool parked() const noexcept { return stage_ == Stage::parked; }
  /// Null: owners have none.
  [[nodiscard]] OwnerTurn* turn() noexcept { return legs_.owner_turn(); }
  /// The next next() begins the way down: see OwnerTurn::resume.
  void resume(bool skips, const BundleFailure* failure);
  /// The engine failed: puts back what was not delivered. Idempotent.
  void abort();
  /// Until the next prepare().
  struct Heard {
    uint32_t flush = 0;  ///< steps of the flush that some rank asks for; 0: none
    /// The reports of all ranks; empty if there were none, the bucket was sent uncompressed, or it
    /// failed.
    HeardReports reports;
    bool only_here = false;  ///< it failed on this rank alone, after it was delivered
    bool fell_back = false;  ///< it went out uncompressed, as some gradient is not finite
  };
  [[nodiscard]] const Heard& heard() const noexcept { return heard_; }
  /// Buffers and tables of this layout, as they were taken from the system.
  [[nodiscard]] uint64_t held_bytes() const noexcept {
    return held(layout_.parameters, layout_.offsets, status_, uncompressed_, floats_, legs_);
  }

 private:
  enum class Stage : uint8_t {
    idle,
    prepared,      ///< nothing has gone out
    enrolling,     ///< in the status round of a layout that is new
    legs,          ///< as planned
    parked,        ///< between their ways
    uncompressed,  ///< sent uncompressed, instead of the legs or after them
  };
  /// Set by prepare() and fail().
  struct Given {
    Bucket bucket;
    uint32_t sequence = 0;
    FlushTurn flush;
    std::optional<OwnReport> report;
    std::optional<Error> failure;
    bool keeps = true;     ///< a failure of this rank leaves the gradient in the residuals
    bool drained = false;  ///< it went up uncompressed and is parked

    /// The gradient goes into the residuals.
    void keep(const RankState& state, const Layout& layout);
    [[nodiscard]] Result<uint32_t> end() const {
      if (failure) return *failure;
      return uint32_t{0};
    }
  };
  Exchange(RankState& state, Layout layout, DType dtype, Counters& counters);
  Result<uint32_t> advance(std::span<Step> batch);
  Result<uint32_t> enroll(std::span<Step> batch);
  void start();
  void start_uncompressed(Uncompressed::Mode mode);
  void take(bool whole);
  Result<uint32_t> step(std::span<Step> batch);
  [[nodiscard]] Input input() noexcept;

  RankState* state_;
  Counters* counters_;
  Layout layout_;
  DType dtype_ = DType::f32;
  uint64_t layout_hash_ = 0;
  StatusRound status_;
  Uncompressed uncompressed_;
  LegSet legs_;
  FloatBucket floats_;
  Given given_;
  Heard heard_;
  Stage stage_ = Stage::idle;
  uint32_t batch_ = 0;     // of this exchange
  bool enrolled_ = false;  // every rank has what it needs for this layout
};

}  // namespace laconic::collective

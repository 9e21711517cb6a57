// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A strategy is an exchange as a state machine without I/O: it names collectives and says what
// their results mean. The same objects are driven by threads in one process, by torch.distributed
// from Python, later by a simulator.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/plan/layout.h"
#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic::collective {

class OwnerTurn;
class StatusRound;

/// One exchange's input. `gradient` is float32 (widened if the bucket is not) and takes the mean at
/// the end. Compressed parameters are not there, but in a device's memory, if `there` is not null:
/// see pipeline::UnitFloats.
struct Input {
  float* gradient = nullptr;
  float* there = nullptr;
  void* buffer = nullptr;  ///< the bucket itself, of type `dtype`; `gradient` when that is f32
  DType dtype = DType::f32;
  uint64_t step = 0;
  uint32_t sequence = 0;              ///< exchanges since attach: the same on all ranks
  uint64_t layout = 0;                ///< hash of the bucket's layout and type, in every bundle
  uint32_t bucket = 0;                ///< for messages
  uint32_t flush_request = 0;         ///< steps of the flush that this rank requests; 0: none
  const OwnReport* report = nullptr;  ///< null: this exchange carries none, on any rank
  const Error* failure = nullptr;     ///< this rank has failed already: tell the others
};

enum class Verdict : uint8_t {
  steps,       ///< execute the batch, then ask again
  delivered,   ///< everything is here and checked: finish() or undo()
  owner_turn,  ///< the way up is complete: OwnerTurn::resume() comes before the next next()
  take_raw,    ///< some rank's gradient is not finite: undo(); it has to go out uncompressed
};

struct Next {
  Verdict verdict = Verdict::delivered;
  uint32_t steps = 0;
};

/// Counted by exchanges (the first two) and their strategies, read by the session.
struct Counters {
  uint64_t wire_bytes = 0;        ///< sent to other ranks; a ring is assumed for engine sums
  uint64_t port_bytes = 0;        ///< sent out of the host, if its other ranks send as this one
  uint64_t rounds = 0;            ///< collectives issued
  uint64_t overflow_repeats = 0;  ///< rounds repeated for a payload beyond its predicted capacity
  uint64_t zero_units = 0;
  uint64_t non_finite_units = 0;
  uint64_t excluded_granules = 0;  ///< sums without this rank
  uint64_t partial_granules = 0;   ///< sums without the contribution of some rank
  uint64_t out_of_range = 0;       ///< parameters too large for their fixed point's range
  uint64_t residual_resets = 0;    ///< residuals that were not finite and started again from zero
};

class Strategy {
 public:
  virtual ~Strategy() = default;
  /// Encodes. Cannot fail: next() reports local failures to the other ranks. Allocates nothing,
  /// except the copy of the gradient in uncompressed.
  virtual void begin(const Input& input) = 0;
  /// Errors (a peer's failure, hostile bytes) come after everything undelivered was put back.
  virtual Result<Next> next(std::span<Step> batch) = 0;
  /// Reports a failure of this rank elsewhere in the exchange; called before a next(). It is sent
  /// with the next batch, if there is one. `failure` must live as long as the exchange.
  virtual void fail(const Error& failure) = 0;
  /// After `delivered`: the mean goes into the gradient buffer, state moves on. After an error,
  /// which concerns this rank alone, what is in the buffer is undefined.
  virtual Result<void> finish() = 0;
  /// Nothing counts as delivered: residuals take back what was sent (gradient_lost: and the
  /// gradient), or memory returns to what it was. Idempotent; nothing after finish() or an error.
  virtual void undo(pipeline::Undo why) = 0;
  /// Between two exchanges: units have other plans. False: no memory. Takes none for plans that are
  /// no larger than it has had.
  [[nodiscard]] virtual bool replan() = 0;
  /// As settings are now nothing travels so: it is not begun.
  [[nodiscard]] virtual bool idle() const noexcept { return false; }
  /// Steps of the flush that some rank requested in this exchange, the same on every rank; 0: none,
  /// or not known yet.
  [[nodiscard]] virtual uint32_t flush_heard() const noexcept { return 0; }
  /// The reports of all ranks; empty if there are none yet. Valid until the next begin().
  [[nodiscard]] virtual HeardReports reports_heard() const noexcept { return {}; }
  /// Null: it parks nothing.
  [[nodiscard]] virtual OwnerTurn* owner_turn() noexcept { return nullptr; }
  /// Memory that it has taken and not given back, the object itself not included.
  [[nodiscard]] virtual uint64_t held_bytes() const noexcept = 0;
};

/// A leg of an exchange: the units of a layout that use one strategy. Each allocates all memory
/// that it will need. `status` outlives the strategy. `kind`: native_sum or server_sum.
Result<std::unique_ptr<Strategy>> make_sums(RankState& state, const Layout& layout,
                                            StrategyKind kind, Counters& counters,
                                            StatusRound& status);
Result<std::unique_ptr<Strategy>> make_gather_all(RankState& state, const Layout& layout,
                                                  Counters& counters);
Result<std::unique_ptr<Strategy>> make_two_shot(RankState& state, const Layout& layout,
                                                Counters& counters);
/// Takes the place of two_shot where owners have turns: owner_turn.h.
Result<std::unique_ptr<Strategy>> make_push_pull(RankState& state, const Layout& layout,
                                                 Counters& counters);
/// For parameters that a control policy sends as float32 while others are compressed.
Result<std::unique_ptr<Strategy>> make_dense_leg(RankState& state, const Layout& layout);

}  // namespace laconic::collective

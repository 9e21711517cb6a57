// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The state machine of strategies whose payloads are summed on the way: native_sum, code_sum,
// server_sum.
//
// A payload is the elements that a codec makes of a parameter: floats, or integers called codes. A
// part is what is summed in one way: a bucket's floats, or its codes. A round is what can be
// sent before another sum is known (PowerSGD: P, then Q). The steps of a round of both parts go out
// in one batch, and a part's next round waits for the other part.
//
// Payloads travel without a header, so a failure has to show in the numbers: a rank whose unit is
// not finite, or that failed, sends NaN, or what integers have for it. Every rank sees it in the
// sum and then asks for the reason (StatusRound).
#pragma once

#include <memory>

#include "collective/exchange/riders.h"
#include "collective/strategies/sums/units.h"

namespace laconic::collective {

struct SumRound {
  uint32_t number = 0;
  bool last = false;  ///< round 0 is also the last one if no round in between is needed
};

class SumPart {
 public:
  virtual ~SumPart() = default;
  /// For plans as they are now. False: no memory.
  [[nodiscard]] virtual bool reserve() = 0;
  virtual void replan() = 0;
  [[nodiscard]] virtual uint64_t held_bytes() const noexcept = 0;
  [[nodiscard]] virtual uint32_t rounds() const noexcept { return 1; }
  /// A sum that is not finite must not reach mean, residual or state.
  [[nodiscard]] bool guarded() const noexcept { return guarded_; }
  [[nodiscard]] virtual bool idle() const noexcept = 0;
  [[nodiscard]] const Riders& riders() const noexcept { return riders_; }

  /// Encodes nothing. True: it has nothing to send before the last round.
  virtual bool begin(const Input& input) = 0;
  /// After an error it has sent nothing.
  virtual Result<void> encode(const SumRound& round) = 0;
  /// In place of encode: this rank has failed.
  virtual void poison(const SumRound& round) = 0;
  /// Appends to the batch.
  virtual uint32_t emit(const SumRound& round, std::span<Step> batch) = 0;
  /// The sums are there, the same bits on every rank. False: they are of no use.
  virtual bool hear(const SumRound& round) = 0;
  /// They are of use, and this rank has not failed.
  virtual void accept(const SumRound&) {}
  virtual Result<void> finish() = 0;
  virtual void undo(pipeline::Undo why) = 0;
  /// The last sums were of no use; the next ones may be.
  virtual void learn() {}

 protected:
  explicit SumPart(Riders riders) : riders_(std::move(riders)) {}

  Riders riders_;
  bool guarded_ = true;
};

/// One that has units.
class UnitPart : public SumPart {
 public:
  [[nodiscard]] bool reserve() override {
    riders_.reserve();
    return units_.reserve();
  }
  [[nodiscard]] uint32_t rounds() const noexcept override { return units_.rounds(); }
  [[nodiscard]] bool idle() const noexcept override { return units_.plan().idle(); }
  void undo(pipeline::Undo why) override { units_.undo(why); }

 protected:
  UnitPart(RankState& state, SumUnits units) : SumPart(Riders(state)), units_(std::move(units)) {}

  SumUnits units_;
};

/// A strategy of these parts; the last one carries what rides along. No `status`: one of its own.
Result<std::unique_ptr<Strategy>> sum_of(RankState& state,
                                         std::vector<std::unique_ptr<SumPart>> parts,
                                         StatusRound* status);

/// Parameters that no codec takes, and units of which every round is lanes. `beside_codes`: what
/// rides along rides with codes.
std::unique_ptr<SumPart> make_float_lanes(RankState& state, const Layout& layout,
                                          Counters& counters, bool beside_codes);
/// Units whose last round is codes. server_sum: and parameters that no codec takes.
std::unique_ptr<SumPart> make_code_lanes(RankState& state, const Layout& layout, StrategyKind kind,
                                         Counters& counters);

/// Does it send codes?
inline bool has_codes(const RankParameter& p) noexcept {
  return !p.raw && p.codec->spec().codec().table != nullptr;
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// LegSet: a bucket whose parameters use several strategies has a leg for each. Their steps run in
// one batch, and nothing is committed before every leg is delivered.
#pragma once

#include <optional>
#include <vector>

#include "collective/exchange/held.h"
#include "collective/exchange/strategy.h"

namespace laconic::collective {

class LegSet final : public Strategy {
 public:
  void add(std::unique_ptr<Strategy> strategy) { legs_.push_back({std::move(strategy)}); }

  void begin(const Input& input) override;
  Result<Next> next(std::span<Step> batch) override;
  void fail(const Error& failure) override;
  Result<void> finish() override;
  void undo(pipeline::Undo why) override;
  [[nodiscard]] bool replan() override;
  [[nodiscard]] uint32_t flush_heard() const noexcept override { return flush_; }
  [[nodiscard]] HeardReports reports_heard() const noexcept override { return reports_; }
  [[nodiscard]] uint64_t held_bytes() const noexcept override;
  /// OwnerTurn::adopt in place of begin().
  void adopt(const Input& input);
  /// With owner turns there is one leg, because no other strategy is chosen.
  [[nodiscard]] OwnerTurn* owner_turn() noexcept override {
    return legs_.empty() ? nullptr : legs_.front().strategy->owner_turn();
  }

 private:
  struct Leg {
    std::unique_ptr<Strategy> strategy;
    bool runs = false;
  };
  Result<Next> end();

  std::vector<Leg> legs_;
  std::optional<Error> trouble_;  // the first failure of a leg
  bool raw_ = false;              // a leg has to be sent uncompressed
  uint32_t flush_ = 0;
  HeardReports reports_;
};

}  // namespace laconic::collective

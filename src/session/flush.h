// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A flush on one rank: from the request of any rank, over the step in which all ranks receive it,
// to the last step that sends a part of the residuals.
#pragma once

#include <cstdint>
#include <span>

#include "collective/exchange/exchange.h"
#include "control/report.h"
#include "feedback/store.h"

namespace laconic::session {

/// Steps of a flush after residuals_left if no report has the size of residuals: as flush() in
/// Python.
inline constexpr uint32_t kReleaseSteps = 10;

class Flush {
 public:
  /// Takes its place in the saved state. Without one it never flushes.
  Result<void> bind(feedback::Store& store);
  /// Goes on where `before`, of the settings that are replaced, has stopped.
  void take_over(const Flush& before) noexcept;

  /// This rank asks for one in `steps` steps. Nothing happens while one is draining.
  void request(uint32_t steps) noexcept;
  /// All ranks ask, so that nothing is left: by what `residual` says of this rank's.
  void release(control::Ratio residual) noexcept;
  /// Receives the request, the same on all ranks in the same exchange; 0: none.
  void heard(uint32_t steps) noexcept;
  /// `dense`: the step that ends sent all as float32, whatever the flush.
  void begin_step(bool dense) noexcept;

  /// The flush of this step's exchanges.
  [[nodiscard]] collective::FlushTurn turn() const noexcept { return {requested(), parts_}; }
  /// In this step 1/parts of each residual is sent; 0: none.
  [[nodiscard]] uint32_t parts() const noexcept { return parts_; }
  /// The step before sent uncompressed by a flush what else would have been compressed.
  [[nodiscard]] bool sent_before() const noexcept { return sent_before_; }
  [[nodiscard]] uint32_t steps_left() const noexcept;
  /// True if draining or requested by all. Between two steps the same on all ranks: a request of
  /// one rank does not count before all have received it.
  [[nodiscard]] bool releases() const noexcept { return to_come() != 0 || releasing_; }

 private:
  [[nodiscard]] uint32_t requested() const noexcept;
  [[nodiscard]] uint32_t to_come() const noexcept;

  /// {steps that this rank asks for, draining steps still to come}: part of saved state. Empty
  /// without feedback.
  std::span<float> values_;
  bool releasing_ = false;  // requested by all, but not received by any rank yet
  bool sent_before_ = false;
  uint32_t parts_ = 0;
};

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A flush on one rank: from the request of any rank, over the step in which all hear of it, to the
// last step in which a part of the residuals goes out.
#pragma once

#include <cstdint>
#include <span>

#include "collective/exchange/exchange.h"
#include "control/report.h"
#include "feedback/store.h"

namespace laconic::session {

/// Of a flush that follows residuals_left where no report says how large residuals are: as flush()
/// in Python.
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
  /// All ranks hear the same in the same exchange; 0: nobody has asked.
  void heard(uint32_t steps) noexcept;
  /// `dense`: the step that ends sent all as float32, whatever the flush.
  void begin_step(bool dense) noexcept;

  /// What an exchange of this step carries.
  [[nodiscard]] collective::FlushTurn turn() const noexcept { return {requested(), parts_}; }
  /// Of this step: 1/parts of each residual goes out; 0: not draining.
  [[nodiscard]] uint32_t parts() const noexcept { return parts_; }
  /// The step before sent uncompressed by a flush what else would have been compressed.
  [[nodiscard]] bool sent_before() const noexcept { return sent_before_; }
  [[nodiscard]] uint32_t steps_left() const noexcept;
  /// Draining, or asked for by all. Between two steps the same on all ranks: what one rank alone
  /// asks for does not count before all have heard of it.
  [[nodiscard]] bool releases() const noexcept { return to_come() != 0 || releasing_; }

 private:
  [[nodiscard]] uint32_t requested() const noexcept;
  [[nodiscard]] uint32_t to_come() const noexcept;

  /// {steps that this rank asks for, draining steps still to come}: part of saved state. Empty
  /// without feedback.
  std::span<float> values_;
  bool releasing_ = false;  // all have asked, and no rank has heard of it yet
  bool sent_before_ = false;
  uint32_t parts_ = 0;
};

}  // namespace laconic::session

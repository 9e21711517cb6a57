// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "laconic/error.h"
#include "transport/step.h"

namespace laconic::transport {

/// Moves bytes between ranks. Never sees what they mean.
class Engine {
 public:
  virtual ~Engine() = default;
  [[nodiscard]] virtual uint32_t rank() const noexcept = 0;
  [[nodiscard]] virtual uint32_t world() const noexcept = 0;
  /// Executes a batch; returns when all steps are complete or one has failed (peer gone, time out).
  virtual Result<void> run(std::span<const Step> batch) = 0;
};

/// Which lanes an engine can add. Probed once per group; bits by DType.
struct EngineCaps {
  uint32_t sums = 1U << static_cast<uint32_t>(DType::f32);
  /// A rank may send fewer bytes than the receiver has room for: varying lengths then need no
  /// prediction and travel exactly. Gloo can; engines whose both sides name the size cannot.
  bool short_sends = false;
  [[nodiscard]] constexpr bool can_sum(DType t) const noexcept {
    return (sums >> static_cast<uint32_t>(t) & 1U) != 0;
  }
};

}  // namespace laconic::transport

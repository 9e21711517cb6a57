// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Gloo as an engine. Its sources are compiled with the user's own Gloo, which the program links:
// laconic_target_engine(program gloo). docs/guide/engines.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "laconic/engine.h"
#include "laconic/error.h"

namespace laconic {

struct GlooOptions {
  uint32_t rank = 0;
  uint32_t world = 1;
  /// "file:FOLDER", an empty folder that all ranks can access, or "tcp:HOST:PORT", where rank 0
  /// listens. Not needed with one rank.
  std::string rendezvous{};
  /// Network interface ("eth0"); empty: that of this host's name.
  std::string interface_{};
  /// Timeout for all ranks to join and connect; the group fails after it.
  std::chrono::milliseconds timeout = std::chrono::minutes(30);
};

/// GlooEngine. Sums use a ring, as Gloo's own: not in rank order, the same bits on all ranks.
/// Everything else is sent directly and concurrently. Messages may be shorter than their buffer.
///
/// When a rank dies, every waiting rank gets an Error that names it, in well under a second. A rank
/// that destroys its engine does not disturb ranks that have all they need from it. After the first
/// Error the group has ended: all connections are closed, and no memory of a step is used any more.
class GlooEngine final : public Engine {
 public:
  /// Collective.
  static Result<std::unique_ptr<GlooEngine>> create(const GlooOptions& options);
  /// "Gloo 0.5.0": the headers that its sources were compiled with.
  [[nodiscard]] static std::string library();
  ~GlooEngine() override;

  [[nodiscard]] uint32_t rank() const noexcept override;
  [[nodiscard]] uint32_t world() const noexcept override;
  [[nodiscard]] EngineCaps caps() const noexcept override;

  Result<void> run(std::span<const Step> batch) override;
  Result<Ticket> start(std::span<const Step> batch) override;
  Result<void> wait(Ticket ticket, Deadline deadline) override;

 private:
  struct Parts;
  explicit GlooEngine(const GlooOptions& options);
  Error late(Ticket ticket, std::chrono::milliseconds waited);
  Result<void> after_fault(Ticket ticket);

  std::unique_ptr<Parts> parts_;
};

}  // namespace laconic

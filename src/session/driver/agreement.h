// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Agreement of all ranks before the first exchange and before settings change, in one round of
// cards: the same for laconic::Session and for programs behind the C ABI, so that ranks of both may
// share a job.
#pragma once

#include <chrono>
#include <span>
#include <vector>

#include "session/session.h"

namespace laconic::session {

/// A round of cards, with memory that is taken before anything else can fail. Throws bad_alloc.
class Cards {
 public:
  /// `most`: bytes of a card.
  explicit Cards(uint32_t world, uint64_t most = kAgreementBytes);
  [[nodiscard]] uint32_t world() const noexcept { return static_cast<uint32_t>(counts_.size()); }
  /// The step that gathers `own`, as long on every rank, of all of them. Valid as long as this
  /// object.
  [[nodiscard]] Step gathering(Bytes own) noexcept;
  /// Executes it.
  Result<void> gather(Bytes own, Engine& engine, std::chrono::milliseconds timeout);
  /// In rank order.
  [[nodiscard]] Bytes all() const noexcept { return Bytes(all_).first(world() * counts_[0]); }

 private:
  std::vector<uint8_t> own_, all_;
  std::vector<uint64_t> counts_, zeros_, offsets_;
};

/// Runs a batch to its end.
Result<void> execute(Engine& engine, std::span<const Step> batch,
                     std::chrono::milliseconds timeout);

}  // namespace laconic::session

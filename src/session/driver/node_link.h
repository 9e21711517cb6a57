// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The ranks of this rank's node, over an engine of theirs.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <vector>

#include "laconic/bytes.h"
#include "laconic/engine.h"
#include "session/driver/agreement.h"

namespace laconic::session {

/// Takes all its memory when it is made. After an Error of the engine every call gives it.
class NodeLink {
 public:
  /// `most`: bytes that gather() takes. `names`: which ranks of the job these are; empty: unknown.
  /// Throws bad_alloc.
  NodeLink(Engine& engine, std::chrono::milliseconds timeout, uint64_t most,
           std::span<const uint32_t> names = {});

  [[nodiscard]] uint32_t rank() const noexcept { return rank_; }
  [[nodiscard]] uint32_t ranks() const noexcept { return cards_.world(); }

  /// As many bytes of every rank, in rank order; valid until the next call.
  Result<Bytes> gather(Bytes own);
  /// A block to each other rank, and one from each.
  struct Blocks {
    std::span<const uint64_t> bytes, offsets;  ///< by rank; this rank: 0 bytes
  };
  Result<void> exchange(uint8_t* send, const Blocks& sent, uint8_t* recv, const Blocks& received);
  /// Compares the cards of settings that every rank of the node has prepared, or failed to: gives
  /// `own`, or the same failure_card() on all of them.
  AgreementCard compare(const AgreementCard& own);
  /// The first failure of the node's ranks, the same on all of them.
  Result<void> share(const Result<void>& own);
  /// Whether it is so on any rank.
  Result<bool> any(bool here);

  /// Why the engine has failed; none: it has not.
  [[nodiscard]] const std::optional<Error>& broken() const noexcept { return broken_; }

 private:
  Result<void> run(Step& step);

  Engine* engine_;
  std::chrono::milliseconds timeout_;
  uint32_t rank_;
  uint32_t calls_ = 0;
  Cards cards_;
  std::vector<uint32_t> names_;
  std::optional<Error> broken_;
};

/// The Error of the first failure in the notes of a node's ranks, `stride` bytes apart.
Result<void> failure_of_node(Bytes notes, uint64_t stride = kAgreementBytes);

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Agreement: every rank sends a card to the others before the first exchange and before settings
// change, and all report the same difference. `cards`: those of all ranks, in rank order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "laconic/bytes.h"
#include "session/active.h"

namespace laconic::session {

inline constexpr uint64_t kAgreementBytes = 768;
using AgreementCard = std::array<uint8_t, kAgreementBytes>;

/// This rank's card: spec, sizes, version.
AgreementCard agreement_card(const Active& mine);
/// In place of a card: this rank has no settings, and why. `rank`: of the job, if another one, or
/// one that has another number among the cards, is the cause.
AgreementCard failure_card(const Error& why, std::optional<uint32_t> rank = {}) noexcept;

struct Failure {
  uint32_t rank = 0;  ///< that the card names, or its place
  Error why;
  bool everybody = false;  ///< all ranks have the same failure
};
/// The first failure card; a rank's own failure before one that others observed in it. `stride`:
/// bytes from card to card.
std::optional<Failure> first_failure(Bytes cards, uint64_t stride = kAgreementBytes);
/// The Error of the failure, with its rank's name, the same on every rank. `what`: the operation
/// that failed, such as "attach"; if all ranks have the same failure, that failure itself.
Result<void> check_failures(Bytes cards, std::string_view what = {});
/// The same message on every rank when they differ. From where engines scale is not compared: the
/// last of them counts.
Result<void> check_agreement(Active& mine, Bytes cards);
/// The same among the ranks of a node, which exchange one shard each. `names`: their numbers in the
/// message; empty: their places.
Result<void> check_node(Bytes cards, std::span<const uint32_t> names = {});
/// Takes no memory: where cards agree, every rank finds it.
bool cards_agree(Bytes cards, uint32_t world) noexcept;

}  // namespace laconic::session

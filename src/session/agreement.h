// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What every rank tells the others before the first exchange and before settings change, and the
// one message about what differs. `cards`: all ranks', in rank order.
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

/// What this rank tells the others of its settings: spec, sizes, version.
AgreementCard agreement_card(const Active& mine);
/// In place of a card: this rank has no settings, and why.
AgreementCard failure_card(const Error& why) noexcept;

struct Failure {
  uint32_t rank = 0;
  Error why;
  bool everybody = false;  ///< all ranks have told the same
};
/// Of the first failure card, a rank's own trouble before what others have seen of it.
std::optional<Failure> first_failure(Bytes cards);
/// Its Error, with its rank's name, the same on every rank. `what`, if there is any: that they
/// could not do, "attach"; where all have told the same, that.
Result<void> check_failures(Bytes cards, std::string_view what = {});
/// The same message on every rank when they differ. From where engines scale is not compared: the
/// last of them counts.
Result<void> check_agreement(Active& mine, Bytes cards);
/// Takes no memory: where cards agree, every rank finds it.
bool cards_agree(Bytes cards, uint32_t world) noexcept;

}  // namespace laconic::session

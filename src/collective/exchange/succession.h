// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A rank's settings are replaced by others: what it remembers goes on, by parameter.
#pragma once

#include <cstdint>
#include <optional>

#include "collective/exchange/rank_state.h"

namespace laconic::collective {

/// The first parameter with a residual, its own or that of a mean, for which `after` has no place;
/// none: nothing would be lost. What a flush in 16 bits rounded off is no residual.
std::optional<uint32_t> stranded(const RankState& before, const RankState& after) noexcept;

/// Both are of one model, `after` as it was created; nothing is stranded. Residuals, running means
/// and momentum stay where both have them. An owner's residual stays with a mean of the same range,
/// and otherwise joins its own, `world` times. Codec state stays where settings differ by no more
/// than policies move. Takes no memory.
void hand_over(const RankState& before, const RankState& after) noexcept;

}  // namespace laconic::collective

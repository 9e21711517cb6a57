// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Payloads in, floats out, no I/O: the mean of what several ranks sent for one unit or one lane
// segment. Contributors are added in rank order with one association: the same bits on every rank.
#pragma once

#include <span>
#include <string_view>

#include "laconic/spec.h"
#include "wire/bundle.h"

namespace laconic::aggregate {

/// May decode see a peer's slot? If not: payload_malformed, naming the rank and the parameter.
Result<void> check_slot(const Spec& spec, const Unit& unit, const Slot& slot, uint32_t rank,
                        std::string_view parameter);

/// The mean of a unit's checked slots, in rank order: out = ((w·d0 + w·d1) + …), where w =
/// 1/slots.size(), or 1 for a codec that finishes the sum itself (CodecTable::finish). `terms` is
/// scratch with an entry per slot. Zero slots contribute nothing but count in the divisor; if all
/// are zero, so is the mean.
void mean_of_unit(const Spec& spec, const Unit& unit, const Place& place,
                  std::span<const Slot> slots, std::span<Term> terms, Work& work, float* out);

/// Lane segments (raw f32 at any alignment), by rank, to their mean: ((x0 + x1) + …)·(1/world).
void mean_of_lanes(Isa isa, std::span<const void* const> lanes, float* out, uint64_t count);

}  // namespace laconic::aggregate

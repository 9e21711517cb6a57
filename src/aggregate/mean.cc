// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregate/mean.h"

#include <algorithm>

#include "kernels/core/basic.h"

namespace laconic::aggregate {

Result<void> check_slot(const Spec& spec, const Unit& unit, const Slot& slot, uint32_t rank,
                        std::string_view parameter) {
  if (slot.kind != SlotKind::payload) return {};
  const Errc bad = spec.codec().check(spec.params(), unit, 0, slot.payload);
  if (bad == Errc::ok) return {};
  return Error{Errc::payload_malformed,
               "rank " + std::to_string(rank) + " sent a payload for " + std::string(parameter) +
                   " that " + spec.canonical() + " rejects (" + std::string(errc_name(bad)) + ")",
               "all ranks must run the same version of laconic; see docs/format/FRAME.md"};
}

void mean_of_unit(const Spec& spec, const Unit& unit, const Place& place,
                  std::span<const Slot> slots, std::span<Term> terms, Work& work, float* out) {
  const CodecTable& codec = spec.codec();
  // Votes are counted: with weights 1/n the sum of a tie need not be 0.
  const float weight = codec.finish != nullptr ? 1.0F : 1.0F / static_cast<float>(slots.size());
  uint64_t used = 0;
  for (uint32_t r = 0; r < slots.size(); ++r) {
    if (slots[r].kind == SlotKind::payload) terms[used++] = {slots[r].payload, weight, {}, {}, r};
  }
  if (used == 0) {
    std::fill_n(out, unit.count, 0.0F);
  } else {
    const Call<> call{spec.params(), {}, unit, place, 0, work};
    codec.decode(call, terms.first(used), {out, false});
    if (codec.finish != nullptr) codec.finish(call, {out, unit.count});
  }
}

void mean_of_lanes(Isa isa, std::span<const void* const> lanes, float* out, uint64_t count) {
  if (count == 0) return;
  const auto ranks = static_cast<uint32_t>(lanes.size());
  kernels::basic_kernels(isa).sum_rows(out, lanes.data(), ranks, 1.0F / static_cast<float>(ranks),
                                       count);
}

}  // namespace laconic::aggregate

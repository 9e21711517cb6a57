// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A step in the form of laconic.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>

#include "laconic/engine.h"
#include "laconic/laconic.h"

namespace laconic::engines {

// Lists of a step are passed on unchanged.
static_assert(sizeof(laconic_message) == sizeof(Message) &&
              offsetof(laconic_message, send) == offsetof(Message, send) &&
              offsetof(laconic_message, send_bytes) == offsetof(Message, send_bytes) &&
              offsetof(laconic_message, recv) == offsetof(Message, recv) &&
              offsetof(laconic_message, recv_room) == offsetof(Message, recv_room));

static_assert(sizeof(laconic_contribution) == sizeof(Contribution) &&
              offsetof(laconic_contribution, payload) == offsetof(Contribution, payload) &&
              offsetof(laconic_contribution, settings) == offsetof(Contribution, settings) &&
              offsetof(laconic_contribution, norm) == offsetof(Contribution, norm) &&
              offsetof(laconic_contribution, flags) == offsetof(Contribution, flags));
static_assert(sizeof(laconic_aggregate) == sizeof(Aggregate) &&
              offsetof(laconic_aggregate, lanes) == offsetof(Aggregate, lanes) &&
              offsetof(laconic_aggregate, bitmap) == offsetof(Aggregate, bitmap) &&
              offsetof(laconic_aggregate, length) == offsetof(Aggregate, length) &&
              offsetof(laconic_aggregate, norm) == offsetof(Aggregate, norm) &&
              offsetof(laconic_aggregate, flags) == offsetof(Aggregate, flags) &&
              offsetof(laconic_aggregate, added) == offsetof(Aggregate, added) &&
              offsetof(laconic_aggregate, divisor) == offsetof(Aggregate, divisor));
// A span is an address and a count, in that order: AggregatorStep.StepPassesBlocksOn.
static_assert(sizeof(Bytes) == 16);

inline laconic_step to_c(const Step& s) {
  const auto sum = [](std::span<const uint64_t> counts) {
    return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  };
  const bool gathers = s.kind == StepKind::all_gather;
  laconic_step c{};
  c.kind = static_cast<uint32_t>(s.kind);
  c.dtype = static_cast<uint32_t>(s.dtype);
  c.short_sends = s.short_sends ? 1 : 0;
  c.count = s.count;
  c.send = s.send;
  c.recv = s.recv;
  c.send_counts = s.send_counts.data();
  c.recv_counts = s.recv_counts.data();
  c.send_bytes = gathers && !s.send_counts.empty() ? s.send_counts[0] : sum(s.send_counts);
  c.recv_bytes = sum(s.recv_counts);
  c.tag = s.tag;
  c.send_offsets = s.send_offsets.data();
  c.recv_offsets = s.recv_offsets.data();
  c.message_count = static_cast<uint32_t>(s.messages.size());
  c.messages = reinterpret_cast<const laconic_message*>(s.messages.data());
  c.granules = s.contributions.size();
  c.contributions = reinterpret_cast<const laconic_contribution*>(s.contributions.data());
  c.aggregates = reinterpret_cast<laconic_aggregate*>(s.aggregates.data());
  return c;
}

/// For an aggregate step.
inline Step from_c(const laconic_step& c) {
  return {.kind = StepKind::aggregate,
          .contributions = {reinterpret_cast<const Contribution*>(c.contributions), c.granules},
          .aggregates = {reinterpret_cast<Aggregate*>(c.aggregates), c.granules}};
}

}  // namespace laconic::engines

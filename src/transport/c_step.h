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

namespace laconic::transport {

// What a step lists is handed on as it is.
static_assert(sizeof(laconic_message) == sizeof(Message) &&
              offsetof(laconic_message, send) == offsetof(Message, send) &&
              offsetof(laconic_message, send_bytes) == offsetof(Message, send_bytes) &&
              offsetof(laconic_message, recv) == offsetof(Message, recv) &&
              offsetof(laconic_message, recv_room) == offsetof(Message, recv_room));

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
  return c;
}

}  // namespace laconic::transport

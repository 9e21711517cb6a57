// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Shared by the engines over MPI and Gloo: the messages of a step.
#pragma once

#include <cstdint>
#include <cstring>

#include "laconic/engine.h"

namespace laconic::detail {

/// The lanes' arithmetic of Engine, for the parts of one.
struct Lanes : Engine {
  using Engine::add_lanes;
  using Engine::scale_lanes;
};

/// `body(before, after)` for each distance: every rank starts with another peer.
template <class Body>
void for_peers(uint32_t rank, uint32_t world, const Body& body) {
  for (uint32_t i = 1; i < world; ++i) body((rank + world - i) % world, (rank + i) % world);
}

/// `receive(peer, at, room)` for all that comes to this rank, then `send(peer, at, bytes)` for all
/// that leaves it. Of a step that is no sum.
template <class Receive, class Send>
void each_message(const Step& step, uint32_t rank, uint32_t world, const Receive& receive,
                  const Send& send) {
  if (step.kind == StepKind::messages) {
    for (const Message& m : step.messages) receive(m.peer, m.recv, m.recv_room);
    for (const Message& m : step.messages) send(m.peer, m.send, m.send_bytes);
    return;
  }
  for_peers(rank, world, [&](uint32_t before, uint32_t) {
    receive(before, step.recv + step.recv_offsets[before], step.recv_counts[before]);
  });
  for_peers(rank, world, [&](uint32_t, uint32_t behind) {
    send(behind, step.send + step.send_offsets[behind], step.send_counts[behind]);
  });
}

/// Copies the part that this rank sends to itself.
inline void keep_own(const Step& step, uint32_t rank) noexcept {
  if (step.kind == StepKind::messages || step.send_counts[rank] == 0) return;
  const uint8_t* own = step.send + step.send_offsets[rank];
  uint8_t* place = step.recv + step.recv_offsets[rank];
  if (own != place) std::memmove(place, own, step.send_counts[rank]);
}

}  // namespace laconic::detail

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every step as messages.
#include <algorithm>
#include <cstring>
#include <new>

#include "engines/lanes.h"
#include "laconic/engine.h"

namespace laconic {
namespace {

/// The first of rank r's lanes: owners of equal shares.
uint64_t share(uint64_t count, uint32_t rank, uint32_t world) {
  return count / world * rank + std::min<uint64_t>(count % world, rank);
}

}  // namespace

EngineCaps MessageEngine::caps() const noexcept { return {kAllSums, false}; }

Result<void> MessageEngine::run(std::span<const Step> batch) {
  try {
    for (const Step& step : batch) {
      if (auto done = run_one(step); !done) return done;
    }
  } catch (const std::bad_alloc&) {
    return Errc::out_of_memory;
  }
  return {};
}

Result<void> MessageEngine::run_one(const Step& step) {
  switch (step.kind) {
    case StepKind::all_reduce:
      return sum(step);
    case StepKind::all_gather:
    case StepKind::all_to_all:
      return exchange(step);
    case StepKind::aggregate:
      return Error{Errc::unsupported, "this engine has no aggregator", {}};
    case StepKind::messages:
      break;
  }
  return move(step.messages, step.tag);
}

Result<void> MessageEngine::exchange(const Step& step) {
  messages_.clear();
  for (uint32_t peer = 0; peer < world(); ++peer) {
    const uint8_t* send = step.send + step.send_offsets[peer];
    uint8_t* recv = step.recv + step.recv_offsets[peer];
    const uint64_t bytes = step.send_counts[peer];
    if (peer != rank()) {
      messages_.push_back({peer, send, bytes, recv, step.recv_counts[peer]});
    } else if (bytes != 0 && send != recv) {
      std::memmove(recv, send, bytes);
    }
  }
  return move(messages_, step.tag);
}

/// Every rank adds a share of the lanes, those of all ranks in rank order, and hands it round.
Result<void> MessageEngine::sum(const Step& step) {
  const uint64_t size = dtype_size(step.dtype);
  const auto begin = [&](uint32_t r) { return share(step.count, r, world()) * size; };
  const auto bytes = [&](uint32_t r) { return begin(r + 1) - begin(r); };
  const uint64_t mine = bytes(rank());
  terms_.resize(mine * world());
  messages_.clear();
  for (uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) continue;
    messages_.push_back(
        {peer, step.send + begin(peer), bytes(peer), terms_.data() + peer * mine, mine});
  }
  if (auto done = move(messages_, step.tag); !done) return done;
  if (mine != 0) {
    std::memcpy(terms_.data() + rank() * mine, step.send + begin(rank()), mine);
    for (uint32_t r = 1; r < world(); ++r)
      engines::add_lanes(step.dtype, terms_.data(), terms_.data() + r * mine, mine / size);
    std::memcpy(step.recv + begin(rank()), terms_.data(), mine);
  }
  messages_.clear();
  for (uint32_t peer = 0; peer < world(); ++peer) {
    if (peer == rank()) continue;
    messages_.push_back(
        {peer, step.recv + begin(rank()), mine, step.recv + begin(peer), bytes(peer)});
  }
  return move(messages_, step.tag);
}

}  // namespace laconic

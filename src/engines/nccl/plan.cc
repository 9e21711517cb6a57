// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/nccl/plan.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "base/concat.h"

namespace laconic::engines::nccl {
namespace {

/// NCCL moves aligned buffers in its widest loads.
constexpr uint64_t kAlignment = 256;

Error wrong(std::string_view what) {
  return {Errc::exchange_order, concat({"NCCL cannot execute a step: ", what}), {}};
}

}  // namespace

Result<void> BatchPlan::make(std::span<const Step> batch, uint32_t rank, uint32_t world,
                             EngineCaps caps) {
  sizes_ = {};
  calls_.clear();
  in_.clear();
  out_.clear();
  own_.clear();
  for (const Step& step : batch) {
    if (step.short_sends) return wrong("a send that is shorter than its buffer");
    if (auto added = add(step, rank, world, caps); !added) return added;
  }
  return {};
}

Result<void> BatchPlan::add(const Step& step, uint32_t rank, uint32_t world, EngineCaps caps) {
  switch (step.kind) {
    case StepKind::all_reduce:
      return world == 1 ? Result<void>() : add_sum(step, caps);
    case StepKind::messages:
      return add_messages(step, rank, world);
    case StepKind::aggregate:
      return wrong("it has no aggregator");
    case StepKind::all_gather:
    case StepKind::all_to_all:
      break;
  }
  if (step.send_counts.size() != world || step.recv_counts.size() != world ||
      step.send_offsets.size() != world || step.recv_offsets.size() != world)
    return wrong("it does not list every rank");
  if (step.send_counts[rank] != step.recv_counts[rank])
    return wrong("a rank sends itself more or less than it receives");
  if (step.send_counts[rank] != 0) {
    own_.push_back({step.send + step.send_offsets[rank], step.recv + step.recv_offsets[rank],
                    step.send_counts[rank]});
  }
  step.kind == StepKind::all_gather ? add_gather(step, rank, world)
                                    : add_all_to_all(step, rank, world);
  return {};
}

Result<void> BatchPlan::add_sum(const Step& step, EngineCaps caps) {
  if (!caps.can_sum(step.dtype)) {
    return Error{Errc::unsupported,
                 concat({"this version of NCCL does not add ", dtype_name(step.dtype)}),
                 "install NCCL 2.10 or newer"};
  }
  if (step.count == 0) return {};
  const uint64_t bytes = step.count * dtype_size(step.dtype);
  const AreaOffset place = take(Area::summed, bytes);
  in_.push_back({step.send, bytes, place});
  out_.push_back({step.recv, bytes, place});
  calls_.push_back({CallKind::all_reduce, step.dtype, 0, step.count, place, place});
  return {};
}

/// Every rank knows all lengths, so that all take the same way.
void BatchPlan::add_gather(const Step& step, uint32_t rank, uint32_t world) {
  const auto counts = step.recv_counts;
  const uint64_t mine = counts[rank];
  const bool equal =
      std::all_of(counts.begin(), counts.end(), [&](uint64_t n) { return n == mine; });
  if (world == 1 || (equal && mine == 0)) return;
  AreaOffset from{};
  if (mine != 0) {
    from = take(Area::sent, mine);
    in_.push_back({step.send + step.send_offsets[rank], mine, from});
  }
  if (equal) {
    const AreaOffset to = take(Area::received, mine * world);
    calls_.push_back({CallKind::all_gather, DType::u8, 0, mine, from, to});
    for (uint32_t r = 0; r < world; ++r) {
      if (r != rank)
        out_.push_back({step.recv + step.recv_offsets[r], mine, {to.area, to.offset + r * mine}});
    }
    return;
  }
  for (uint32_t r = 0; r < world; ++r) {
    if (r == rank) continue;
    if (mine != 0) calls_.push_back({CallKind::send, DType::u8, r, mine, from, {}});
    receive(step.recv + step.recv_offsets[r], counts[r], r);
  }
}

void BatchPlan::add_all_to_all(const Step& step, uint32_t rank, uint32_t world) {
  for (uint32_t r = 0; r < world; ++r) {
    if (r == rank) continue;
    send(step.send + step.send_offsets[r], step.send_counts[r], r);
    receive(step.recv + step.recv_offsets[r], step.recv_counts[r], r);
  }
}

Result<void> BatchPlan::add_messages(const Step& step, uint32_t rank, uint32_t world) {
  for (const Message& m : step.messages) {
    if (m.peer >= world || m.peer == rank)
      return wrong(concat({"a message to rank ", std::to_string(m.peer)}));
    send(m.send, m.send_bytes, m.peer);
    receive(m.recv, m.recv_room, m.peer);
  }
  return {};
}

void BatchPlan::send(const uint8_t* from, uint64_t bytes, uint32_t peer) {
  if (bytes == 0) return;
  const AreaOffset place = take(Area::sent, bytes);
  in_.push_back({const_cast<uint8_t*>(from), bytes, place});  // only read
  calls_.push_back({CallKind::send, DType::u8, peer, bytes, place, {}});
}

void BatchPlan::receive(uint8_t* to, uint64_t bytes, uint32_t peer) {
  if (bytes == 0) return;
  const AreaOffset place = take(Area::received, bytes);
  out_.push_back({to, bytes, place});
  calls_.push_back({CallKind::recv, DType::u8, peer, bytes, {}, place});
}

AreaOffset BatchPlan::take(Area area, uint64_t bytes) {
  uint64_t& size = sizes_[static_cast<size_t>(area)];
  const AreaOffset place{area, size};
  size += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  return place;
}

uint64_t BatchPlan::begin(Area area) const noexcept {
  uint64_t begin = 0;
  for (size_t a = 0; a < static_cast<size_t>(area); ++a) begin += sizes_[a];
  return begin;
}

void BatchPlan::copy_in(uint8_t* memory) const noexcept {
  for (const Copy& piece : in_) std::memcpy(memory + at(piece.place), piece.host, piece.bytes);
}

void BatchPlan::copy_out(const uint8_t* memory) const noexcept {
  for (const Copy& piece : out_) std::memcpy(piece.host, memory + at(piece.place), piece.bytes);
}

void BatchPlan::copy_own() const noexcept {
  for (const Own& own : own_) std::memmove(own.to, own.from, own.bytes);
}

}  // namespace laconic::engines::nccl

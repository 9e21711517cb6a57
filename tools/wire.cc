// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "wire.h"

#include <algorithm>
#include <map>
#include <utility>

namespace laconic::tools {
namespace {

constexpr uint32_t kFirstTag = 1U << 27U, kTags = 1U << 22U;  // a session counts from 0

uint64_t end_of(std::span<const uint64_t> counts, std::span<const uint64_t> offsets) {
  uint64_t end = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) end = std::max(end, offsets[i] + counts[i]);
  return end;
}

std::vector<uint64_t> copy(std::span<const uint64_t> of) { return {of.begin(), of.end()}; }

}  // namespace

RecordedEngine::Sizes::Sizes(const Step& of)
    : step(of),
      send_counts(copy(of.send_counts)),
      send_offsets(copy(of.send_offsets)),
      recv_counts(copy(of.recv_counts)),
      recv_offsets(copy(of.recv_offsets)),
      messages(of.messages.begin(), of.messages.end()) {
  step.send_counts = send_counts;
  step.send_offsets = send_offsets;
  step.recv_counts = recv_counts;
  step.recv_offsets = recv_offsets;
  step.messages = messages;
}

void RecordedEngine::Sizes::allocate() {
  if (step.kind == StepKind::all_reduce) {
    send.resize(step.count * dtype_size(step.dtype));
    step.send = step.recv = send.data();
    return;
  }
  uint64_t sends = end_of(send_counts, send_offsets), recvs = end_of(recv_counts, recv_offsets);
  for (const Message& m : messages) {
    sends = std::max(sends, m.send_bytes);
    recvs += m.recv_room;
  }
  send.resize(sends);
  recv.resize(recvs);
  step.send = send.data();
  step.recv = recv.data();
  uint8_t* to = recv.data();
  for (Message& m : messages) {
    m.send = send.data();
    m.recv = std::exchange(to, to + m.recv_room);
  }
}

Result<Ticket> RecordedEngine::start(std::span<const Step> batch) {
  auto ticket = engine_.start(batch);
  if (!ticket) return ticket;
  Event event{{}, ticket->number};
  for (const Step& step : batch) event.steps.push_back(std::make_unique<Sizes>(step));
  events_.push_back(std::move(event));
  return ticket;
}

Result<void> RecordedEngine::wait(Ticket ticket, Deadline deadline) {
  events_.push_back({{}, ticket.number});
  return engine_.wait(ticket, deadline);
}

uint64_t RecordedEngine::sent_bytes() const {
  const uint64_t others = world() - 1;
  uint64_t sent = 0;
  for (const Event& event : events_) {
    for (const auto& each : event.steps) {
      const Step& step = each->step;
      if (step.kind == StepKind::all_reduce)
        sent += 2 * step.count * dtype_size(step.dtype) * others / world();
      for (uint32_t r = 0; r < each->send_counts.size(); ++r)
        sent += r == rank() ? 0 : each->send_counts[r];
      for (const Message& m : each->messages) sent += m.send_bytes;
    }
  }
  return sent;
}

void RecordedEngine::prepare() {
  replayed_ = std::exchange(events_, {});
  for (Event& event : replayed_)
    for (auto& step : event.steps) step->allocate();
}

Result<void> RecordedEngine::replay(std::chrono::milliseconds timeout) {
  std::map<uint64_t, Ticket> tickets;
  std::vector<Step> batch;
  for (const Event& event : replayed_) {
    if (event.steps.empty()) {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      if (auto done = engine_.wait(tickets.at(event.batch), deadline); !done) return done;
      continue;
    }
    batch.clear();
    for (const auto& each : event.steps) {
      batch.push_back(each->step);
      batch.back().tag = kFirstTag + tag_++ % kTags;
    }
    const auto ticket = engine_.start(batch);
    if (!ticket) return ticket.error();
    tickets[event.batch] = *ticket;
  }
  return {};
}

}  // namespace laconic::tools

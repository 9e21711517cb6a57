// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/node_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "session/without_throwing.h"

namespace laconic::session {

NodeLink::NodeLink(Engine& engine, std::chrono::milliseconds timeout, uint64_t most)
    : engine_(&engine),
      timeout_(timeout),
      rank_(engine.rank()),
      own_(most),
      all_(most * engine.world()),
      counts_(engine.world()),
      zeros_(engine.world()),
      offsets_(engine.world()) {}

Result<void> NodeLink::run(Step& step) {
  if (broken_) return copy_of(*broken_);
  step.tag = calls_++ & ((1U << 28) - 1);
  auto done = execute(*engine_, {&step, 1}, timeout_);
  if (!done) broken_ = copy_of(done.error());
  return done;
}

Result<Bytes> NodeLink::gather(Bytes own) {
  std::ranges::copy(own, own_.begin());
  for (uint32_t r = 0; r < ranks(); ++r) {
    counts_[r] = own.size();
    offsets_[r] = r * own.size();
  }
  Step step{.kind = StepKind::all_gather,
            .send = own_.data(),
            .recv = all_.data(),
            .send_counts = counts_,
            .send_offsets = zeros_,
            .recv_counts = counts_,
            .recv_offsets = offsets_};
  if (auto done = run(step); !done) return std::move(done).error();
  return Bytes(all_).first(ranks() * own.size());
}

Result<void> NodeLink::exchange(uint8_t* send, const Blocks& sent, uint8_t* recv,
                                const Blocks& received) {
  Step step{.kind = StepKind::all_to_all,
            .send = send,
            .recv = recv,
            .send_counts = sent.bytes,
            .send_offsets = sent.offsets,
            .recv_counts = received.bytes,
            .recv_offsets = received.offsets};
  return run(step);
}

Result<void> NodeLink::compare(const AgreementCard& own) {
  const auto cards = gather(own);
  if (!cards) return cards.error();
  return without_throwing([&]() -> Result<void> {
    if (auto failure = first_failure(*cards)) return std::move(failure->why);
    return check_node(*cards);
  });
}

Result<void> NodeLink::share(const Result<void>& own) {
  const auto cards = gather(own ? AgreementCard{} : failure_card(own.error()));
  return cards ? failure_of_node(*cards) : Result<void>(cards.error());
}

Result<void> failure_of_node(Bytes notes, uint64_t stride) {
  return without_throwing([&]() -> Result<void> {
    auto failure = first_failure(notes, stride);
    if (!failure) return {};
    Error& why = failure->why;
    if (failure->everybody) return std::move(why);
    const std::string who = std::to_string(failure->rank);
    return Error{why.code, concat({"local rank ", who, ": ", why.message}), std::move(why.hint)};
  });
}

Result<bool> NodeLink::any(bool here) {
  const uint8_t own = here ? 1 : 0;
  const auto all = gather({&own, 1});
  if (!all) return all.error();
  return std::ranges::any_of(*all, [](uint8_t is) { return is != 0; });
}

}  // namespace laconic::session

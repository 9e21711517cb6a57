// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/node_link.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/concat.h"
#include "session/without_throwing.h"

namespace laconic::session {

NodeLink::NodeLink(Engine& engine, std::chrono::milliseconds timeout, uint64_t most,
                   std::span<const uint32_t> names)
    : engine_(&engine),
      timeout_(timeout),
      rank_(engine.rank()),
      cards_(engine.world(), most),
      names_(names.begin(), names.end()) {}

Result<void> NodeLink::run(Step& step) {
  if (broken_) return copy_of(*broken_);
  step.tag = calls_++ & ((1U << 28) - 1);
  auto done = execute(*engine_, {&step, 1}, timeout_);
  if (!done) broken_ = copy_of(done.error());
  return done;
}

Result<Bytes> NodeLink::gather(Bytes own) {
  Step step = cards_.gathering(own);
  if (auto done = run(step); !done) return std::move(done).error();
  return cards_.all();
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

AgreementCard NodeLink::compare(const AgreementCard& own) {
  const auto cards = gather(own);
  if (!cards) return failure_card(cards.error());
  uint32_t who = 0;
  const auto same = without_throwing([&]() -> Result<void> {
    auto failure = first_failure(*cards);
    if (!failure) return check_node(*cards, names_);
    who = failure->rank;
    return std::move(failure->why);
  });
  if (same) return own;
  if (who >= names_.size()) return failure_card(same.error());
  return failure_card(same.error(), names_[who]);
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

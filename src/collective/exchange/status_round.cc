// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/status_round.h"

namespace laconic::collective {

bool StatusRound::reserve() {
  const uint32_t world = state_->world();
  counts_.assign(world, kMinCapacity);
  send_offsets_.assign(world, 0);
  recv_offsets_.resize(world);
  for (uint32_t r = 0; r < world; ++r) recv_offsets_[r] = r * kMinCapacity;
  return send_.reserve(kMinCapacity) && recv_.reserve(world * kMinCapacity);
}

void StatusRound::emit(const Input& input, const Error* failure, Step& step) {
  const BundleId own = id(input, state_->rank());
  if (failure != nullptr) {
    write_failure_bundle(own, own_failure(*state_, input, *failure), send_.bytes());
  } else {
    BundleWriter(send_.bytes(), {}).finish(own, kMinCapacity);
  }
  step = {.kind = StepKind::all_gather,
          .send = send_.bytes().data(),
          .recv = recv_.bytes().data(),
          .send_counts = counts_,
          .send_offsets = send_offsets_,
          .recv_counts = counts_,
          .recv_offsets = recv_offsets_};
}

Result<void> StatusRound::receive(const Input& input) {
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const Bytes bytes = Bytes(recv_.bytes()).subspan(recv_offsets_[r], kMinCapacity);
    auto view = parse_bundle(bytes, {id(input, r), {}, {}});
    // A rank that has failed may not even know the bucket's layout: it listens for failures alone,
    // its own among them.
    if (!view && input.failure != nullptr) continue;
    if (!view) return std::move(view).error();
    if (view->failed) return to_error(view->failure);
  }
  return {};
}

}  // namespace laconic::collective

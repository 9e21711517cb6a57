// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/status_round.h"

namespace laconic::collective {

bool StatusRound::reserve() {
  const uint32_t world = state_->world();
  send_counts_.assign(world, kMinCapacity);
  recv_counts_.assign(world, kMinCapacity);
  send_offsets_.assign(world, 0);
  recv_offsets_.resize(world);
  for (uint32_t r = 0; r < world; ++r) recv_offsets_[r] = r * kMinCapacity;
  return send_.reserve(kMinCapacity) && recv_.reserve(world * kMinCapacity);
}

BundleId StatusRound::id(const Input& input, uint32_t rank) const {
  return {BundleKind::contribution,
          0,
          static_cast<uint16_t>(rank),
          static_cast<uint16_t>(state_->world()),
          input.step,
          input.sequence,
          state_->model().agreement()};
}

void StatusRound::emit(const Input& input, transport::Step& step, Counters& counters) {
  const BundleId own = id(input, state_->rank());
  if (input.failure != nullptr) {
    const BundleFailure failure{input.failure->code, state_->rank(), input.bucket,
                                BundleFailure::kNoParameter, input.failure->message};
    write_failure_bundle(own, failure, send_.bytes());
  } else {
    BundleWriter writer(send_.bytes(), {});
    writer.finish(own, kMinCapacity);
  }
  step = {transport::StepKind::all_gather,
          DType::u8,
          true,
          0,
          send_.bytes().data(),
          recv_.bytes().data(),
          send_counts_,
          send_offsets_,
          recv_counts_,
          recv_offsets_};
  counters.wire_bytes += (state_->world() - 1) * kMinCapacity;
  ++counters.rounds;
}

Result<void> StatusRound::receive(const Input& input) {
  for (uint32_t r = 0; r < state_->world(); ++r) {
    const Bytes bytes = recv_.bytes().subspan(recv_offsets_[r], kMinCapacity);
    auto view = parse_bundle(bytes, {id(input, r), {}, {}});
    if (!view) return std::move(view).error();
    if (view->failed) return to_error(view->failure);
  }
  return {};
}

}  // namespace laconic::collective

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/agreement.h"

#include <algorithm>

namespace laconic::session {

Cards::Cards(uint32_t world, uint64_t most)
    : own_(most), all_(most * world), counts_(world), zeros_(world), offsets_(world) {}

Step Cards::gathering(Bytes own) noexcept {
  std::ranges::copy(own, own_.begin());
  for (uint32_t r = 0; r < world(); ++r) {
    counts_[r] = own.size();
    offsets_[r] = r * own.size();
  }
  return {.kind = StepKind::all_gather,
          .send = own_.data(),
          .recv = all_.data(),
          .send_counts = counts_,
          .send_offsets = zeros_,
          .recv_counts = counts_,
          .recv_offsets = offsets_};
}

Result<void> Cards::gather(Bytes own, Engine& engine, std::chrono::milliseconds timeout) {
  const Step step = gathering(own);
  return execute(engine, {&step, 1}, timeout);
}

Result<void> execute(Engine& engine, std::span<const Step> batch,
                     std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto ticket = engine.start(batch);
  if (!ticket) return std::move(ticket).error();
  return engine.wait(*ticket, deadline);
}

}  // namespace laconic::session

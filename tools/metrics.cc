// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "metrics.h"

namespace laconic::tools {

std::string_view state_name(aggregation::JobState state) noexcept {
  constexpr std::string_view kNames[] = {"gathering", "running", "failed", "ended"};
  return kNames[static_cast<std::size_t>(state)];
}

Figures figures_of(const aggregation::Server& server) {
  Figures figures;
  figures.server = server.stats();
  figures.memory = server.memory_used();
  for (const auto& job : server.jobs()) {
    const aggregation::Slots& slots = job->slots();
    JobFigures f{job->number(), job->state(), job->stats(), slots.open(), slots.ring().kept(), {}};
    for (uint32_t w = 0; w < job->settings().world; ++w) {
      // A program in the kernel may have got further than the process has seen.
      const uint64_t front = slots.ring().front(), ack = slots.ring().ack(w);
      f.workers.push_back({front > ack ? front - ack : 0,
                           1e-9 * static_cast<double>(job->members()[w].round_trip)});
    }
    figures.jobs.push_back(std::move(f));
  }
  return figures;
}

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/engine/aggregator.h"

#include <optional>
#include <random>
#include <utility>

#include "engines/aggregator/membership.h"

namespace laconic {
namespace {

using aggregation::LinkStats;
using aggregation::Membership;

constexpr std::chrono::seconds kLinger{5};

uint64_t random_word() {
  std::random_device device;
  return uint64_t{device()} << 32U | device();
}

}  // namespace

struct AggregatorEngine::Impl {
  Impl(Engine& around, Membership&& member) : inner(&around), membership(std::move(member)) {}

  /// Rank 0's, so that it is one job.
  Result<uint64_t> agree_on_number(std::chrono::milliseconds timeout);

  Engine* inner;
  Membership membership;
  std::vector<Step> others;
  std::vector<uint64_t> numbers;  // of agree_on_number: an engine may outlive its wait
  std::vector<uint64_t> eights, zeros, offsets;
};

Result<uint64_t> AggregatorEngine::Impl::agree_on_number(std::chrono::milliseconds timeout) {
  const uint32_t world = inner->world();
  numbers.assign(world + 1, random_word());
  eights.assign(world, sizeof(uint64_t));
  zeros.assign(world, 0);
  offsets.resize(world);
  for (uint32_t r = 0; r < world; ++r) offsets[r] = r * sizeof(uint64_t);
  const Step step{.kind = StepKind::all_gather,
                  .send = reinterpret_cast<uint8_t*>(numbers.data() + world),
                  .recv = reinterpret_cast<uint8_t*>(numbers.data()),
                  .send_counts = eights,
                  .send_offsets = zeros,
                  .recv_counts = eights,
                  .recv_offsets = offsets};
  const auto ticket = inner->start({&step, 1});
  if (!ticket) return ticket.error();
  auto done = inner->wait(*ticket, std::chrono::steady_clock::now() + timeout);
  if (!done) return std::move(done).error();
  return numbers[0];
}

Result<std::unique_ptr<AggregatorEngine>> AggregatorEngine::create(
    Engine& inner, const AggregatorOptions& options) {
  auto membership = Membership::create(options, inner.world());
  if (!membership) return std::move(membership).error();
  return std::unique_ptr<AggregatorEngine>(
      new AggregatorEngine(std::make_unique<Impl>(inner, *std::move(membership))));
}

AggregatorEngine::AggregatorEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AggregatorEngine::~AggregatorEngine() {
  stop();
  impl_->membership.close(kLinger);
}

uint32_t AggregatorEngine::rank() const noexcept { return impl_->inner->rank(); }
uint32_t AggregatorEngine::world() const noexcept { return impl_->inner->world(); }

EngineCaps AggregatorEngine::caps() const noexcept {
  EngineCaps caps = impl_->inner->caps();
  caps.aggregates = true;
  return caps;
}

Result<void> AggregatorEngine::join(const AggregationJob& job, std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  const auto number = impl_->agree_on_number(timeout);
  if (!number) return number.error();
  return impl_->membership.join(job, rank(), *number, deadline);
}

Result<void> AggregatorEngine::run(std::span<const Step> batch) {
  std::vector<Step>& others = impl_->others;
  others.clear();
  for (const Step& step : batch) {
    if (step.kind != StepKind::aggregate) others.push_back(step);
  }
  std::optional<Ticket> ticket;
  if (!others.empty() || batch.empty()) {
    auto started = impl_->inner->start(others);
    if (!started) return std::move(started).error();
    ticket = *started;
  }
  Result<void> done;
  for (const Step& step : batch) {
    if (step.kind == StepKind::aggregate && done) done = impl_->membership.run(step);
  }
  if (!ticket) return done;
  auto waited = impl_->inner->wait(*ticket, Deadline::max());
  return done ? std::move(waited) : std::move(done);
}

AggregatorEngine::Stats AggregatorEngine::stats() const noexcept {
  const LinkStats s = impl_->membership.stats();
  return {s.resent_datagrams, s.duplicate_datagrams, s.aggregator_restarts,
          s.rtt_us,           s.multicast_datagrams, s.multicast_servers};
}

}  // namespace laconic

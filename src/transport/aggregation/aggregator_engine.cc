// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cmath>
#include <random>
#include <utility>

#include "laconic/engine/aggregator.h"
#include "transport/aggregation/token_file.h"
#include "transport/aggregation/udp.h"

namespace laconic {
namespace {

namespace agg = transport::aggregation;
using agg::UdpWorker;

constexpr std::chrono::seconds kLinger{5};
constexpr std::chrono::milliseconds kNoTime{0}, kLongest = std::chrono::hours(1);
// Granules that may be under way, or wait for an acknowledgement: under a quorum the others run
// ahead of who is late.
constexpr uint16_t kRing = 1024, kRingOfQuorum = 4096;

uint64_t random_word() {
  std::random_device device;
  return uint64_t{device()} << 32U | device();
}

}  // namespace

uint32_t aggregator_quorum(double quorum, uint32_t world) noexcept {
  // The product may be a little more than the whole number that is meant.
  const double needed = std::ceil(quorum * world - 1e-9);
  return static_cast<uint32_t>(std::clamp(needed, 1.0, static_cast<double>(world)));
}

struct AggregatorEngine::Impl {
  Impl(Engine& around, AggregatorOptions given) : inner(&around), options(std::move(given)) {}

  /// Rank 0's, so that it is one job.
  Result<uint64_t> agree_on_number(std::chrono::milliseconds timeout);

  Engine* inner;
  AggregatorOptions options;
  wire::Token token{};
  std::unique_ptr<UdpWorker> worker;
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
  if (options.servers.empty())
    return Error{Errc::invalid_argument, "no aggregation server was named", "HOST:PORT"};
  if (!(options.quorum >= 0 && options.quorum <= 1)) {
    return Error{Errc::invalid_argument,
                 "quorum: expected 0 to 1, found " + std::to_string(options.quorum),
                 {}};
  }
  if (inner.world() > kMaxAggregated) {
    return Error{
        Errc::unsupported,
        "aggregation servers take at most 64 ranks, there are " + std::to_string(inner.world()),
        "strategy native_sum adds over the group"};
  }
  if (options.deadline < kNoTime || options.deadline > kLongest || options.timeout <= kNoTime ||
      options.timeout > kLongest) {
    return Error{Errc::invalid_argument, "deadline and timeout: expected up to an hour", {}};
  }
  auto impl = std::make_unique<Impl>(inner, options);
  if (!options.token.empty()) {
    const auto token = agg::read_token(options.token);
    if (!token) return token.error();
    impl->token = *token;
  }
  return std::unique_ptr<AggregatorEngine>(new AggregatorEngine(std::move(impl)));
}

AggregatorEngine::AggregatorEngine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

AggregatorEngine::~AggregatorEngine() {
  stop();
  if (impl_->worker != nullptr) impl_->worker->close(UdpWorker::Clock::now() + kLinger);
}

uint32_t AggregatorEngine::rank() const noexcept { return impl_->inner->rank(); }
uint32_t AggregatorEngine::world() const noexcept { return impl_->inner->world(); }

EngineCaps AggregatorEngine::caps() const noexcept {
  EngineCaps caps = impl_->inner->caps();
  caps.aggregates = true;
  return caps;
}

Result<void> AggregatorEngine::join(const AggregationJob& job, std::chrono::milliseconds timeout) {
  const auto deadline = UdpWorker::Clock::now() + timeout;
  const auto number = impl_->agree_on_number(timeout);
  if (!number) return number.error();
  agg::UdpSettings settings;
  settings.servers = impl_->options.servers;
  settings.link.token = impl_->token;
  settings.link.number = *number;
  settings.link.instance = random_word();
  settings.link.worker = static_cast<uint8_t>(rank());
  wire::JobSettings& j = settings.link.job;
  j.world = static_cast<uint8_t>(world());
  j.needed = static_cast<uint8_t>(aggregator_quorum(impl_->options.quorum, world()));
  j.code_bits = static_cast<uint8_t>(job.code_bits);
  j.lane_bits = static_cast<uint8_t>(job.lane_bits);
  j.table_size = static_cast<uint8_t>(job.table.size());
  j.ring = j.needed == j.world ? kRing : kRingOfQuorum;
  j.values = static_cast<uint16_t>(job.values);
  j.lanes = job.lanes;
  j.deadline_us = static_cast<uint32_t>(impl_->options.deadline.count() * 1000);
  j.timeout_ms = static_cast<uint32_t>(impl_->options.timeout.count());
  j.full_tags = impl_->options.auth == AggregatorAuth::full;
  j.spec = job.agreement;
  std::copy(job.table.begin(), job.table.end(), j.table.begin());
  auto worker = UdpWorker::attach(settings, deadline);
  if (!worker) return std::move(worker).error();
  impl_->worker = *std::move(worker);
  return {};
}

Result<void> AggregatorEngine::run(std::span<const Step> batch) {
  std::vector<Step>& others = impl_->others;
  others.clear();
  for (const Step& step : batch) {
    if (step.kind != StepKind::aggregate) others.push_back(step);
  }
  auto ticket = impl_->inner->start(others);
  if (!ticket) return std::move(ticket).error();
  Result<void> done;
  for (const Step& step : batch) {
    if (step.kind != StepKind::aggregate || !done) continue;
    if (impl_->worker == nullptr) {
      done = Error{Errc::exchange_order, "an aggregate step before join()", {}};
    } else {
      done = impl_->worker->run(step.contributions, step.aggregates,
                                UdpWorker::Clock::now() + impl_->options.timeout);
    }
  }
  auto waited = impl_->inner->wait(*ticket, Deadline::max());
  return done ? std::move(waited) : std::move(done);
}

AggregatorEngine::Stats AggregatorEngine::stats() const noexcept {
  if (impl_->worker == nullptr) return {};
  const agg::LinkStats s = impl_->worker->stats();
  return {s.resent_datagrams, s.duplicate_datagrams, s.aggregator_restarts, s.rtt_us};
}

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "engines/aggregator/membership.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <utility>

#include "aggregation/link/token_file.h"

namespace laconic {

uint32_t aggregator_quorum(double quorum, uint32_t world) noexcept {
  // The product may be a little more than the whole number that is meant.
  const double needed = std::ceil(quorum * world - 1e-9);
  return static_cast<uint32_t>(std::clamp(needed, 1.0, static_cast<double>(world)));
}

namespace aggregation {
namespace {

constexpr std::chrono::microseconds kNoTime{0}, kLongest = std::chrono::hours(1);
// Granules that may be under way, or wait for an acknowledgement: under a quorum the others run
// ahead of who is late.
constexpr uint16_t kRing = 1024, kRingOfQuorum = 4096;

constexpr int kBackstop = 4;
constexpr int kKeptFor = 1;  // timeouts after the last call

uint64_t random_word() {
  std::random_device device;
  return uint64_t{device()} << 32U | device();
}

Result<void> check(const AggregatorOptions& options, uint32_t world) {
  if (options.servers.empty())
    return Error{Errc::invalid_argument, "no aggregation server was given", "HOST:PORT"};
  if (!(options.quorum >= 0 && options.quorum <= 1)) {
    return Error{Errc::invalid_argument,
                 "quorum: expected 0 to 1, found " + std::to_string(options.quorum),
                 {}};
  }
  if (world > kMaxAggregated) {
    return Error{Errc::unsupported,
                 "aggregation servers accept at most 64 ranks, there are " + std::to_string(world),
                 "use strategy native_sum without servers"};
  }
  if (options.deadline < kNoTime || options.deadline > kLongest || options.timeout <= kNoTime ||
      options.timeout > kLongest) {
    return Error{Errc::invalid_argument, "deadline and timeout: expected at most one hour", {}};
  }
  return {};
}

}  // namespace

Result<Membership> Membership::create(const AggregatorOptions& options, uint32_t world) {
  if (auto ok = check(options, world); !ok) return std::move(ok).error();
  Membership membership(options);
  membership.world_ = world;
  if (!options.token.empty()) {
    const auto token = read_token(options.token);
    if (!token) return token.error();
    membership.token_ = *token;
  }
  return membership;
}

Result<void> Membership::join(const AggregationJob& job, uint32_t rank, uint64_t number,
                              UdpWorker::Clock::time_point deadline) {
  UdpSettings settings;
  settings.servers = options_.servers;
  settings.interrupted = interrupted_.get();
  settings.link.token = token_;
  settings.link.number = number;
  settings.link.instance = random_word();
  settings.link.worker = static_cast<uint8_t>(rank);
  settings.link.multicast = options_.multicast;
  aggregation::protocol::JobSettings& j = settings.link.job;
  j.world = static_cast<uint8_t>(world_);
  j.needed = static_cast<uint8_t>(aggregator_quorum(options_.quorum, world_));
  j.code_bits = static_cast<uint8_t>(job.code_bits);
  j.lane_bits = static_cast<uint8_t>(job.lane_bits);
  j.table_size = static_cast<uint8_t>(job.table.size());
  j.ring = j.needed == j.world ? kRing : kRingOfQuorum;
  j.values = static_cast<uint16_t>(job.values);
  j.lanes = job.lanes;
  j.deadline_us = static_cast<uint32_t>(options_.deadline.count());
  j.timeout_ms = static_cast<uint32_t>(options_.timeout.count());
  j.full_tags = options_.auth == AggregatorAuth::full;
  j.spec = job.agreement;
  std::copy(job.table.begin(), job.table.end(), j.table.begin());
  auto worker = UdpWorker::attach(settings, deadline);
  if (!worker) return std::move(worker).error();
  auto keeper = Keeper::create(*std::move(worker), kKeptFor * options_.timeout);
  if (!keeper) return std::move(keeper).error();
  keeper_ = *std::move(keeper);
  joined_ = true;
  return {};
}

LinkStats Membership::stats() const { return keeper_ ? keeper_->stats() : last_; }

Result<void> Membership::run(const Step& step) {
  if (keeper_ == nullptr) {
    const char* what =
        joined_ ? "the aggregation servers failed earlier" : "an aggregate step before join()";
    return Error{joined_ ? Errc::engine_failed : Errc::exchange_order, what, {}};
  }
  // The links' own timeout ends first, with a better message: this one is for failures that they
  // cannot detect.
  const auto last = UdpWorker::Clock::now() + kBackstop * options_.timeout;
  auto done =
      keeper_->use([&](UdpWorker& w) { return w.run(step.contributions, step.aggregates, last); });
  if (!done) {
    last_ = stats();
    keeper_.reset();
  }
  return done;
}

void Membership::close(std::chrono::milliseconds linger) {
  if (keeper_ == nullptr) return;
  last_ = keeper_->close(UdpWorker::Clock::now() + linger);
  keeper_.reset();
}

}  // namespace aggregation
}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Aggregation servers, for engines that do all else themselves.
#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_text.h"
#include "capi/handles.h"
#include "engines/aggregator/membership.h"
#include "engines/c_step.h"

struct laconic_aggregator {
  explicit laconic_aggregator(laconic::aggregation::Membership&& member)
      : membership(std::move(member)) {}
  laconic::aggregation::Membership membership;
  std::mutex lock;  // of what follows: stats are asked while a step runs
  laconic::aggregation::LinkStats stats{};
  bool usable = false;
};

namespace {

using laconic::AggregatorOptions;
using laconic::Errc;
using laconic::Result;
using laconic::aggregation::Membership;
using laconic::capi::bad_struct;
using laconic::capi::fail;
using laconic::capi::guarded;
using laconic::capi::guarded_value;
using laconic::capi::keep;
using laconic::capi::null_argument;
using laconic::capi::read_struct;
using std::chrono::milliseconds;
using Clock = std::chrono::steady_clock;

constexpr double kQuorum = 1.0;
constexpr uint32_t kDeadlineUs = 20'000, kTimeoutMs = 60'000;

/// Between commas.
std::vector<std::string> listed(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const size_t comma = std::min(text.find(','), text.size());
    parts.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
  }
  return parts;
}

AggregatorOptions to_options(const laconic_aggregator_options& theirs) {
  AggregatorOptions o;
  o.servers = listed(theirs.servers);
  if (theirs.token != nullptr) o.token = theirs.token;
  o.quorum = theirs.quorum == 0 ? kQuorum : theirs.quorum;
  o.deadline =
      std::chrono::microseconds(theirs.deadline_us == 0 ? kDeadlineUs : theirs.deadline_us);
  if (theirs.full_tags != 0) o.auth = laconic::AggregatorAuth::full;
  o.multicast = theirs.multicast != 0;
  o.timeout = milliseconds(theirs.timeout_ms == 0 ? kTimeoutMs : theirs.timeout_ms);
  return o;
}

/// Updates the stats after a call.
int32_t ended(laconic_aggregator& a, Result<void> done) {
  {
    const std::scoped_lock hold(a.lock);
    a.stats = a.membership.stats();
    a.usable = static_cast<bool>(done);
  }
  return done ? 0 : fail(std::move(done).error());
}

}  // namespace

extern "C" {

int32_t laconic_aggregator_open(const laconic_aggregator_options* options,
                                laconic_aggregator** out) {
  return guarded([&]() -> int32_t {
    if (out != nullptr) *out = nullptr;
    if (out == nullptr) return null_argument("out");
    laconic_aggregator_options o;
    if (const int32_t bad = read_struct(options, "options", &o); bad != 0) return bad;
    if (o.servers == nullptr) return null_argument("options.servers");
    if (o.full_tags > 1) return fail(Errc::invalid_argument, "full_tags must be 0 or 1");
    if (o.multicast > 1) return fail(Errc::invalid_argument, "multicast must be 0 or 1");
    auto membership = Membership::create(to_options(o), o.world);
    if (!membership) return fail(std::move(membership).error());
    *out = new laconic_aggregator(*std::move(membership));
    return 0;
  });
}

int32_t laconic_aggregator_join(laconic_aggregator* aggregator, const laconic_session* session,
                                uint64_t number, uint32_t timeout_ms) {
  return guarded([&]() -> int32_t {
    if (aggregator == nullptr || session == nullptr) return null_argument("aggregator and session");
    const auto& model = session->session->model();
    if (!model.uses(laconic::collective::StrategyKind::server_sum)) {
      return fail(Errc::unsupported,
                  "no codec of this session sends quantized values that an aggregator can add",
                  "use thc and set options.aggregates = 1");
    }
    if (aggregator->membership.joined())
      return fail(Errc::exchange_order, "the aggregator has already joined", "open another one");
    return ended(*aggregator,
                 aggregator->membership.join(model.aggregation_job(), model.options().rank, number,
                                             Clock::now() + milliseconds(timeout_ms)));
  });
}

int32_t laconic_aggregator_run(laconic_aggregator* aggregator, const laconic_step* step,
                               uint32_t step_size) {
  return guarded([&]() -> int32_t {
    if (aggregator == nullptr || step == nullptr) return null_argument("aggregator and step");
    if (step_size < sizeof(laconic_step)) return bad_struct("step", step_size, sizeof *step);
    if (step->kind != LACONIC_AGGREGATE)
      return fail(Errc::invalid_argument, "this step is not for an aggregator",
                  "LACONIC_AGGREGATE");
    if (step->granules != 0 && (step->contributions == nullptr || step->aggregates == nullptr))
      return null_argument("the contributions and aggregates of a step");
    return ended(*aggregator, aggregator->membership.run(laconic::engines::from_c(*step)));
  });
}

void laconic_aggregator_interrupt(laconic_aggregator* aggregator) {
  if (aggregator != nullptr) aggregator->membership.interrupt();
}

const char* laconic_aggregator_stats(laconic_aggregator* aggregator) {
  return guarded_value<const char*>("", [&](const char*& out) -> int32_t {
    if (aggregator == nullptr) return null_argument("aggregator");
    laconic::JsonText json;
    {
      const std::scoped_lock hold(aggregator->lock);
      const auto& s = aggregator->stats;
      json.open('{')
          .field("joined", uint64_t{aggregator->usable})
          .field("resent_datagrams", s.resent_datagrams)
          .field("duplicate_datagrams", s.duplicate_datagrams)
          .field("aggregator_restarts", s.aggregator_restarts)
          .field("rtt_us", s.rtt_us)
          .field("multicast_datagrams", s.multicast_datagrams)
          .field("multicast_servers", s.multicast_servers)
          .close('}');
    }
    out = keep(json.take());
    return 0;
  });
}

void laconic_aggregator_close(laconic_aggregator* aggregator, uint32_t linger_ms) {
  if (aggregator == nullptr) return;
  (void)guarded([&]() -> int32_t {
    aggregator->membership.close(milliseconds(linger_ms));
    return 0;
  });
  delete aggregator;
}

}  // extern "C"

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <new>
#include <utility>

#include "collective/exchange/strategy_parts.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

Result<void> check_buffer(const collective::Bucket& bucket, const collective::LayoutView& layout) {
  if (bucket.buffer == nullptr && layout.elements != 0)
    return Error{Errc::invalid_argument, "bucket: expected a buffer, found null",
                 "the buffer may be null only for an empty bucket"};
  if (bucket.dtype == DType::u8)
    return Error{Errc::dtype_unsupported, "bucket: expected f32, f16 or bf16, found u8",
                 "convert the gradients first"};
  return {};
}

Error engine_failed_before() {
  Error why{Errc::engine_failed, {}, {}};
  try {
    why.message = "the engine failed in an earlier exchange";
    why.hint = "restart from the last checkpoint";
  } catch (const std::bad_alloc&) {  // the code alone has to do
  }
  return why;
}

}  // namespace

Session::Session(std::unique_ptr<Active> active)
    : active_(std::move(active)),
      in_flight_(model().options().window, model().parameters().size()) {}

Result<std::unique_ptr<Session>> Session::create(
    std::string_view spec, std::vector<collective::Parameter> parameters,
    const collective::Options& options, std::span<const Rule> rules, std::string_view control,
    std::string_view record, std::string_view down, std::shared_ptr<const device::Staging> gpu) {
  Asked asked{{rules.begin(), rules.end()},
              std::string(control),
              !record.empty(),
              std::string(down),
              std::move(gpu)};
  auto active = Active::create(spec, std::move(asked), std::move(parameters), options);
  if (!active) return std::move(active).error();
  std::unique_ptr<Session> session(new Session(*std::move(active)));
  session->reports_ = options.reports;
  if (record.empty() || options.rank != 0 || options.node_shard != 0) return session;
  auto recorder = Recorder::open(std::string(record), session->active_->steering->run());
  if (!recorder) return std::move(recorder).error();
  session->recorder_ = *std::move(recorder);
  return session;
}

Result<void> Session::flush(uint32_t steps) {
  if (steps == 0 || steps > kMaxFlushSteps) {
    return Error{Errc::value_out_of_range,
                 "flush: expected 1 to " + std::to_string(kMaxFlushSteps) + " steps, found " +
                     std::to_string(steps),
                 "10 sends residuals in ten equal parts, 1 sends them at once"};
  }
  const std::lock_guard lock(mutex_);
  active_->flush.request(steps);
  return {};
}

Result<void> Session::enter_step(uint64_t step) {
  if (step == step_.number) return {};
  auto begun = active_->begin_step(step, recorder_.get());
  step_ = {step, model().options().reports, {}};
  active_->heard.reports.clear();
  ++stats_.steps;
  observer_.begin_step(step, now(),
                       static_cast<uint16_t>(model().agreement() ^ active_->state->settings()));
  return begun;
}

Result<uint32_t> Session::begin_step(uint64_t step) {
  const std::lock_guard lock(mutex_);
  return without_throwing([&]() -> Result<uint32_t> {
    if (broken_) return *broken_;
    const bool first = step_.number == ~uint64_t{0};
    if (in_flight_.count() + in_flight_.parked() != 0 && step != step_.number) {
      return Error{Errc::exchange_order,
                   "exchanges of step " + std::to_string(step_.number) + " are running",
                   "complete a step's exchanges before the next step begins"};
    }
    if (!first && step < step_.number) {
      return Error{Errc::exchange_order,
                   "step " + std::to_string(step) + " is before step " +
                       std::to_string(step_.number) + ", which has already begun",
                   "step numbers must increase"};
    }
    if (auto entered = enter_step(step); !entered) step_.failure = std::move(entered).error();
    if (step_.failure) return *step_.failure;
    return active_->version();
  });
}

Result<collective::Exchange*> Session::begin(const collective::Bucket& bucket,
                                             const collective::LayoutView& layout) {
  const std::lock_guard lock(mutex_);
  auto fits = without_throwing([&] {
    auto ok = in_flight_.check(step_.number, bucket, layout);
    return ok ? check_buffer(bucket, layout) : ok;
  });
  if (!fits) return std::move(fits).error();
  auto entered = enter_step(bucket.step);
  if (entered && step_.failure) entered = *std::exchange(step_.failure, std::nullopt);
  if (broken_) {
    active_->keep(bucket, layout);
    ++stats_.failures;
    return without_throwing([&]() -> Result<collective::Exchange*> { return *broken_; });
  }
  if (entered && failed_here_) entered = *failed_here_;
  auto found = active_->exchange_for(layout, bucket.dtype);
  if (found && entered) return run(**found, bucket, layout.elements, {});
  active_->keep(bucket, layout);
  if (found) return run(**found, bucket, layout.elements, std::move(entered).error());
  collective::Exchange& exchange = active_->messenger(found.error(), bucket, layout, in_flight_);
  return run(exchange, bucket, layout.elements, std::move(found).error());
}

Result<collective::Exchange*> Session::begin_failed(uint64_t step, uint32_t index,
                                                    const collective::LayoutView& layout,
                                                    Error why) {
  const std::lock_guard lock(mutex_);
  const collective::Bucket nothing{.step = step, .index = index};
  if (auto ok = in_flight_.check(step_.number, nothing, layout); !ok) return std::move(ok).error();
  const auto entered = enter_step(step);  // it has failed already
  if (broken_) {
    ++stats_.failures;
    return without_throwing([&]() -> Result<collective::Exchange*> { return *broken_; });
  }
  auto found = active_->exchange_for(layout, nothing.dtype);
  return run(found ? **found : active_->messenger(found.error(), nothing, layout, in_flight_),
             nothing, layout.elements, std::move(why));
}

collective::Exchange* Session::run(collective::Exchange& exchange, const collective::Bucket& bucket,
                                   uint64_t elements, std::optional<Error> local_failure) {
  // With a failure it may be an exchange of another layout.
  const bool samples = !local_failure && bucket.buffer != nullptr && !bucket.raw;
  if (samples && model().options().reports) {
    const auto sums =
        active_->norms.of(*active_->state, exchange.layout(), bucket.buffer, bucket.dtype);
    if (sums.elements != 0) observer_.norms(sums.residual, sums.gradient);
  }
  const bool reports = std::exchange(step_.report_due, false);
  const collective::FlushTurn turn = active_->flush.turn();
  exchange.prepare(bucket, sequence_++, turn, reports ? &observer_.report() : nullptr);
  if (local_failure) exchange.fail(*std::move(local_failure), false);
  const uint64_t world = model().options().world;
  const bool releases = active_->steering && active_->steering->releases();
  ++stats_.exchanges;
  if ((turn.parts != 0 || releases) && !bucket.raw) ++stats_.flushes;
  stats_.elements += elements;
  stats_.dense_bytes += 2 * (world - 1) * elements * sizeof(float) / world;
  if (reports) observer_.carried();
  in_flight_.add({&exchange, elements, reports});
  return &exchange;
}

void Session::fail(collective::Exchange& exchange, Error error) {
  const std::lock_guard lock(mutex_);
  exchange.fail(std::move(error));
}

double Session::now() const {
  if (const auto& clock = model().options().now) return clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Uses the reports of an exchange; none if it failed. In the first step of new settings reports
/// are about the settings before, and after an uncompressed step of a flush they are about that
/// step.
void Session::hear(const collective::HeardReports& heard) {
  auto& steering = active_->steering;
  const bool of_these = active_->succession.since != step_.number && !active_->flush.sent_before();
  if (steering && observer_.due() && of_these) {
    steering->heard(step_.number, heard.reports);
    active_->heard.step = step_.number;
    active_->heard.reports.assign(heard.reports.begin(), heard.reports.end());
  }
  observer_.heard(heard, model().options().world);
}

Result<uint32_t> Session::next(collective::Exchange& exchange, std::span<Step> batch,
                               const Timing& last) {
  const std::lock_guard lock(mutex_);
  InFlight::Running* const run = in_flight_.find(exchange);
  if (run == nullptr) return collective::exchange_has_ended();
  const bool encodes = run->first_next;
  if (!encodes) observer_.batch(last);
  const double start = now();
  auto steps = without_throwing([&]() -> Result<uint32_t> {
    auto next = exchange.next(batch);
    const uint32_t version = active_->version();
    if (next || next.error().code != Errc::ranks_disagree || version == 0) return next;
    Error told = std::move(next).error();
    told.message += ", in step " + std::to_string(step_.number) + " with this rank's settings " +
                    std::to_string(version);
    return told;
  });
  const double seconds = now() - start;
  (encodes ? stats_.encode_seconds : stats_.decode_seconds) += seconds;
  encodes ? observer_.encode(seconds) : observer_.decode(seconds);
  run->first_next = encodes && exchange.enrolling();
  if (!steps) {
    exchange.abort();  // it has done so itself, unless there was no memory to say why
    ++stats_.failures;
  }
  if (steps && *steps == 0 && exchange.parked()) {
    in_flight_.park(exchange);
    return steps;
  }
  if (!steps || *steps == 0) {
    if (run->reports) hear(steps ? exchange.heard().reports : collective::HeardReports{});
    in_flight_.remove(exchange);
    if (exchange.heard().fell_back) ++stats_.fallbacks;
    if (!steps && exchange.heard().only_here && !failed_here_) failed_here_ = steps.error();
  }
  if (steps && *steps == 0) active_->flush.heard(exchange.heard().flush);
  return steps;
}

Result<void> Session::resume(collective::Exchange& exchange, bool skips,
                             const BundleFailure* failure) {
  const std::lock_guard lock(mutex_);
  if (!exchange.parked() || !in_flight_.has_place(exchange.layout().elements))
    return collective::exchange_has_ended();
  exchange.resume(skips, failure);
  in_flight_.end_parked(exchange);
  in_flight_.add({&exchange, exchange.layout().elements, false});
  return {};
}

void Session::abort(std::optional<Error> why) {
  const std::lock_guard lock(mutex_);
  for (const auto& exchange : active_->exchanges) {
    if (!exchange->parked()) continue;
    exchange->abort();
    in_flight_.end_parked(*exchange);
    ++stats_.failures;
  }
  while (in_flight_.count() != 0) {
    const InFlight::Running run = in_flight_.all().front();
    run.exchange->abort();
    if (run.reports) hear({});
    in_flight_.remove(*run.exchange);
    ++stats_.failures;
  }
  if (recorder_) recorder_->end();
  if (!broken_) broken_ = why ? *std::move(why) : engine_failed_before();
}

uint32_t Session::in_flight() const {
  const std::lock_guard lock(mutex_);
  return in_flight_.count() + in_flight_.parked();
}

bool Session::has_place(uint64_t elements) const {
  const std::lock_guard lock(mutex_);
  return in_flight_.has_place(elements);
}

void Session::summed(const Timing& timing) {
  const std::lock_guard lock(mutex_);
  observer_.batch(timing);
}

void Session::count(const DriverCounts& more) {
  const std::lock_guard lock(mutex_);
  stats_.driver.parts += more.parts;
  stats_.driver.coalesced += more.coalesced;
  stats_.driver.window_wait_seconds += more.window_wait_seconds;
  stats_.driver.node_bytes += more.node_bytes;
  stats_.driver.node_seconds += more.node_seconds;
}

void Session::release(const collective::LayoutView& layout, DType dtype) {
  const std::lock_guard lock(mutex_);
  std::erase_if(active_->exchanges, [&](const auto& exchange) {
    return !in_flight_.has(*exchange) && !exchange->parked() && exchange->is_for(layout, dtype);
  });
}

Result<void> Session::scale_residuals(float factor) {
  const std::lock_guard lock(mutex_);
  return active_->store.scale_residuals(factor);
}

Stats Session::stats() const {
  const std::lock_guard lock(mutex_);
  const Active& active = *active_;
  Stats stats = stats_;
  stats.alone = active.model.alone();
  stats.counters = active.counters;
  stats.reports_missing = observer_.missing();
  stats.flush_steps_left = active.flush.steps_left();
  if (active.steering) {
    stats.setting_changes += active.steering->counts().changes;
    stats.held_steps += active.steering->counts().held_steps;
    stats.flush_steps_left =
        std::max<uint64_t>(stats.flush_steps_left, active.steering->release_steps_left());
  }
  stats.network_seconds = observer_.network_seconds();
  stats.straggler_seconds = observer_.straggler_seconds();
  stats.layouts = active.exchanges.size();
  stats.residual_bytes = active.store.residual_bytes();
  stats.residual_norm = active.store.residual_norm();
  return stats;
}

Memory memory_of(const Session& session) {
  const auto settings = session.hold();
  const Active& active = session.active();
  Memory memory{active.store.residual_bytes(), active.store.state_bytes(), 0};
  for (const auto& exchange : active.exchanges) memory.exchange_bytes += exchange->held_bytes();
  return memory;
}

Result<void> drive(Session& session, const collective::Bucket& bucket,
                   const collective::LayoutView& layout, Engine& engine) {
  auto exchange = session.begin(bucket, layout);
  if (!exchange) return std::move(exchange).error();
  std::array<Step, kMaxBatch> batch;
  Timing timing;
  for (;;) {
    auto steps = session.next(**exchange, batch, timing);
    if (!steps) return std::move(steps).error();
    if (*steps == 0) return {};
    timing.issued = session.now();
    if (auto ran = engine.run({batch.data(), *steps}); !ran) {
      session.abort(ran.error());
      return ran;
    }
    timing.completed = session.now();
  }
}

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/window.h"

#include <algorithm>
#include <utility>

#include "session/without_throwing.h"

namespace laconic::session {

Result<collective::Exchange*> Window::begin(const collective::Bucket& bucket,
                                            const collective::LayoutView& layout,
                                            const Error* trouble) {
  if (trouble == nullptr) return session_->begin(bucket, layout);
  if (bucket.buffer == nullptr)
    return session_->begin_failed(bucket.step, bucket.index, layout, copy_of(*trouble));
  auto begun = session_->begin(bucket, layout);
  if (begun) session_->fail(**begun, copy_of(*trouble));
  return begun;
}

Result<void> Window::submit(const collective::Bucket& bucket, const collective::LayoutView& layout,
                            uint32_t number, const Error* trouble) {
  const double since = session_->now();
  Flight flight{nullptr, {}, {}, bucket.step, bucket.index, number};
  auto begun = begin(bucket, layout, trouble);
  if (!begun) {
    tell(flight, &begun.error());
    return std::move(begun).error();
  }
  flight.exchange = *begun;
  auto more = start(flight, Phase::encode, since);
  if (!more) return fail(&flight, more.error());
  if (*more) flights_[count_++] = flight;
  return make_place();
}

Result<void> Window::make_place() {
  const double since = session_->now();
  const bool waits = full() && session_->model().options().window > 1;
  while (full()) {
    if (auto ended = end_first(); !ended) return ended;
  }
  if (waits) session_->count({.window_wait_seconds = session_->now() - since});
  return {};
}

/// The exchange's next batch is on its way; false: it has ended, with an Error that was noted. Its
/// own Error is the engine's.
Result<bool> Window::start(Flight& flight, Phase phase, double since) {
  std::array<Step, kMaxBatch> batch;
  auto steps = session_->next(*flight.exchange, batch, flight.timing);
  trace(phase, flight, since);
  if (!steps) note(steps.error());
  if (steps && *steps == 0 && flight.exchange->parked()) {
    parked_.push_back(flight);
    return false;
  }
  if (!steps || *steps == 0) {
    const collective::OwnerTurn* const turn = flight.exchange->turn();
    skipped_ = skipped_ || (steps && turn != nullptr && turn->skipped());
    tell(flight, steps ? nullptr : &steps.error());
    return false;
  }
  flight.timing.issued = session_->now();
  auto started = engine_->start({batch.data(), *steps});
  if (!started) return std::move(started).error();
  flight.ticket = *started;
  return true;
}

Result<void> Window::wait(Flight& flight) {
  auto done = engine_->wait(flight.ticket, std::chrono::steady_clock::now() + timeout_);
  const double completed = front_ == nullptr ? 0 : front_->completed();
  flight.timing.completed = completed > 0 ? completed : session_->now();
  if (done) trace(Phase::wire, flight, flight.timing.issued);
  return done;
}

Result<void> Window::end_first() {
  Flight flight = flights_[0];
  for (bool more = true; more;) {
    if (auto done = wait(flight); !done) return fail(&flight, done.error());
    auto started = start(flight, Phase::decode, session_->now());
    if (!started) return fail(&flight, started.error());
    more = *started;
  }
  std::copy(flights_.begin() + 1, flights_.begin() + count_, flights_.begin());
  --count_;
  return {};
}

Result<void> Window::drain() {
  while (count_ != 0) {
    if (auto ended = end_first(); !ended) return ended;
  }
  return first_ ? Result<void>(copy_of(*first_)) : Result<void>();
}

Result<bool> Window::pull(bool skips, const BundleFailure* failure) {
  skipped_ = false;
  while (!parked_.empty()) {
    if (auto place = make_place(); !place) return std::move(place).error();
    Flight flight = parked_.front();
    parked_.erase(parked_.begin());
    flight.timing = {};
    const double since = session_->now();
    if (auto begun = session_->resume(*flight.exchange, skips, failure); !begun)
      return std::move(begun).error();
    auto more = start(flight, Phase::encode, since);
    if (!more) return fail(&flight, more.error()).error();
    if (*more) flights_[count_++] = flight;
  }
  if (auto done = finish(); !done) return std::move(done).error();
  return !skipped_;
}

Result<void> Window::finish() {
  auto done = drain();
  if (!failed_) first_.reset();
  return done;
}

Result<void> Window::run(std::span<const Step> batch) {
  auto started = engine_->start(batch);
  if (!started) return fail(nullptr, started.error());
  auto done = engine_->wait(*started, std::chrono::steady_clock::now() + timeout_);
  return done ? std::move(done) : fail(nullptr, done.error());
}

void Window::break_off(const Error& why) { (void)fail(nullptr, why); }

/// Nothing of ours goes out any more. `flight`: whose batch has failed, no part of flights_ or the
/// first.
Result<void> Window::fail(Flight* flight, const Error& why) {
  if (!failed_) first_ = copy_of(why);
  failed_ = true;
  const uint32_t count = std::exchange(count_, 0);
  session_->abort(copy_of(why));
  if (flight != nullptr) tell(*flight, &why);
  for (uint32_t i = 0; i < count; ++i) {
    if (flight != nullptr && flights_[i].exchange == flight->exchange) continue;
    if (front_ != nullptr) front_->settle(flights_[i].ticket);
    tell(flights_[i], &why);
  }
  for (const Flight& parked : parked_) tell(parked, &why);
  parked_.clear();
  return copy_of(why);
}

void Window::note(const Error& why) {
  if (!first_) first_ = copy_of(why);
}

void Window::tell(const Flight& flight, const Error* why) const {
  if (ended_) ended_(flight.number, why);
}

void Window::trace(Phase phase, const Flight& flight, double begin) const {
  if (front_ != nullptr) front_->traced(phase, flight.step, flight.index, begin, session_->now());
}

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/window.h"

#include <algorithm>
#include <new>
#include <utility>

namespace laconic::session {

Result<void> Window::submit(const collective::Bucket& bucket,
                            const collective::LayoutView& layout) {
  return issue(session_->begin(bucket, layout));
}

Result<void> Window::submit_failed(uint64_t step, uint32_t index,
                                   const collective::LayoutView& layout, Error why) {
  return issue(session_->begin_failed(step, index, layout, std::move(why)));
}

Result<void> Window::issue(Result<collective::Exchange*> begun) {
  if (!begun) return std::move(begun).error();
  Flight flight{*begun, {}, {}};
  auto more = start(flight);
  if (!more) return fail(std::move(more).error());
  if (*more) flights_[count_++] = flight;
  const auto since = std::chrono::steady_clock::now();
  const bool waits = full() && session_->model().options().window > 1;
  while (full()) {
    if (auto ended = end_first(); !ended) return ended;
  }
  if (waits) {
    session_->count(
        0, std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count());
  }
  return {};
}

/// The exchange's next batch is on its way; false: it has ended, with an Error that was noted. Its
/// own Error is the engine's.
Result<bool> Window::start(Flight& flight) {
  std::array<Step, kMaxBatch> batch;
  auto steps = session_->next(*flight.exchange, batch, flight.timing);
  if (!steps) note(std::move(steps).error());
  if (!steps || *steps == 0) return false;
  flight.timing.issued = session_->now();
  auto started = engine_->start({batch.data(), *steps});
  if (!started) return std::move(started).error();
  flight.ticket = *started;
  return true;
}

Result<void> Window::wait(Flight& flight) {
  auto done = engine_->wait(flight.ticket, std::chrono::steady_clock::now() + timeout_);
  flight.timing.completed = session_->now();
  return done;
}

Result<void> Window::end_first() {
  Flight& flight = flights_[0];
  for (;;) {
    if (auto done = wait(flight); !done) return fail(std::move(done).error());
    auto more = start(flight);
    if (!more) return fail(std::move(more).error());
    if (!*more) break;
  }
  std::copy(flights_.begin() + 1, flights_.begin() + count_, flights_.begin());
  --count_;
  return {};
}

Result<void> Window::finish() {
  while (count_ != 0) {
    if (auto ended = end_first(); !ended) return ended;
  }
  if (!first_) return {};
  return *std::exchange(first_, std::nullopt);
}

Result<void> Window::run(std::span<const Step> batch) {
  auto started = engine_->start(batch);
  if (!started) return fail(std::move(started).error());
  auto done = engine_->wait(*started, std::chrono::steady_clock::now() + timeout_);
  return done ? std::move(done) : fail(std::move(done).error());
}

/// Nothing of ours goes out any more.
Result<void> Window::fail(Error why) {
  count_ = 0;
  first_.reset();
  failed_ = true;
  Error copy{why.code, {}, {}};
  try {
    copy = why;
  } catch (const std::bad_alloc&) {  // the code alone has to do: payloads must be put back
  }
  session_->abort(std::move(copy));
  return why;
}

void Window::note(Error why) {
  if (!first_) first_ = std::move(why);
}

}  // namespace laconic::session

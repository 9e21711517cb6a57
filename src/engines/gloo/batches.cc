// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "batches.h"

#include <sched.h>

#include <algorithm>
#include <new>

#include "../shared/steps.h"

namespace laconic::gloo {

void Batches::begin(uint64_t number, std::span<const Step> batch) noexcept {
  std::unique_lock lock(mutex_);
  InFlight& own = in_flight(number);
  std::copy(batch.begin(), batch.end(), own.steps.begin());
  own.count = batch.size();
  begun_ = number;
  lock.unlock();
  group_.ask();
  // On a core that Gloo's thread shares: it posts now, and not when the caller, who is about to
  // encode the next part, waits for something.
  ::sched_yield();
}

/// In Gloo's thread. Nothing is posted while the engine's own thread sums: one of two that use a
/// connection may have to close it, and waits for Gloo's thread, then.
void Batches::post_what_has_begun() noexcept {
  const auto sums = [](const Step& step) { return step.kind == StepKind::all_reduce; };
  for (std::unique_lock lock(mutex_); posted_ < begun_; ++posted_) {
    const std::span last = in_flight(posted_).batch();
    if (executed_ < posted_ && std::ranges::any_of(last, sums)) return;
    InFlight& next = in_flight(posted_ + 1);
    lock.unlock();
    try {
      for (const Step& step : next.batch()) post(step, &next.transfers);
    } catch (...) {
      next.failure = std::current_exception();
    }
    lock.lock();
    posted_changed_.notify_all();
  }
}

/// Begins what is no sum.
void Batches::post(const Step& step, std::vector<Transfer>* transfers) {
  if (step.kind == StepKind::all_reduce) return;
  const uint64_t slot = kSlots | step.tag;
  detail::each_message(
      step, group_.rank(), group_.world(),
      [&](uint32_t peer, uint8_t* at, uint64_t room) {
        if (room == 0) return;
        transfers->push_back({group_.buffer(at, room), true});
        transfers->back().buffer->recv(static_cast<int>(peer), slot);
      },
      [&](uint32_t peer, const uint8_t* at, uint64_t bytes) {
        if (bytes == 0) return;
        transfers->push_back({group_.buffer(at, bytes), false});
        transfers->back().buffer->send(static_cast<int>(peer), slot);
      });
}

Result<void> Batches::execute(std::span<const Step> batch) noexcept {
  if (auto known = fault_.known()) return *std::move(known);
  const detail::NoSigpipe guard;
  executing_ = true;
  Result<void> result = Errc::ok;
  const uint64_t number = executed_ + 1;
  try {
    complete(number, batch);
  } catch (const std::bad_alloc&) {
    result = fault_.fail({Errc::out_of_memory, {}, {}});
  } catch (const std::exception& e) {
    result = fault_.fail({Errc::peer_failed, {}, {}}, e.what());
  } catch (...) {
    result = fault_.fail({Errc::peer_failed, {}, {}});
  }
  InFlight& own = in_flight(number);
  own.transfers.clear();
  own.failure = nullptr;
  const std::lock_guard lock(mutex_);
  executed_ = number;
  if (posted_ < begun_) group_.ask();  // what has waited for a sum
  executing_ = false;
  return result;
}

void Batches::complete(uint64_t number, std::span<const Step> batch) {
  if (group_.connected()) {
    std::unique_lock lock(mutex_);
    posted_changed_.wait(lock, [&] { return posted_ >= number; });
  }
  InFlight& own = in_flight(number);
  if (own.failure) std::rethrow_exception(own.failure);
  for (const Step& step : batch) {
    step.kind == StepKind::all_reduce ? ring_.sum(step) : detail::keep_own(step, group_.rank());
  }
  for (Transfer& t : own.transfers) {
    (void)(t.receives ? t.buffer->waitRecv(kForever) : t.buffer->waitSend(kForever));
  }
}

bool Batches::all_executed() {
  const std::lock_guard lock(mutex_);
  return executed_ == begun_;
}

std::vector<bool> Batches::needed_by(uint64_t number) const {
  std::vector<bool> needed(group_.world(), false);
  for (const Step& step : in_flight_[number % kMaxTickets].batch()) {
    if (step.kind != StepKind::messages) needed.assign(group_.world(), true);
    for (const Message& m : step.messages) needed[m.peer] = true;
  }
  return needed;
}

}  // namespace laconic::gloo

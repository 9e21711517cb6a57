// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "queue.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <string>

#include "../shared/steps.h"
#include "laconic/dtype.h"

namespace laconic::mpi {

Result<Started*> Queue::add(std::span<const Step> batch) {
  const auto found =
      std::find_if(started_.begin(), started_.end(), [](const Started& j) { return !j.used; });
  if (found == started_.end()) {
    return Error{Errc::exchange_order, std::to_string(kMaxTickets) + " tickets are outstanding",
                 "wait for a ticket before starting another batch"};
  }
  Started& started = *found = {};
  std::copy(batch.begin(), batch.end(), started.steps.begin());
  started.count = batch.size();
  started.number = ++last_;
  started.used = true;
  started.begun = std::chrono::steady_clock::now();
  return &started;
}

/// A ticket may be waited for long after later ones: numbers say nothing about places.
Started* Queue::find(uint64_t number) {
  const auto found = std::find_if(started_.begin(), started_.end(), [number](const Started& j) {
    return j.used && j.number == number;
  });
  return found == started_.end() ? nullptr : &*found;
}

// ---- issuing ----

void Queue::issue() {
  while (next_ <= last_ && !sums_.under_way() && status_) {
    Started* const found = find(next_);
    if (found == nullptr || found->issued == found->count) {  // none: it has been waited for
      ++next_;
      continue;
    }
    Started& started = *found;
    const Step& step = started.steps[started.issued];
    if (transfers_.hold_up(group_.tag_of(step))) return;
    step.kind == StepKind::all_reduce ? issue_sum(started, step) : issue_messages(started, step);
    if (status_) ++started.issued;
  }
}

void Queue::issue_sum(Started& started, const Step& step) {
  if ((kAllSums >> static_cast<uint32_t>(step.dtype) & 1U) == 0) {
    return status_.die(Error{Errc::dtype_unsupported,
                             "mpi: cannot sum " + std::string(dtype_name(step.dtype)) + " elements",
                             {}});
  }
  const uint64_t bytes = step.count * dtype_size(step.dtype);
  if (step.send != step.recv && step.count != 0) std::memmove(step.recv, step.send, bytes);
  if (sums_.takes(bytes)) return sums_.begin(started, step);
  detail::Lanes::scale_lanes(step, step.recv, step.count);
  transfers_.sum(started, step);
}

void Queue::issue_messages(Started& started, const Step& step) {
  const Kind receive = step.short_sends ? Kind::receive_short : Kind::receive;
  detail::each_message(
      step, group_.rank(), group_.world(),
      [&](uint32_t peer, uint8_t* at, uint64_t room) {
        transfers_.exchange(started, step, receive, peer, at, room);
      },
      [&](uint32_t peer, const uint8_t* at, uint64_t bytes) {
        transfers_.exchange(started, step, Kind::send, peer, const_cast<uint8_t*>(at), bytes);
      });
  detail::keep_own(step, group_.rank());
}

// ---- waiting ----

bool Queue::progress() {
  const bool some = transfers_.progress();
  if (some) sums_.go_on();
  return some;
}

void Queue::finish(const Started& started, Deadline deadline, std::unique_lock<std::mutex>& lock) {
  int main = 1;
  if (!process_.overlaps()) MPI_Is_thread_main(&main);
  if (main == 0) {
    return status_.die(Error{Errc::unsupported,
                             "mpi: MPI allows only the thread that initialised it to communicate",
                             "request MPI_THREAD_SERIALIZED or higher from MPI_Init_thread"});
  }
  for (Idle idle(group_.waits()); status_ && !started.ended();) {
    issue();
    if (progress()) {
      idle.reset();
      continue;
    }
    if (!status_ || started.ended()) return;
    if (std::chrono::steady_clock::now() >= deadline) return status_.die(too_late(started));
    lock.unlock();  // for status(); the engine's own thread sleeps
    idle.pause();
    lock.lock();
  }
}

/// "mpi: nothing arrived from ranks 1 and 3 within 5000 ms"
Error Queue::too_late(const Started& started) const {
  const auto waited = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::steady_clock::now() - started.begun);
  std::string what = "a sum did not complete";
  if (const std::string to = transfers_.peers(started, Kind::send, Kind::send); !to.empty())
    what = "nothing reached " + to;
  if (const std::string from = transfers_.peers(started, Kind::receive, Kind::receive_short);
      !from.empty())
    what = "nothing arrived from " + from;
  return {Errc::timed_out, "mpi: " + what + " within " + std::to_string(waited.count()) + " ms",
          "find the rank that stopped; this group cannot continue"};
}

}  // namespace laconic::mpi

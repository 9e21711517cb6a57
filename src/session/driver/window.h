// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Drives a session's exchanges over an engine, as many in flight as Session::has_place() lets in:
// encoding of one, wire of others. What is issued when is a function of the order and sizes of the
// buckets, the same on all ranks, and never of time: the first batch of exchange i, then all that
// is left of the oldest ones until another has a place, however long; at the end of a step all that
// is left, in order. The next bucket's size is not waited for: the oldest would lie idle meanwhile.
#pragma once

#include <array>
#include <chrono>
#include <optional>

#include "session/session.h"

namespace laconic::session {

class Window {
 public:
  /// A batch that takes longer than `timeout` has failed.
  Window(Session& session, Engine& engine, std::chrono::milliseconds timeout) noexcept
      : session_(&session), engine_(&engine), timeout_(timeout) {}

  /// Begins an exchange. Gives the Error of one that could not begin, or the engine's; that of an
  /// exchange (a peer's trouble, hostile bytes) stops no other one, and is what finish() gives.
  Result<void> submit(const collective::Bucket& bucket, const collective::LayoutView& layout);
  /// The exchange of `layout` that this rank cannot bring: all ranks will report `why`.
  Result<void> submit_failed(uint64_t step, uint32_t index, const collective::LayoutView& layout,
                             Error why);
  /// Ends all exchanges in order. The first Error since the last finish().
  Result<void> finish();
  /// A batch of the caller's own, while no exchange is in flight. Its Error is the engine's.
  Result<void> run(std::span<const Step> batch);
  /// The engine may still use the memory of exchanges: it has failed, or they are in flight.
  [[nodiscard]] bool left_behind() const noexcept { return failed_ || count_ != 0; }

 private:
  struct Flight {
    collective::Exchange* exchange = nullptr;
    Ticket ticket;
    Timing timing;  // of the batch that the ticket is for
  };

  Result<void> issue(Result<collective::Exchange*> begun);
  /// A long exchange would have no place.
  [[nodiscard]] bool full() const {
    return count_ != 0 && !session_->has_place(collective::kShortElements + 1);
  }
  Result<bool> start(Flight& flight);
  Result<void> wait(Flight& flight);
  Result<void> end_first();
  Result<void> fail(Error why);
  void note(Error why);

  Session* session_;
  Engine* engine_;
  std::chrono::milliseconds timeout_;
  std::array<Flight, collective::kMaxWindow> flights_{};  // in the order of their begins
  uint32_t count_ = 0;
  std::optional<Error> first_;
  bool failed_ = false;
};

}  // namespace laconic::session

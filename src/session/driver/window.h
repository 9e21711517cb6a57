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
#include <functional>
#include <optional>
#include <vector>

#include "session/session.h"

namespace laconic::session {

enum class Phase : uint8_t { encode = 0, wire = 1, decode = 2 };

/// Hooks for an engine in another language and its program, in addition to Engine. Called on the
/// driving thread; they must not call the driver.
class Front {
 public:
  virtual ~Front() = default;
  /// When the batch that was waited for last was complete, by Session::now(); 0: as wait returned.
  virtual double completed() noexcept { return 0; }
  /// A batch whose exchange was undone: returns when none of its memory is used any more.
  virtual void settle(Ticket) noexcept {}
  /// A part of an exchange's time, by Session::now().
  virtual void traced(Phase, uint64_t /*step*/, uint32_t /*index*/, double /*begin*/,
                      double /*end*/) noexcept {}
};

class Window {
 public:
  /// The exchange that submit() was given with this number has ended; null: the mean is there.
  using Ended = std::function<void(uint32_t number, const Error* why)>;

  /// A batch that takes longer than `timeout` has failed.
  Window(Session& session, Engine& engine, std::chrono::milliseconds timeout, Ended ended = {},
         Front* front = nullptr)
      : session_(&session),
        engine_(&engine),
        timeout_(timeout),
        ended_(std::move(ended)),
        front_(front) {
    // No exchange is without parameters but one of an empty bucket.
    const auto& model = session.model();
    if (model.options().owner_turns) parked_.reserve(model.parameters().size() + 1);
  }

  /// Begins an exchange. `trouble`: this rank cannot bring all of its gradients; all ranks will
  /// report it, and what there is, if bucket.buffer is not null, goes into the residuals. Gives
  /// the Error of one that could not begin, or the engine's; that of an exchange (a peer's trouble,
  /// hostile bytes) stops no other one, and is what finish() gives.
  Result<void> submit(const collective::Bucket& bucket, const collective::LayoutView& layout,
                      uint32_t number = 0, const Error* trouble = nullptr);
  /// Ends all exchanges in order. The first Error since the last finish(), which stays.
  Result<void> drain();
  /// The same, and the next finish() will not give that Error again; the engine's it always gives.
  Result<void> finish();
  /// Undoes all exchanges: the session exchanges nothing any more.
  void break_off(const Error& why);
  /// Exchanges whose way up is complete (Options::owner_turns), in the order of their begins: they
  /// have left the window. Theirs ends when pull() is called.
  [[nodiscard]] uint32_t parked() const noexcept { return static_cast<uint32_t>(parked_.size()); }
  [[nodiscard]] collective::OwnerTurn& turn(uint32_t i) { return *parked_[i].exchange->turn(); }
  /// Pulls in all exchanges, within the window. True: all of them carried updates.
  Result<bool> pull(bool skips, const BundleFailure* failure);
  /// A batch of the caller's own, while no exchange is in flight. Its Error is the engine's.
  Result<void> run(std::span<const Step> batch);
  [[nodiscard]] bool failed() const noexcept { return failed_; }
  /// The engine may still use the memory of exchanges: it has failed, or they are in flight.
  [[nodiscard]] bool left_behind() const noexcept { return failed_ || count_ != 0; }
  /// Sets the result of finish(), unless it already has one.
  void note(const Error& why);
  [[nodiscard]] const std::optional<Error>& first() const noexcept { return first_; }

 private:
  struct Flight {
    collective::Exchange* exchange = nullptr;
    Ticket ticket;
    Timing timing;  // of the batch that the ticket is for
    uint64_t step = 0;
    uint32_t index = 0;
    uint32_t number = 0;
  };

  Result<collective::Exchange*> begin(const collective::Bucket& bucket,
                                      const collective::LayoutView& layout, const Error* trouble);
  Result<void> make_place();
  /// A long exchange would have no place.
  [[nodiscard]] bool full() const {
    return count_ != 0 && !session_->has_place(collective::kShortElements + 1);
  }
  Result<bool> start(Flight& flight, Phase phase, double since);
  Result<void> wait(Flight& flight);
  Result<void> end_first();
  Result<void> fail(Flight* flight, const Error& why);
  void tell(const Flight& flight, const Error* why) const;
  void trace(Phase phase, const Flight& flight, double begin) const;

  Session* session_;
  Engine* engine_;
  std::chrono::milliseconds timeout_;
  Ended ended_;
  Front* front_;
  std::array<Flight, collective::kMaxWindow> flights_{};  // in the order of their begins
  uint32_t count_ = 0;
  std::vector<Flight> parked_;
  bool skipped_ = false;
  std::optional<Error> first_;
  bool failed_ = false;
};

}  // namespace laconic::session

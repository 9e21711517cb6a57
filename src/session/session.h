// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A model's compressed communication on one rank: what users hold. Owns the settings in force, what
// is in flight, what this rank observes of its steps, and the counts of what happened.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "session/active.h"
#include "session/in_flight.h"
#include "session/observer.h"
#include "session/proposal.h"
#include "session/recorder.h"
#include "session/stats.h"

namespace laconic::session {

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(
      std::string_view spec, std::vector<collective::Parameter> parameters,
      const collective::Options& options, std::span<const Rule> rules = {},
      std::string_view control = {}, std::string_view record = {}, std::string_view down = {},
      std::shared_ptr<const device::Staging> gpu = {});

  /// Other settings take its place between two steps.
  [[nodiscard]] Active& active() const noexcept { return *active_; }
  [[nodiscard]] const collective::Model& model() const noexcept { return active_->model; }
  /// Null: this rank writes no record. To be read under hold().
  [[nodiscard]] const Recorder* recorder() const noexcept { return recorder_.get(); }
  /// While it lives, no setting changes and no other call gets anywhere.
  [[nodiscard]] std::unique_lock<std::mutex> hold() const { return std::unique_lock(mutex_); }
  /// Returns a copy; thread-safe at any time.
  [[nodiscard]] Stats stats() const;
  [[nodiscard]] Proposal& proposal() noexcept { return proposal_; }

  /// Begins a step: applies all changes due. Optional: the first bucket of the step does it
  /// otherwise. Returns the version of the settings, also for a second call in the same step. Fails
  /// for a step before the current one, and while exchanges of another step run.
  Result<uint32_t> begin_step(uint64_t step);
  /// Begins the exchange of a bucket, ready for next(). Others of its step may run: see
  /// has_place(). Fails for a bucket without a buffer or with a non-float type, for a parameter in
  /// flight, while exchanges of another step run, and after the engine has failed: the gradient
  /// then goes into the residuals. Other failures of this rank (out of memory, a layout that does
  /// not fit) are reported to the other ranks by the exchange.
  Result<collective::Exchange*> begin(const collective::Bucket& bucket,
                                      const collective::LayoutView& layout);
  /// The exchange that all other ranks begin with a bucket of `layout`, which this rank cannot
  /// bring: all ranks will report `why`. Nothing goes into the residuals.
  Result<collective::Exchange*> begin_failed(uint64_t step, uint32_t index,
                                             const collective::LayoutView& layout, Error why);
  /// Before the first next(): this rank has failed; all ranks will report it.
  void fail(collective::Exchange& exchange, Error error);
  /// `last`: timing of the last batch; without it the network time is unknown.
  Result<uint32_t> next(collective::Exchange& exchange, std::span<Step> batch,
                        const Timing& last = {});
  /// Options::now, for a driver's Timing.
  [[nodiscard]] double now() const;
  /// The way down of a parked exchange (Options::owner_turns), ready for next(): see
  /// Exchange::resume.
  Result<void> resume(collective::Exchange& exchange, bool skips, const BundleFailure* failure);
  /// The engine failed: what exchanges in flight have not delivered goes into the residuals, and
  /// from now on begin() fails with `why`: messages of theirs may still be under way and would meet
  /// the next ones.
  void abort(std::optional<Error> why = {});
  /// True if an exchange of `elements` may begin: at most Options::window long ones are in flight
  /// and, if that is 2 or more, kMaxWindow of any size. The same on all ranks between the same
  /// begins.
  [[nodiscard]] bool has_place(uint64_t elements) const;
  /// Exchanges that have begun and not ended, those that are parked among them.
  [[nodiscard]] uint32_t in_flight() const;
  /// From the driver: a sum of this step's gradients that it made without the session.
  void summed(const Timing& timing);
  /// From the driver, to be added.
  void count(const DriverCounts& more);
  /// Frees the buffers of a layout that will not come back, unless it is in flight. Every rank does
  /// it between the same two exchanges: a layout that does come back is enrolled again.
  void release(const collective::LayoutView& layout, DType dtype);

  /// Residuals shall go out with the gradients, an equal part in each of `steps` steps (1 to
  /// kMaxFlushSteps). It suffices that one rank asks: the request rides in the exchanges of the
  /// next step, and the first draining step is the one after it. Where ranks ask for different
  /// numbers, the largest holds; where an engine adds them in bits (native_sum, server_sum), their
  /// bitwise OR, which is less than twice that. Nothing happens while a flush is draining, or
  /// without feedback.
  Result<void> flush(uint32_t steps);
  /// Multiplies all memory by `factor`: the unit of the gradients has changed.
  Result<void> scale_residuals(float factor);

 private:
  friend class Proposal;
  /// The step that has begun last.
  struct StepState {
    uint64_t number = ~uint64_t{0};
    bool report_due = false;       // no exchange of it has begun yet
    std::optional<Error> failure;  // failure of begin_step, until a bucket reports it to the others
  };

  explicit Session(std::unique_ptr<Active> active);
  Result<void> enter_step(uint64_t step);
  collective::Exchange* run(collective::Exchange& exchange, const collective::Bucket& bucket,
                            uint64_t elements, std::optional<Error> local_failure);
  void hear(const collective::HeardReports& heard);

  /// Held while anything of the below is read or written; never while an engine runs.
  mutable std::mutex mutex_;
  std::unique_ptr<Active> active_;
  Proposal proposal_{*this};
  InFlight in_flight_;
  Observer observer_;
  std::unique_ptr<Recorder> recorder_;
  Stats stats_;
  StepState step_;
  std::optional<Error> broken_;
  std::optional<Error> failed_here_;  // an exchange, after it was delivered: others do not know
  uint32_t sequence_ = 0;
  bool reports_ = false;  // asked for, whatever policies need
};

/// Returns a copy; thread-safe at any time.
[[nodiscard]] Memory memory_of(const Session& session);

/// Runs one exchange to its end on an engine, by its run(): for tests. Programs: Driver.
Result<void> drive(Session& session, const collective::Bucket& bucket,
                   const collective::LayoutView& layout, Engine& engine);

}  // namespace laconic::session

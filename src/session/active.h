// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The settings of a session that are in force, and all that hangs on them: the model's assignment,
// everything that is remembered between steps, and one exchange per bucket layout. Other settings
// are another Active, which takes the place of this one as a whole.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective/exchange/exchange.h"
#include "feedback/store.h"
#include "laconic/rule.h"
#include "laconic/thread_pool.h"
#include "pipeline/device_frames.h"
#include "session/flush.h"
#include "session/in_flight.h"
#include "session/norm_sample.h"
#include "session/recorder.h"
#include "session/steering.h"

namespace laconic::session {

/// Settings other than the spec.
struct Asked {
  std::vector<Rule> rules{};  ///< rules of the classes after the first
  std::string control{};      ///< of the call
  bool records = false;       ///< rank 0 writes a record
  std::string down{};         ///< spec of the means of two_shot; "": the call's
  /// Buckets and codecs are on this GPU; null: on the host.
  std::shared_ptr<const device::Staging> gpu{};
};
/// The position of settings in the sequence of a session's settings.
struct Succession {
  uint32_t versions_before = 0;   ///< of all settings before these
  std::optional<uint64_t> since;  ///< the first step of what was set last; none: nothing was
  bool begins = false;            ///< no step has begun with what was set last
};

/// The reports by which control policies decide about a step; none: no exchange has brought any.
struct HeardStep {
  uint64_t step = 0;
  std::vector<control::Report> reports{};
};

struct Active {
  static Result<std::unique_ptr<Active>> create(std::string_view spec, Asked asked,
                                                std::vector<collective::Parameter> parameters,
                                                const collective::Options& options);
  Active(const Active&) = delete;
  Active& operator=(const Active&) = delete;

  /// Version of the current settings; increases with each change.
  [[nodiscard]] uint32_t version() const noexcept {
    return succession.versions_before + (steering ? steering->version() : 0U);
  }
  [[nodiscard]] feedback::StateHeader state_header() const;
  /// Hash of this rank's current settings in this step: 0 as at attach, without control policies
  /// and flushes.
  [[nodiscard]] uint64_t hash() const noexcept;
  /// Policies have turned all that is compressed to float32.
  [[nodiscard]] bool all_dense() const noexcept;

  /// Begins a step: applies all changes due; the only place where settings change. No exchange
  /// runs. `recorder`: null, or that of the ending step.
  Result<void> begin_step(uint64_t step, Recorder* recorder);
  [[nodiscard]] Result<void> check_layout(const collective::LayoutView& layout) const;
  /// The exchange that was made for this layout, or a new one: this is where memory may run out.
  Result<collective::Exchange*> exchange_for(const collective::LayoutView& layout, DType dtype);
  /// This rank has no exchange for the bucket. Where memory ran out, the layout is new, and the
  /// others are about to enrol it: a spare joins them. Where the layout does not fit, this rank may
  /// have brought it by mistake: the exchange that the same bucket had before speaks the others'
  /// rounds.
  collective::Exchange& messenger(const Error& why, const collective::Bucket& bucket,
                                  const collective::LayoutView& layout, const InFlight& in_flight);
  /// No exchange will take this gradient: it goes into the residuals.
  void keep(const collective::Bucket& bucket, const collective::LayoutView& layout);
  /// Continues after `before`, which it replaces after step `last`: reports, counters and requests.
  /// Takes no memory.
  void take_over(const Active& before, uint64_t last) noexcept;

  Asked asked;
  std::unique_ptr<ThreadPool> pool;
  collective::Model model;
  std::vector<pipeline::UnitCodec> codecs;          ///< as RankState::create takes them
  std::unique_ptr<pipeline::DeviceBatches> device;  ///< with Asked::gpu, unless alone
  feedback::Store store;
  Flush flush;
  std::unique_ptr<collective::RankState> state;
  std::optional<Steering> steering;  ///< none: no policy moves anything
  HeardStep heard;
  collective::Counters counters;
  NormSample norms;
  std::vector<std::unique_ptr<collective::Exchange>> spares;  ///< one per exchange in flight
  std::vector<std::unique_ptr<collective::Exchange>> exchanges;
  Succession succession;

 private:
  explicit Active(collective::Model made) : model(std::move(made)) {}
  Result<void> bind(const collective::Options& options, bool steers);
  Result<void> steer(uint64_t step, Recorder* recorder);
  void set_ways() noexcept;
  void replan_units();
  Result<std::unique_ptr<collective::Exchange>> create_exchange(
      const collective::LayoutView& layout, DType dtype);
};

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A model's compressed communication on one rank: what users hold. Owns the model's assignment,
// everything that is remembered between steps, one exchange per bucket layout, and the counts of
// what happened.
#pragma once

#include <array>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective/exchange/exchange.h"
#include "feedback/store.h"
#include "laconic/rule.h"
#include "laconic/thread_pool.h"
#include "session/norm_sample.h"
#include "session/observer.h"
#include "session/recorder.h"
#include "session/steering.h"

namespace laconic::session {

/// Counts since creation.
struct Stats {
  uint64_t exchanges = 0;
  uint64_t steps = 0;        ///< distinct step numbers seen
  uint64_t elements = 0;     ///< elements exchanged
  uint64_t dense_bytes = 0;  ///< what a float32 ring all-reduce would have sent
  uint64_t fallbacks = 0;    ///< exchanges uncompressed because a gradient was not finite
  uint64_t flushes = 0;      ///< exchanges that took part of the residuals with them
  uint64_t failures = 0;
  uint64_t parts = 0;              ///< exchanges that carried a part of a bucket that was cut
  double window_wait_seconds = 0;  ///< waiting for an older exchange, because the window was full
  double encode_seconds = 0;       ///< begin to the first step that carries gradients
  double decode_seconds = 0;       ///< all later work of ours
  uint64_t setting_changes = 0;    ///< that laws have decided, or that were set
  uint64_t held_steps = 0;         ///< whose reports no law could use
  uint64_t reports_missing = 0;    ///< of any rank, that were due
  double network_seconds = 0;      ///< of the time in collectives, what the network took
  double straggler_seconds = 0;    ///< and the wait for ranks that came later
  collective::Counters counters;
  // As of now:
  bool alone = false;             ///< one rank: see Model::alone
  uint64_t layouts = 0;           ///< bucket layouts that hold exchange buffers
  uint64_t flush_steps_left = 0;  ///< draining steps still to come
  uint64_t residual_bytes = 0;    ///< as Memory has it
  double residual_norm = 0;       ///< sqrt of the sum of squares of this rank's residuals
};

/// What a session holds as of now, in bytes, as far as it grows with the model.
struct Memory {
  uint64_t residual_bytes = 0;  ///< error feedback, that of owned means included
  uint64_t state_bytes = 0;     ///< what else outlives a step: codec state, the flush's numbers
  uint64_t exchange_bytes = 0;  ///< buffers and tables of all bucket layouts
};

inline constexpr uint64_t kAgreementBytes = 768;
/// Of a flush that end_set asks for where no report says how large residuals are: as flush() in
/// Python.
inline constexpr uint32_t kReleaseSteps = 10;
using AgreementCard = std::array<uint8_t, kAgreementBytes>;
/// What is to change; what is not given stays.
struct Change {
  std::optional<std::string_view> spec{};
  std::optional<std::span<const Rule>> rules{};
  std::optional<std::string_view> control{};
  std::optional<std::string_view> plan{};  ///< a strategy's name
};

/// In place of a card: this rank has no session, and why.
AgreementCard failure_card(const Error& why) noexcept;
/// `cards`: as for Session::check_agreement. The first failure card's Error, with its rank's name,
/// the same on every rank.
Result<void> check_failures(Bytes cards);

class Session {
 public:
  static Result<std::unique_ptr<Session>> create(std::string_view spec,
                                                 std::vector<collective::Parameter> parameters,
                                                 const collective::Options& options,
                                                 std::span<const Rule> rules = {},
                                                 std::string_view control = {},
                                                 std::string_view record = {});
  ~Session();

  [[nodiscard]] const collective::Model& model() const noexcept { return *model_; }
  /// Of the classes behind the first.
  [[nodiscard]] std::span<const Rule> rules() const noexcept { return rules_; }
  /// Null: no law moves anything. To be read under hold().
  [[nodiscard]] const Steering* steering() const noexcept {
    return steering_ ? &*steering_ : nullptr;
  }
  /// Null: this rank writes no record. To be read under hold().
  [[nodiscard]] const Recorder* recorder() const noexcept { return recorder_.get(); }
  /// Bytes of residuals and codec state of a class.
  [[nodiscard]] uint64_t memory_of_class(uint32_t of) const;
  [[nodiscard]] feedback::Store& store() noexcept { return store_; }
  [[nodiscard]] const feedback::Store& store() const noexcept { return store_; }
  /// By value, from any thread at any time.
  [[nodiscard]] Stats stats() const;
  [[nodiscard]] Memory memory() const;
  /// While it lives, no setting changes and no other call gets anywhere.
  [[nodiscard]] std::unique_lock<std::mutex> hold() const { return std::unique_lock(mutex_); }
  [[nodiscard]] feedback::StateHeader state_header() const;

  /// What this rank tells the others before the first exchange: spec, sizes, version.
  [[nodiscard]] AgreementCard agreement_card() const;
  /// `cards`: all ranks', in rank order. The same message on every rank when they differ. From
  /// where engines scale is not compared: the last of them counts.
  [[nodiscard]] Result<void> check_agreement(Bytes cards);

  // Other settings, between two steps: every rank prepares, tells the others its set_card(),
  // whether it could or not, and ends with the cards of all.
  /// Takes all memory that the settings need beside those in force, which stay. Its Error is in the
  /// card, too. Refused while exchanges run, by an aggregation server, and while residuals are not
  /// zero for which the settings have no place: residuals_left.
  Result<void> prepare_set(const Change& change);
  /// Instead: this rank has no settings to prepare, and why.
  void refuse_set(const Error& why);
  [[nodiscard]] const AgreementCard& set_card() const noexcept { return set_card_; }
  /// A change was prepared, or could not be, and has not been ended.
  [[nodiscard]] bool setting() const noexcept { return setting_; }
  /// Where all ranks are ready for the same, it is in force from now on. Otherwise all go on as
  /// before, with one Error; behind residuals_left they are flushed, in as many steps as they are
  /// larger than the gradients.
  Result<void> end_set(Bytes cards);
  /// A flush is draining, or asked for by end_set. Between two steps the same on all ranks: what
  /// one rank alone asks for by flush() does not count before all have heard of it.
  [[nodiscard]] bool releases() const;
  /// Of the settings in force; goes up with each change. To be read under hold().
  [[nodiscard]] uint32_t version() const noexcept {
    return versions_before_ + (steering_ ? steering_->version() : 0U);
  }
  /// The first step of what was set last; none: nothing was. To be read under hold().
  [[nodiscard]] std::optional<uint64_t> set_since() const noexcept { return set_since_; }

  /// Before the first bucket of a step, which does it otherwise: what is due now comes into force.
  /// Gives the settings' version; a second time in a step, the same. Refused for a step behind the
  /// one that has begun, and while exchanges of another one run.
  Result<uint32_t> begin_step(uint64_t step);
  /// The exchange of a bucket, ready for next(). Others of its step may run: see has_place().
  /// Fails for a bucket without a buffer or of no float type, for a parameter that is in flight,
  /// while exchanges of another step run, and after the engine has failed once: then the
  /// gradient goes into the residuals. What else is wrong on this rank (no memory, a layout that
  /// does not fit) the exchange tells the other ranks.
  Result<collective::Exchange*> begin(const collective::Bucket& bucket,
                                      const collective::LayoutView& layout);
  /// The exchange that all other ranks begin with a bucket of `layout`, which this rank cannot
  /// bring: all ranks will report `why`. Nothing goes into the residuals.
  Result<collective::Exchange*> begin_failed(uint64_t step, uint32_t index,
                                             const collective::LayoutView& layout, Error why);
  /// Before the first next(): this rank has failed; all ranks will report it.
  void fail(collective::Exchange& exchange, Error error);
  /// `last`: of the batch that it gave last; without it nobody knows how long the network took.
  Result<uint32_t> next(collective::Exchange& exchange, std::span<Step> batch,
                        const Timing& last = {});
  /// Options::now, for a driver's Timing.
  [[nodiscard]] double now() const;
  /// The engine failed: what exchanges in flight have not delivered goes into the residuals, and
  /// from now on begin() fails with `why`: messages of theirs may still be under way and would meet
  /// the next ones.
  void abort(Error why);
  void abort();
  /// An exchange of so many elements may begin: at most Options::window long ones are in flight
  /// and, where that is 2 or more, kMaxWindow of any size. The same on all ranks between the same
  /// begins.
  [[nodiscard]] bool has_place(uint64_t elements) const;
  /// Exchanges that have begun and not ended.
  [[nodiscard]] uint32_t in_flight() const;
  /// From the driver: a sum of this step's gradients that it made without the session.
  void summed(const Timing& timing);
  /// From the driver, for the counters: a bucket travels in so many exchanges; it has waited
  /// for an older exchange because the window was full.
  void count_parts(uint64_t parts);
  void count_window_wait(double seconds);
  /// Frees the buffers of a layout that will not come back, unless it is in flight. Every rank does
  /// it between the same two exchanges: a layout that does come back is enrolled again.
  void release(const collective::LayoutView& layout, DType dtype);

  /// Residuals shall go out with the gradients, an equal part in each of `steps` steps (1 to
  /// kMaxFlushSteps). It suffices that one rank asks: the wish rides in the exchanges of the next
  /// step, and the first draining step is the one after it. Where ranks ask for different numbers,
  /// the bitwise OR of them holds. Nothing happens while a flush is draining, or without feedback.
  Result<void> flush(uint32_t steps);
  /// Multiplies all memory by `factor`: the unit of the gradients has changed.
  void scale_residuals(float factor);

 private:
  /// An exchange in flight.
  struct Running {
    collective::Exchange* exchange = nullptr;
    uint64_t elements = 0;   // of the bucket's layout, whatever exchange this rank has for it
    bool first_next = true;  // no step that carries gradients has been given yet
    bool reports = false;    // it carries them
  };

  Session() = default;
  /// Without the file of a record; `records`: there is one on rank 0.
  static Result<std::unique_ptr<Session>> make(std::string_view spec,
                                               std::vector<collective::Parameter> parameters,
                                               const collective::Options& options,
                                               std::span<const Rule> rules,
                                               std::string_view control, bool records);
  [[nodiscard]] Result<void> check_bucket(const collective::Bucket& bucket,
                                          const collective::LayoutView& layout) const;
  [[nodiscard]] Result<void> check_window(const collective::Bucket& bucket,
                                          const collective::LayoutView& layout) const;
  [[nodiscard]] uint32_t running_long() const noexcept;
  [[nodiscard]] bool has_place_unlocked(uint64_t elements) const noexcept;
  /// Its place among those that run; running_count_ if it does not.
  [[nodiscard]] uint32_t place_of(const collective::Exchange& exchange) const noexcept;
  [[nodiscard]] bool is_running(const collective::Exchange& exchange) const noexcept {
    return place_of(exchange) != running_count_;
  }
  void ended(const collective::Exchange& exchange) noexcept;
  void mark(const collective::Exchange& exchange, bool moves) noexcept;
  void keep(const collective::Bucket& bucket, const collective::LayoutView& layout);
  collective::Exchange* run(collective::Exchange& exchange, const collective::Bucket& bucket,
                            uint64_t elements, std::optional<Error> local_failure);
  [[nodiscard]] Result<void> check_layout(const collective::LayoutView& layout) const;
  void replan_units();
  Result<std::unique_ptr<collective::Exchange>> create_exchange(
      const collective::LayoutView& layout, DType dtype);
  Result<collective::Exchange*> exchange_for(const collective::LayoutView& layout, DType dtype);
  collective::Exchange& messenger(const Error& why, const collective::Bucket& bucket,
                                  const collective::LayoutView& layout);
  Result<void> create_flush_state();
  Result<std::unique_ptr<Session>> successor(const Change& change) const;
  [[nodiscard]] bool cards_agree(Bytes cards) const noexcept;
  void become(Session& next) noexcept;
  [[nodiscard]] uint64_t settings_hash() const noexcept;
  /// In the first step of what was set reports are about settings before it, and behind a step
  /// that a flush sent uncompressed they are about that.
  [[nodiscard]] bool laws_hear() const noexcept {
    return steering_ && observer_.due() && set_since_ != last_step_ && !flushed_before_;
  }
  [[nodiscard]] bool all_dense() const noexcept;
  void set_ways() noexcept;
  void ask_for_release() noexcept;
  Result<void> enter_step(uint64_t step);
  Result<void> steer(uint64_t step);
  void hear_flush(uint32_t steps);
  void count_work(bool encoded, double seconds);
  void sample(const collective::Layout& layout, const collective::Bucket& bucket);
  void count(const collective::Bucket& bucket, uint64_t elements);
  [[nodiscard]] uint32_t parts_to_come() const noexcept;
  [[nodiscard]] uint32_t wish() const noexcept;

  /// Held while anything of the below is read or written; never while an engine runs.
  mutable std::mutex mutex_;
  std::unique_ptr<ThreadPool> pool_;
  std::vector<Rule> rules_;
  std::string control_;   // of the call
  bool reports_ = false;  // asked for, whatever laws need
  std::unique_ptr<collective::Model> model_;
  std::vector<pipeline::UnitCodec> codecs_;  // by class
  feedback::Store store_;
  std::unique_ptr<collective::RankState> state_;
  std::optional<Steering> steering_;
  std::unique_ptr<Recorder> recorder_;
  bool records_ = false;                                       // rank 0 writes a record
  std::vector<bool> moved_;                                    // by class: in this step
  std::vector<std::unique_ptr<collective::Exchange>> spares_;  // as many as may be in flight
  std::vector<std::unique_ptr<collective::Exchange>> exchanges_;
  std::unique_ptr<collective::Counters> counters_ = std::make_unique<collective::Counters>();
  Stats stats_;
  std::array<Running, collective::kMaxWindow> running_{};  // in the order of their begins
  uint32_t running_count_ = 0;
  std::vector<bool> moving_;  // by parameter: in a bucket that is in flight
  std::optional<Error> broken_;
  Observer observer_;
  NormSample norms_;
  bool report_due_ = false;  // no exchange of this step has begun yet
  uint32_t sequence_ = 0;
  uint64_t last_step_ = ~uint64_t{0};
  std::optional<Error> step_failure_;  // of begin_step, until a bucket tells the others
  /// {this rank's wish, draining steps still to come}: part of saved state. Empty without feedback.
  std::span<float> flush_state_;
  bool releasing_ = false;       // end_set has asked for a flush that no rank has heard of yet
  bool flushed_before_ = false;  // the step before was part of a flush, and not all float32 anyway
  uint32_t parts_ = 0;           // of this step: 1/parts of each residual goes out; 0: not draining
  std::unique_ptr<Session> next_;  // of the settings that were prepared
  AgreementCard set_card_{};
  bool setting_ = false;
  uint32_t versions_before_ = 0;  // of all settings before those in force
  std::optional<uint64_t> set_since_;
  bool set_begins_ = false;  // no step has begun with what was set last
};

/// Runs one exchange to its end on an engine, by its run(): for tests. Programs: Window.
Result<void> drive(Session& session, const collective::Bucket& bucket,
                   const collective::LayoutView& layout, Engine& engine);

}  // namespace laconic::session

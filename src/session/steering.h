// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Settings that change while training runs: what policies decide, from when on it holds, and what
// of it is part of saved state. Moves specs; what hangs on them is the session's to plan again.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "collective/exchange/rank_state.h"
#include "collective/exchange/reports.h"
#include "collective/plan/model.h"
#include "control/controller.h"
#include "control/record.h"
#include "feedback/store.h"
#include "laconic/rule.h"

namespace laconic::session {

class Steering {
 public:
  /// Does a text, the call's or a rule's, ask for a policy that moves something? Refuses texts that
  /// are none.
  static Result<bool> wanted(std::string_view control, std::span<const Rule> rules);

  /// Takes all memory that it will ever need and, where a policy moves something, a place in the
  /// saved state. Reads the records that are to be replayed.
  static Result<Steering> create(collective::Model& model, std::string_view control,
                                 std::span<const Rule> rules, feedback::Store& store);

  /// body() with every class at the value that sends most: for taking memory, which body may lack.
  template <class Body>
  auto at_most(collective::Model& model, Body&& body) const {
    struct Back {
      const Steering* steering;
      collective::Model* model;
      ~Back() {
        for (uint32_t c = 0; c < steering->classes_.size(); ++c)
          steering->move(*model, c, steering->classes_[c].value);
      }
    };
    const Back back{this, &model};
    for (uint32_t c = 0; c < classes_.size(); ++c) move(model, c, classes_[c].most);
    return body();
  }

  /// Receives the reports of the first exchange of `step`; empty: none.
  void heard(uint64_t step, std::span<const control::Report> reports) noexcept;
  /// Begins a step: decides by the reports received in the step before, and applies changes that
  /// are due to specs. Returns whether any spec changed. Errors: state_corrupt, state_spec and
  /// state_version of a loaded state, of which nothing was used. `rounds`: collectives so far.
  Result<bool> begin_step(uint64_t step, collective::Model& model, uint64_t rounds = 0);

  /// Sets the collectives and versions of earlier settings.
  void begin_after(uint64_t rounds, uint32_t versions) noexcept {
    rounds_ = rounds;
    versions_before_ = versions;
  }

  /// How a class travels in the step at hand. What turns to float32 begins by sending its
  /// residuals; what is left of them when it turns back stays.
  [[nodiscard]] collective::Way way(uint32_t of) const noexcept {
    return {classes_[of].uncompressed, classes_[of].left};
  }
  /// In the step at hand residuals of some class do.
  [[nodiscard]] bool releases() const noexcept {
    return std::ranges::any_of(classes_, [](const Class& c) { return c.left != 0; });
  }
  /// Steps after this one that release residuals of any class.
  [[nodiscard]] uint32_t release_steps_left() const noexcept;

  // For a record:
  [[nodiscard]] const control::RecordedRun& run() const noexcept { return run_; }
  /// The step that ended when this one began, and what was decided by it; null: there was none.
  [[nodiscard]] const control::RecordedStep* ended() const noexcept {
    return any_ended_ ? &ended_ : nullptr;
  }
  /// The controller's state, if this step began with one that was loaded; else empty.
  [[nodiscard]] std::span<const uint64_t> loaded() const noexcept { return loaded_; }

  /// The same on ranks that have the same settings and will decide the same.
  [[nodiscard]] uint64_t hash() const noexcept { return hash_; }
  [[nodiscard]] uint32_t version() const noexcept { return version_; }
  [[nodiscard]] const control::Counts& counts() const noexcept { return controller_.counts(); }
  struct InForce {
    uint64_t since_step = 0;
    double target_ms = 0;   ///< 0: none yet
    double network_ms = 0;  ///< of the step observed last
    std::string reason;     ///< of the last change, in words; empty: there was none
    bool uncompressed = false;
  };
  [[nodiscard]] InForce in_force(uint32_t of) const;
  [[nodiscard]] const std::string& control(uint32_t of) const noexcept {
    return controller_.text(of);
  }
  /// The same on ranks that will decide the same: of a replay, what is in its file.
  [[nodiscard]] std::string agreed_control(uint32_t of) const;

 private:
  struct Class {
    const Field* field = nullptr;  // null: nothing moves
    double most = 0;
    double value = 0;
    uint64_t since = 0;
    bool uncompressed = false;
    // Decided, and not yet in force:
    double next = 0;
    bool next_uncompressed = false;
    uint32_t parts = 0;
    uint64_t from = 0;  // 0: nothing
    uint32_t left = 0;  // steps, this one included, in which residuals go out
    std::optional<control::Decision> last;
    uint64_t replayed = 0;  // hash of its record
    double first = 0;       // value in the first step
  };

  explicit Steering(control::Controller controller) : controller_(std::move(controller)) {}
  void take_room_for_record(control::RecordedRun run, uint32_t world);
  void move(collective::Model& model, uint32_t of, double value) const;
  void decide(uint64_t rounds);
  void note_settings();
  Result<bool> take_loaded(collective::Model& model);
  Result<void> take_origin(std::span<const uint64_t> words, uint64_t steps);
  void save();
  [[nodiscard]] uint64_t bytes_of(const collective::Model& model) const;
  void set_hash();

  control::Controller controller_;
  std::optional<control::Controller> origin_;  // of the run whose record is replayed
  std::vector<Class> classes_;
  std::vector<control::Report> silent_;  // reports of silent ranks
  std::vector<control::Report> heard_;   // observed_ is made of them
  std::optional<control::Observation> observed_;
  uint64_t steps_ = 0;      // 1 + the step begun last; 0: none
  std::span<float> saved_;  // in the store
  std::vector<float> written_;
  std::vector<uint64_t> words_;
  uint64_t bytes_ = 0;         // a rank receives in the step at hand,
  uint64_t bytes_before_ = 0;  // and in the one before it
  uint64_t hash_ = 0;
  uint32_t version_ = 0;
  uint32_t versions_before_ = 0;
  double network_s_ = 0;
  control::RecordedRun run_;
  control::RecordedStep ended_;
  bool any_ended_ = false;
  std::vector<uint64_t> loaded_;
  uint64_t rounds_ = 0;         // up to the beginning of the step that ended last,
  uint64_t rounds_before_ = 0;  // and in the one before it
};

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The policies of a session's rules: observations in, decisions out. Every rank gets the same
// decisions from the same observations; none travels.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "control/control.h"

namespace laconic::control {

/// The controlled quantities, one per class.
struct Controlled {
  std::string control;         ///< the text
  bool inherited = false;      ///< the call's, not the rule's: "fixed" where nothing can be moved
  std::string spec;            ///< for messages
  std::optional<Range> range;  ///< of the codec's marked field, if it has one
  double first = 0;            ///< of a replay: the value in the first step; 0: the spec's
  std::string still{};         ///< why there is no range; empty: the codec has no such field
  bool was_dense = false;      ///< of a replay: the recorded policy might turn to float32

  bool operator==(const Controlled&) const = default;
};

struct Counts {
  uint64_t changes = 0;
  uint64_t held_steps = 0;  ///< steps whose observation no policy could use
  uint64_t reports_missing = 0;
};

class Controller {
 public:
  /// Refuses texts that are none, bounds that contradict each other, the spec or the codec, and a
  /// control with nothing to move. `recorded` is what `replay` repeats, by step.
  static Result<Controller> create(std::vector<Controlled> rules,
                                   std::vector<Decision> recorded = {});

  /// Once a step, at its beginning; takes no memory. The decisions, at most one per rule, hold from
  /// step seen.step + kDelay on and are valid until the next call.
  std::span<const Decision> observe(const Observation& seen);

  [[nodiscard]] std::size_t rules() const noexcept { return rules_.size(); }
  /// Decided last; the spec's at first.
  [[nodiscard]] double value(std::size_t rule) const noexcept { return places_[rule].value; }
  [[nodiscard]] bool uncompressed(std::size_t rule) const noexcept {
    return places_[rule].uncompressed;
  }
  /// No policy ever leaves these: what memory has to be taken for. None where nothing is moved.
  [[nodiscard]] const std::optional<Range>& bounds(std::size_t rule) const noexcept {
    return bounds_[rule];
  }
  /// May it turn to float32?
  [[nodiscard]] bool dense(std::size_t rule) const noexcept;
  /// The network time that a rule's policy keeps to, in seconds; 0 while it has none.
  [[nodiscard]] double target(std::size_t rule) const noexcept;
  /// The configured text in its canonical form.
  [[nodiscard]] const std::string& text(std::size_t rule) const noexcept {
    return controls_[rule].canonical;
  }
  /// Does any policy move anything?
  [[nodiscard]] bool moves() const noexcept;
  [[nodiscard]] const Counts& counts() const noexcept { return counts_; }

  /// The state as a fixed number of words. load checks all of them and then takes all or none;
  /// `state_spec`: the state of other controls, `state_corrupt`: a state that no policy can have.
  [[nodiscard]] std::size_t state_words() const noexcept;
  void save(std::span<uint64_t> words) const noexcept;
  Result<void> load(std::span<const uint64_t> words);
  /// These words were saved under the same rules and controls.
  [[nodiscard]] bool saved(std::span<const uint64_t> words) const noexcept {
    return words.size() > 1 && words[1] == configuration_;
  }
  /// Goes on where a run is whose decisions this one repeats. Refused, and nothing is taken, where
  /// some rule does not repeat and has another control.
  Result<void> follow(const Controller& recorded);
  /// The decisions of a replay, by step.
  [[nodiscard]] std::span<const Decision> recorded() const noexcept { return recorded_; }

 private:
  struct RuleState {
    double value = 0;
    bool uncompressed = false;
    uint64_t turned = 0;    // the step of the decision that made it so
    std::size_t state = 0;  // its first word in state_
  };

  Controller() = default;
  Result<void> add(std::size_t rule);
  void follow_record(std::size_t rule);
  [[nodiscard]] uint64_t configuration() const;
  [[nodiscard]] bool valid(std::size_t rule, uint64_t value, uint64_t path,
                           std::span<const uint64_t> state) const;
  [[nodiscard]] bool may_turn(uint64_t step) const noexcept;
  [[nodiscard]] std::span<const uint64_t> state_of(std::size_t rule) const noexcept;

  std::vector<Controlled> rules_;
  std::vector<Control> controls_;
  std::vector<std::optional<Range>> bounds_;
  std::vector<RuleState> places_;
  std::vector<uint64_t> state_;
  std::vector<Decision> recorded_;
  std::vector<Decision> decisions_;
  History history_;
  Counts counts_;
  uint64_t configuration_ = 0;
};

/// One line with figures: "topk:ratio=0.01: ratio 0.01 -> 0.005 from step 207: network 143 ms is
/// 2.31 x the target of 62 ms". `what` names the rule.
[[nodiscard]] std::string decision_text(const Decision& decision, std::string_view what,
                                        std::string_view field);

}  // namespace laconic::control

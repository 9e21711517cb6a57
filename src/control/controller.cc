// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "control/controller.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "base/concat.h"
#include "base/field_text.h"
#include "base/hash.h"
#include "base/quoted.h"

namespace laconic::control {
namespace {

constexpr uint64_t kStateVersion = 2;  // also of what policies remember
constexpr std::size_t kHead = 2;       // words: version, configuration
constexpr std::size_t kPerRule = 2;    // words: value, path
constexpr std::size_t kPerClass = 3;   // words of a size of History
constexpr std::size_t kHistory = kPerClass * std::tuple_size_v<decltype(History::classes)>;

/// A rule's path in a word: 0, or 1 and the step of the decision for float32.
uint64_t path_word(bool uncompressed, uint64_t turned) {
  return uncompressed ? 1 | turned << 1U : 0;
}
bool is_path(uint64_t word) { return word == 0 || (word & 1U) != 0; }

Error nothing_to_move(const Controlled& rule) {
  return {
      Errc::unsupported,
      concat({"control ", quoted(rule.control), " has nothing to change: ", quoted(rule.spec), " ",
              rule.still.empty() ? "has no setting that can change during training"
                                 : std::string_view(rule.still)}),
      "omit the control, or use a codec that `laconic list --controls` names"};
}

/// Numbers that moves can be computed with; a record may hold others.
bool sensible(const Range& r) {
  return r.lowest > 0 && r.lowest <= r.min && r.min <= r.start && r.start <= r.max &&
         r.max <= r.highest && r.highest < 1e300;
}

Error corrupt() {
  return {Errc::state_corrupt, "the control state is damaged", "resume from another checkpoint"};
}

Error of_others() {
  return {Errc::state_spec, "the control state was saved under other rules or controls",
          "resume with the control and rules that it was saved with"};
}

/// Three digits are enough for people.
std::string short_text(double x) {
  if (x == 0 || !std::isfinite(x)) return "0";
  double unit = 1;
  while (std::fabs(x) / unit >= 1000) unit *= 10;
  while (std::fabs(x) / unit < 100) unit /= 10;
  return number_text(unit >= 1 ? std::round(x / unit) * unit
                               : std::round(x / unit) / std::round(1 / unit));
}

std::string released(const Decision& d) {
  if (d.parts < 2) return {};
  return concat({", residuals released over ", std::to_string(d.parts), " steps,"});
}

std::string why(const Decision& d) {
  const std::string figures =
      concat({"network ", short_text(d.network_s * 1e3), " ms, ", short_text(d.slowdown),
              " times the target of ", short_text(d.target_s * 1e3), " ms"});
  switch (d.reason) {
    case Reason::slow:
    case Reason::fast:
      return d.target_s > 0 ? figures : concat({"network ", short_text(d.network_s * 1e3), " ms"});
    case Reason::mean:
      return "the floor of the mean";
    case Reason::dense:
      return concat({"float32 fits into the target of ", short_text(d.target_s * 1e3), " ms"});
    case Reason::dense_is_slow:
      return concat({"float32 no longer fits: ", figures});
    case Reason::scheduled:
      return "scheduled";
    case Reason::recorded:
      return "recorded";
    case Reason::held:
      break;
  }
  return "held";
}

}  // namespace

uint32_t release_parts(double ratio) noexcept {
  if (!(ratio > 1)) return 1;
  return static_cast<uint32_t>(std::min<double>(std::ceil(ratio), kMostParts));
}

Result<Controller> Controller::create(std::vector<Controlled> rules,
                                      std::vector<Decision> recorded) {
  Controller made;
  made.rules_ = std::move(rules);
  made.recorded_ = std::move(recorded);
  std::stable_sort(made.recorded_.begin(), made.recorded_.end(),
                   [](const Decision& a, const Decision& b) { return a.step < b.step; });
  for (std::size_t i = 0; i < made.rules_.size(); ++i) {
    if (auto added = made.add(i); !added) return std::move(added).error();
  }
  if (!made.rules_.empty() && !made.moves()) {
    // An inherited control that moves nothing anywhere was not meant.
    for (const Controlled& rule : made.rules_) {
      const auto control = parse_control(rule.control);
      if (rule.inherited && control->policy->info.moves) return nothing_to_move(rule);
    }
  }
  made.decisions_.reserve(made.rules_.size());
  made.configuration_ = made.configuration();
  return made;
}

Result<void> Controller::add(std::size_t rule) {
  const Controlled& given = rules_[rule];
  auto control = parse_control(given.control);
  if (!control) return std::move(control).error();
  if (control->policy->info.moves && !given.range) {
    if (!given.inherited) return nothing_to_move(given);
    control = parse_control("fixed");
  }
  if (given.range && !sensible(*given.range)) {
    return Error{Errc::invalid_argument,
                 concat({"the range of ", quoted(given.range->name), " of ", quoted(given.spec),
                         " is invalid"}),
                 {}};
  }
  std::optional<Range> bounds;
  if (control->policy->info.moves) {
    auto bounded = control->policy->bound(*control, *given.range);
    if (!bounded) return std::move(bounded).error();
    bounds = *bounded;
  }
  const Range range = bounds.value_or(Range{});
  places_.push_back({given.range ? given.range->start : 0, false, 0, state_.size()});
  state_.resize(state_.size() + control->policy->words);
  control->policy->start(*control, range, std::span(state_).subspan(places_[rule].state));
  controls_.push_back(*std::move(control));
  bounds_.push_back(bounds);
  if (bounds) follow_record(rule);
  if (bounds && !controls_[rule].points.empty() && controls_[rule].points[0].first < kDelay) {
    // No decision comes early enough for these.
    for (const auto& [step, value] : controls_[rule].points) {
      if (step == 0) places_[rule].value = value;
    }
  }
  return {};
}

/// A replay goes where the record goes.
void Controller::follow_record(std::size_t rule) {
  if (controls_[rule].file.empty()) return;
  Range& bounds = *bounds_[rule];
  const auto widen = [&](double value) {
    if (!(value >= bounds.lowest && value <= bounds.highest)) return false;
    bounds.min = std::min(bounds.min, value);
    bounds.max = std::max(bounds.max, value);
    return true;
  };
  for (const Decision& d : recorded_) {
    if (d.rule == rule) widen(d.to);
  }
  if (widen(rules_[rule].first)) places_[rule].value = rules_[rule].first;
}

std::span<const Decision> Controller::observe(const Observation& seen) {
  decisions_.clear();
  if (seen.held() && moves()) ++counts_.held_steps;
  counts_.reports_missing += seen.missing;
  if (seen.usable()) history_.add(seen);
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const PolicyTable& policy = *controls_[i].policy;
    if (!bounds_[i] || (policy.info.observes && !seen.usable())) continue;
    RuleState& place = places_[i];
    const Position at{
        controls_[i], *bounds_[i],        history_,           recorded_, static_cast<uint32_t>(i),
        place.value,  place.uncompressed, may_turn(seen.step)};
    const Move move = policy.step(at, std::span(state_).subspan(place.state, policy.words), seen);
    // Whatever a policy or a record asks for.
    const bool number = move.value == move.value;
    const double value =
        number ? std::min(std::max(move.value, bounds_[i]->min), bounds_[i]->max) : place.value;
    if (value == place.value && move.uncompressed == place.uncompressed) continue;
    const bool turns = move.uncompressed && !place.uncompressed;
    const uint32_t parts = !turns            ? 0
                           : move.parts != 0 ? move.parts
                                             : release_parts(seen.residual_ratio);
    decisions_.push_back({seen.step, static_cast<uint32_t>(i), place.value, value,
                          move.uncompressed, move.reason, move.slowdown, seen.network_s,
                          move.target_s, parts});
    place.value = value;
    if (turns) place.turned = seen.step;
    place.uncompressed = move.uncompressed;
    ++counts_.changes;
  }
  return decisions_;
}

/// Whether float32 fits is decided from observations: rules change one after the other, or two
/// would use the same bandwidth. A decision applies kDelay steps later, and is observed one step
/// after that.
bool Controller::may_turn(uint64_t step) const noexcept {
  return std::ranges::none_of(
      places_, [step](const RuleState& p) { return p.uncompressed && step <= p.turned + kDelay; });
}

bool Controller::dense(std::size_t rule) const noexcept {
  if (!bounds_[rule] || bounds_[rule]->dense_bytes == 0) return false;
  if (controls_[rule].file.empty()) return controls_[rule].policy->info.dense;
  return rules_[rule].was_dense || std::ranges::any_of(recorded_, [rule](const Decision& d) {
           return d.rule == rule && d.uncompressed;
         });
}

bool Controller::moves() const noexcept {
  return std::any_of(bounds_.begin(), bounds_.end(), [](const auto& b) { return b.has_value(); });
}

double Controller::target(std::size_t rule) const noexcept {
  return controls_[rule].policy->target(state_of(rule));
}

std::span<const uint64_t> Controller::state_of(std::size_t rule) const noexcept {
  return std::span(state_).subspan(places_[rule].state, controls_[rule].policy->words);
}

/// Hash of the settings that a saved state depends on. Sizes of messages are not included, nor the
/// path of a replayed record.
uint64_t Controller::configuration() const {
  std::string text;
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    if (!controls_[i].file.empty()) {
      text += "replay\n";
      continue;
    }
    text += concat({controls_[i].canonical, "\n"});
    if (!bounds_[i]) continue;
    const Range& r = *bounds_[i];
    text += concat({r.name, " ", number_text(r.start), " ", number_text(r.min), " ",
                    number_text(r.max), "\n"});
  }
  return hash64(text);
}

std::size_t Controller::state_words() const noexcept {
  return kHead + kPerRule * rules_.size() + state_.size() + kHistory;
}

void Controller::save(std::span<uint64_t> words) const noexcept {
  std::size_t at = 0;
  words[at++] = kStateVersion;
  words[at++] = configuration_;
  for (const RuleState& place : places_) {
    words[at++] = std::bit_cast<uint64_t>(place.value);
    words[at++] = path_word(place.uncompressed, place.turned);
  }
  for (const uint64_t word : state_) words[at++] = word;
  for (const History::Class& c : history_.classes) {
    words[at++] = std::bit_cast<uint64_t>(c.seconds);
    words[at++] = std::bit_cast<uint64_t>(c.bytes);
    words[at++] = c.step;
  }
}

bool Controller::valid(std::size_t rule, uint64_t value, uint64_t path,
                       std::span<const uint64_t> state) const {
  const auto x = std::bit_cast<double>(value);
  if (!is_path(path)) return false;
  if (!bounds_[rule]) return path == 0 && x == places_[rule].value;
  const Range& r = *bounds_[rule];
  if (path != 0 && !dense(rule)) return false;
  const bool fits = x >= r.min && x <= r.max && (!r.whole || x == std::floor(x));
  return fits && controls_[rule].policy->valid(controls_[rule], r, state);
}

Result<void> Controller::load(std::span<const uint64_t> words) {
  if (words.size() < kHead || words[0] != kStateVersion) {
    return Error{Errc::state_version, "the control state has another version",
                 "resume with the version that saved it"};
  }
  if (!saved(words)) return of_others();
  if (words.size() != state_words()) return corrupt();
  const auto places = words.subspan(kHead, kPerRule * rules_.size());
  const auto state = words.subspan(kHead + places.size(), state_.size());
  const auto history = words.subspan(kHead + places.size() + state.size());
  History loaded;
  for (std::size_t i = 0; i < loaded.classes.size(); ++i) {
    loaded.classes[i] = {std::bit_cast<double>(history[kPerClass * i]),
                         std::bit_cast<double>(history[kPerClass * i + 1]),
                         history[kPerClass * i + 2]};
  }
  bool fine = loaded.valid();
  for (std::size_t i = 0; fine && i < rules_.size(); ++i) {
    fine = valid(i, places[kPerRule * i], places[kPerRule * i + 1],
                 state.subspan(places_[i].state, controls_[i].policy->words));
  }
  if (!fine) return corrupt();
  history_ = loaded;
  std::copy(state.begin(), state.end(), state_.begin());
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    places_[i].value = std::bit_cast<double>(places[kPerRule * i]);
    places_[i].uncompressed = places[kPerRule * i + 1] != 0;
    places_[i].turned = places[kPerRule * i + 1] >> 1U;
  }
  return {};
}

Result<void> Controller::follow(const Controller& recorded) {
  if (recorded.rules() != rules()) return of_others();
  const auto repeats = [&](std::size_t i) { return !controls_[i].file.empty(); };
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const bool same = recorded.text(i) == text(i) && recorded.bounds_[i] == bounds_[i];
    if (!repeats(i) && !same) return of_others();
  }
  for (std::size_t i = 0; i < rules_.size(); ++i) {
    const RuleState& there = recorded.places_[i];
    places_[i] = {there.value, there.uncompressed, there.turned, places_[i].state};
    if (repeats(i)) continue;
    std::ranges::copy(recorded.state_of(i),
                      state_.begin() + static_cast<std::ptrdiff_t>(places_[i].state));
  }
  history_ = recorded.history_;
  return {};
}

std::string decision_text(const Decision& d, std::string_view what, std::string_view field) {
  const std::string change =
      d.uncompressed ? concat({"uncompressed", released(d)})
      : d.reason == Reason::dense_is_slow
          ? concat({field, " ", short_text(d.to)})
          : concat({field, " ", short_text(d.from), " -> ", short_text(d.to)});
  return concat({what, ": ", change, " from step ", std::to_string(d.step + kDelay), ": ", why(d)});
}

}  // namespace laconic::control

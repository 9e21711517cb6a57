// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/steering.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/concat.h"
#include "base/hash.h"
#include "base/hex.h"
#include "control/replay.h"
#include "control/state_floats.h"
#include "laconic/version.h"
#include "session/recorder.h"

namespace laconic::session {
namespace {

constexpr uint64_t kHead = 2;      // words: version, steps
constexpr uint64_t kPerClass = 5;  // words: value, since, next, from, path

/// The part of a class's state that is saved in one word.
struct Path {
  bool now = false;   // uncompressed
  bool next = false;  // the same for the next value
  uint32_t parts = 0;
  uint32_t left = 0;

  [[nodiscard]] uint64_t word() const noexcept {
    return (now ? 1U : 0U) | (next ? 2U : 0U) | uint64_t{parts} << 2U | uint64_t{left} << 32U;
  }
  static Path of(uint64_t word) noexcept {
    return {(word & 1U) != 0, (word & 2U) != 0, static_cast<uint32_t>(word) >> 2U,
            static_cast<uint32_t>(word >> 32U)};
  }
  [[nodiscard]] bool valid() const noexcept {
    return parts <= control::kMostParts && left <= (now ? control::kMostParts : 0);
  }
};

/// NaN where it says nothing.
template <class M>
double figure(M measured) {
  return measured.missing() ? std::numeric_limits<double>::quiet_NaN() : measured.value();
}

control::RecordedRun run_of(const collective::Model& model, std::span<const Rule> rules,
                            const std::vector<control::Controlled>& controlled) {
  control::RecordedRun run{
      LACONIC_VERSION_STRING, hex_digits(model.model_hash()), model.options().world, {}, {}};
  for (uint32_t c = 0; c < model.classes(); ++c) {
    run.rules.push_back({.match = c == 0 ? std::string() : rules[c - 1].match,
                         .spec = controlled[c].spec,
                         .control = controlled[c].control,
                         .inherited = controlled[c].inherited,
                         .range = controlled[c].range});
  }
  for (uint32_t p = 0; p < model.parameters().size(); ++p) {
    auto& rule = run.rules[model.class_of(p)];
    ++rule.parameters;
    rule.elements += model.whole()[p].count();
  }
  return run;
}

/// Bytes that a rank receives for a class whose control sends the most within its bounds; 0: none.
uint64_t most_bytes(collective::Model& model, uint32_t of, const Field& field,
                    const control::Controlled& made) {
  const auto control = control::parse_control(made.control);
  if (!control || !control->policy->info.moves) return 0;
  const auto bounds = control->policy->bound(*control, *made.range);
  if (!bounds) return 0;
  const double now = field.get(model.spec(of).params());
  model.move(of, field, control::most(*bounds));
  const uint64_t bytes = collective::bytes_of_class(model, of);
  model.move(of, field, now);
  return bytes;
}

/// The largest value, a ratio within 1 %, at which the planner would still gather a class's
/// payloads, as it does at the start; with larger ones owners compute the means, and send less.
double most_gathered(collective::Model& model, uint32_t of, const Field& field,
                     const control::Range& range) {
  const auto gathers = [&](double value) {
    model.move(of, field, value);
    return collective::would_gather(model, of);
  };
  double fits = range.start;
  double above = range.max;
  if (gathers(above)) fits = above;
  while (range.whole ? above > fits + 1 : above > 1.01 * fits) {
    const double middle = range.whole ? std::floor((fits + above) / 2) : std::sqrt(fits * above);
    (gathers(middle) ? fits : above) = middle;
  }
  model.move(of, field, range.start);
  return fits;
}

/// The decisions of the records that `run` names.
struct Records {
  std::vector<control::Decision> decisions;
  std::vector<double> first;               // by class
  std::vector<uint64_t> hashes;            // by class; 0: it replays none
  std::vector<control::Controlled> rules;  // as they were recorded; none: by several records
};
Result<Records> read_records(const control::RecordedRun& run) {
  Records records{{}, std::vector<double>(run.rules.size()), {}, {}};
  records.hashes.resize(run.rules.size());
  uint64_t only = 0;
  bool several = false;
  for (uint32_t c = 0; c < run.rules.size(); ++c) {
    const auto parsed = control::parse_control(run.rules[c].control);
    if (!parsed || parsed->file.empty()) continue;  // whose trouble others tell
    const auto text = read_whole(parsed->file);
    if (!text) return text.error();
    const auto named = [&](Error why) {
      why.message = "record '" + parsed->file + "': " + why.message;
      return why;
    };
    const auto record = control::read_record(*text);
    if (!record) return named(record.error());
    const auto replayed = control::decisions_for(*record, run);
    if (!replayed) return named(replayed.error());
    records.hashes[c] = hash64(*text);
    several = several || (only != 0 && only != records.hashes[c]);
    only = records.hashes[c];
    records.rules = replayed->rules;
    if (!replayed->first.empty()) records.first[c] = replayed->first[c];
    std::ranges::copy_if(replayed->decisions, std::back_inserter(records.decisions),
                         [c](const control::Decision& d) { return d.rule == c; });
  }
  if (several) records.rules.clear();
  return records;
}

/// Might its recorded policy turn to float32?
bool may_be_dense(const std::vector<control::Controlled>& recorded, uint32_t of) {
  if (of >= recorded.size()) return false;
  const auto control = control::parse_control(recorded[of].control);
  return control && control->policy->info.dense;
}

/// The controller of the recorded run: it reads the states that the run saved.
std::optional<control::Controller> origin_of(const Records& records) {
  if (records.rules.empty()) return {};
  auto made = control::Controller::create(records.rules, records.decisions);
  if (!made) return {};
  return *std::move(made);
}

/// A class's: its rule's, or else the call's.
std::string_view text_of(uint32_t of, std::string_view control, std::span<const Rule> rules) {
  const bool own = of != 0 && !rules[of - 1].control.empty();
  const std::string_view text = own ? std::string_view(rules[of - 1].control) : control;
  return text.empty() ? std::string_view("fixed") : text;
}

/// Why a codec's setting that may change in general may not change here.
std::string why_still(const collective::Model& model, uint32_t of) {
  const CodecTable& codec = model.spec(of).codec();
  if (std::ranges::none_of(codec.fields, [](const Field& f) { return f.actuator.marked; })) {
    return {};
  }
  if (codec.table != nullptr) return "cannot change its keys: they determine how elements add";
  if (!model.has_units(of)) return "compresses none of these parameters";
  return concat({"would need other rounds or state with other settings under ",
                 collective::strategy_name(model.choice(of).strategy)});
}

}  // namespace

Result<bool> Steering::wanted(std::string_view control, std::span<const Rule> rules) {
  bool moves = false;
  for (uint32_t c = 0; c <= rules.size(); ++c) {
    const auto parsed = control::parse_control(text_of(c, control, rules));
    if (!parsed) return parsed.error();
    moves = moves || parsed->policy->info.moves;
  }
  return moves;
}

Result<Steering> Steering::create(collective::Model& model, std::string_view control,
                                  std::span<const Rule> rules, feedback::Store& store) {
  const uint32_t world = model.options().world;
  std::vector<control::Controlled> controlled;
  std::vector<Class> classes(model.classes());
  for (uint32_t c = 0; c < model.classes(); ++c) {
    control::Controlled made;
    made.control = text_of(c, control, rules);
    made.inherited = c == 0 || rules[c - 1].control.empty();
    made.spec = model.spec(c).canonical();
    if (const Field* field = model.movable(c); field != nullptr && model.has_units(c)) {
      const bool gathers = model.choice(c).strategy == collective::StrategyKind::gather_all;
      made.range =
          control::range_of(*field, field->get(model.spec(c).params()), gathers ? world : 1);
      if (gathers && made.range->sends == Sends::more)
        made.range->max = most_gathered(model, c, *field, *made.range);
      made.range->dense_bytes = collective::dense_bytes_of_class(model, c);
      made.range->most_bytes = most_bytes(model, c, *field, made);
      classes[c].field = field;
    } else {
      made.still = why_still(model, c);
    }
    controlled.push_back(std::move(made));
  }
  control::RecordedRun run = run_of(model, rules, controlled);
  auto records = read_records(run);
  if (!records) return std::move(records).error();
  for (uint32_t c = 0; c < model.classes(); ++c) {
    controlled[c].first = records->first[c];
    controlled[c].was_dense = records->hashes[c] != 0 && may_be_dense(records->rules, c);
  }
  auto origin = origin_of(*records);
  auto controller =
      control::Controller::create(std::move(controlled), std::move(records->decisions));
  if (!controller) return std::move(controller).error();
  Steering steering(*std::move(controller));
  steering.origin_ = std::move(origin);
  steering.take_room_for_record(std::move(run), world);
  for (uint32_t c = 0; c < model.classes(); ++c) {
    classes[c].replayed = records->hashes[c];
    const auto& bounds = steering.controller_.bounds(c);
    if (!bounds) classes[c].field = nullptr;
    if (!bounds) continue;
    classes[c].most = control::most(*bounds);
    classes[c].value = classes[c].first = steering.controller_.value(c);
    model.limit(c, *classes[c].field, bounds->min, bounds->max);
    if (steering.controller_.dense(c)) model.open_dense(c);
  }
  steering.classes_ = std::move(classes);
  for (uint32_t c = 0; c < model.classes(); ++c)
    steering.move(model, c, steering.classes_[c].value);
  steering.silent_.resize(world);
  steering.bytes_ = steering.bytes_of(model);
  if (!steering.controller_.moves()) return steering;
  const size_t own = kHead + kPerClass * model.classes();
  const size_t theirs = steering.origin_ ? steering.origin_->state_words() : 0;
  steering.words_.resize(own + std::max(steering.controller_.state_words(), theirs));
  steering.loaded_.reserve(steering.controller_.state_words());
  auto saved = store.add(feedback::StateKind::codec_state, "control/laws",
                         control::kFloatsPerWord * steering.words_.size());
  if (!saved) return std::move(saved).error();
  steering.saved_ = *saved;
  steering.written_.resize(saved->size());
  steering.save();
  return steering;
}

void Steering::take_room_for_record(control::RecordedRun run, uint32_t world) {
  run_ = std::move(run);
  heard_.reserve(world);
  ended_.reports.reserve(world);
  ended_.settings.resize(run_.rules.size());
  ended_.decisions.reserve(run_.rules.size());
}

void Steering::move(collective::Model& model, uint32_t of, double value) const {
  if (classes_[of].field != nullptr) model.move(of, *classes_[of].field, value);
}

uint64_t Steering::bytes_of(const collective::Model& model) const {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < classes_.size(); ++c) {
    bytes += classes_[c].uncompressed ? collective::dense_bytes_of_class(model, c)
                                      : collective::bytes_of_class(model, c);
  }
  return bytes;
}

void Steering::heard(uint64_t step, std::span<const control::Report> reports) noexcept {
  const std::span<const control::Report> silent = silent_;
  const auto said =
      reports.empty() ? silent : reports.first(std::min(reports.size(), silent.size()));
  observed_ = control::observe(step, said, bytes_before_);
  heard_.assign(said.begin(), said.end());
}

/// In force in the step that has ended.
void Steering::note_settings() {
  ended_.version = versions_before_ + version_;
  for (size_t c = 0; c < classes_.size(); ++c)
    ended_.settings[c] = {classes_[c].value, classes_[c].uncompressed};
}

/// Decides by the step before; policies that use only step numbers work without reports.
void Steering::decide(uint64_t rounds) {
  any_ended_ = steps_ != 0;
  const uint64_t rounds_before = rounds_before_;
  rounds_before_ = rounds - rounds_;
  rounds_ = rounds;
  if (!any_ended_) return;
  if (!observed_) {
    heard_.clear();
    observed_ = control::observe(steps_ - 1, std::span<const control::Report>(), bytes_before_);
  }
  if (observed_->usable()) network_s_ = observed_->network_s;
  ended_.step = observed_->step;
  ended_.bytes = observed_->bytes;
  ended_.rounds = static_cast<uint32_t>(rounds_before);
  ended_.reports.clear();
  for (const control::Report& r : heard_) {
    ended_.reports.push_back({figure(r.network), figure(r.encode), figure(r.decode), figure(r.step),
                              figure(r.residual)});
  }
  const auto decisions = controller_.observe(*observed_);
  ended_.decisions.assign(decisions.begin(), decisions.end());
  for (const control::Decision& d : decisions) {
    Class& c = classes_[d.rule];
    c.next = d.to;
    c.next_uncompressed = d.uncompressed;
    c.parts = d.parts;
    c.from = d.step + control::kDelay;
    c.last = d;
  }
  observed_.reset();
}

Result<bool> Steering::begin_step(uint64_t step, collective::Model& model, uint64_t rounds) {
  loaded_.clear();
  any_ended_ = false;
  auto loaded = take_loaded(model);
  if (!loaded) return loaded;
  note_settings();
  bool any = *loaded;
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    if (c.left != 0) --c.left;
    if (c.from == 0 || c.from > step) continue;
    c.from = 0;
    if (c.next == c.value && c.next_uncompressed == c.uncompressed) continue;
    if (c.next_uncompressed != c.uncompressed) c.left = c.next_uncompressed ? c.parts : 0;
    c.uncompressed = c.next_uncompressed;
    c.value = c.next;
    c.since = step;
    move(model, i, c.value);
    any = true;
  }
  decide(rounds);  // after the changes due: decisions apply later
  steps_ = step + 1;
  bytes_before_ = bytes_;
  if (any) {
    ++version_;
    bytes_ = bytes_of(model);
  }
  save();
  return any;
}

uint32_t Steering::release_steps_left() const noexcept {
  uint32_t most = 0;
  for (const Class& c : classes_) most = std::max(most, c.left);
  return most == 0 ? 0 : most - 1;
}

/// Hash of all saved state: ranks that loaded different states would decide differently.
void Steering::set_hash() { hash_ = hash64(std::span<const uint64_t>(words_)); }

/// Saved state is written into the store by others: what lies there is then not what was left
/// there.
Result<bool> Steering::take_loaded(collective::Model& model) {
  if (std::ranges::equal(saved_, written_)) return false;
  const Error corrupt{Errc::state_corrupt, "the state of the control is damaged",
                      "resume from another checkpoint"};
  if (!control::floats_to_words(saved_, words_)) return corrupt;
  const size_t own = kHead + kPerClass * classes_.size();
  const auto mine = std::span(words_).first(own);
  const auto of_laws = std::span(words_).subspan(own);
  const bool recorded = origin_ && !controller_.saved(of_laws) && origin_->saved(of_laws);
  if (recorded) {
    if (auto ok = take_origin(of_laws, mine[1]); !ok) return std::move(ok).error();
  }
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = mine.subspan(kHead + kPerClass * i, kPerClass);
    const auto inside = [&](uint64_t word) {
      const auto value = std::bit_cast<double>(word);
      const auto& b = controller_.bounds(i);
      return b ? value >= b->min && value <= b->max : word == 0;
    };
    const Path path = Path::of(at[4]);
    const bool closed = (path.now || path.next) && !controller_.dense(i);
    if (!inside(at[0]) || (at[3] != 0 && !inside(at[2])) || closed || !path.valid()) return corrupt;
  }
  const auto state = of_laws.first(controller_.state_words());
  if (auto ok = recorded ? controller_.follow(*origin_) : controller_.load(state); !ok)
    return std::move(ok).error();
  controller_.save(state);
  loaded_.assign(state.begin(), state.end());
  version_ = static_cast<uint32_t>(mine[0]);
  steps_ = mine[1];
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = mine.subspan(kHead + kPerClass * i, kPerClass);
    Class& c = classes_[i];
    c.value = std::bit_cast<double>(at[0]);
    c.since = at[1];
    c.next = std::bit_cast<double>(at[2]);
    c.from = at[3];
    const Path path = Path::of(at[4]);
    c.uncompressed = path.now;
    c.next_uncompressed = path.next;
    c.parts = path.parts;
    c.left = path.left;
    c.last.reset();
    move(model, i, c.value);
  }
  observed_.reset();
  bytes_ = bytes_of(model);
  return true;
}

/// Takes the state of a run whose record is replayed, saved when `steps` steps had begun: its
/// decisions up to then must match the record.
Result<void> Steering::take_origin(std::span<const uint64_t> words, uint64_t steps) {
  if (auto ok = origin_->load(words.first(origin_->state_words())); !ok) return ok;
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    if (classes_[i].replayed == 0 || !controller_.bounds(i)) continue;
    double value = classes_[i].first;
    bool uncompressed = false;
    for (const control::Decision& d : controller_.recorded()) {
      if (d.rule != i || d.step + 1 >= steps) continue;
      value = d.to;
      uncompressed = d.uncompressed;
    }
    if (origin_->value(i) == value && origin_->uncompressed(i) == uncompressed) continue;
    return Error{Errc::state_spec, "the state was not saved in the recorded run",
                 "replay the record of the run that saved it, or start from the beginning"};
  }
  return {};
}

void Steering::save() {
  if (saved_.empty()) return;  // nothing moves
  const size_t own = kHead + kPerClass * classes_.size();
  std::fill(words_.begin(), words_.end(), uint64_t{0});
  words_[0] = version_;
  words_[1] = steps_;
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = std::span(words_).subspan(kHead + kPerClass * i, kPerClass);
    const Class& c = classes_[i];
    at[0] = std::bit_cast<uint64_t>(c.value);
    at[1] = c.since;
    at[2] = std::bit_cast<uint64_t>(c.next);
    at[3] = c.from;
    at[4] = Path{c.uncompressed, c.next_uncompressed, c.parts, c.left}.word();
  }
  controller_.save(std::span(words_).subspan(own, controller_.state_words()));
  set_hash();
  control::words_to_floats(words_, saved_);
  std::ranges::copy(saved_, written_.begin());
}

std::string Steering::agreed_control(uint32_t of) const {
  const uint64_t hash = classes_[of].replayed;
  return hash == 0 ? controller_.text(of) : concat({"replay:#", hex_digits(hash)});
}

Steering::InForce Steering::in_force(uint32_t of) const {
  const Class& c = classes_[of];
  InForce found;
  found.since_step = c.since;
  found.uncompressed = c.uncompressed;
  found.target_ms = 1e3 * controller_.target(of);
  found.network_ms = 1e3 * network_s_;
  if (c.last && c.field != nullptr)
    found.reason = control::decision_text(*c.last, controller_.text(of), c.field->name);
  return found;
}

}  // namespace laconic::session

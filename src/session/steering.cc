// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/steering.h"

#include <algorithm>
#include <bit>

#include "base/hash.h"
#include "control/state_floats.h"

namespace laconic::session {
namespace {

constexpr uint64_t kHead = 2;      // words: version, steps
constexpr uint64_t kPerClass = 4;  // words: value, since, next, from

/// A class's: its rule's, or else the call's.
std::string_view text_of(uint32_t of, std::string_view control, std::span<const Rule> rules) {
  const bool own = of != 0 && !rules[of - 1].control.empty();
  const std::string_view text = own ? std::string_view(rules[of - 1].control) : control;
  return text.empty() ? std::string_view("fixed") : text;
}

}  // namespace

Result<bool> Steering::wanted(std::string_view control, std::span<const Rule> rules) {
  bool moves = false;
  for (uint32_t c = 0; c <= rules.size(); ++c) {
    const auto parsed = control::parse_control(text_of(c, control, rules));
    if (!parsed) return parsed.error();
    if (!parsed->file.empty()) {
      return Error{Errc::unsupported,
                   "control replay: this version replays records with laconic replay",
                   "laconic replay RUN.jsonl"};
    }
    moves = moves || parsed->law->info.moves;
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
      classes[c].field = field;
    }
    controlled.push_back(std::move(made));
  }
  auto controller = control::Controller::create(std::move(controlled));
  if (!controller) return std::move(controller).error();
  Steering steering(*std::move(controller));
  for (uint32_t c = 0; c < model.classes(); ++c) {
    const auto& bounds = steering.controller_.bounds(c);
    if (!bounds) classes[c].field = nullptr;
    if (!bounds) continue;
    classes[c].most = control::most(*bounds);
    classes[c].value = steering.controller_.value(c);
    model.limit(c, *classes[c].field, bounds->min, bounds->max);
  }
  steering.classes_ = std::move(classes);
  for (uint32_t c = 0; c < model.classes(); ++c)
    steering.move(model, c, steering.classes_[c].value);
  steering.silent_.resize(world);
  steering.words_.resize(steering.controller_.state_words() + kHead + kPerClass * model.classes());
  auto saved = store.add(feedback::StateKind::codec_state, "control/laws",
                         control::kFloatsPerWord * steering.words_.size());
  if (!saved) return std::move(saved).error();
  steering.saved_ = *saved;
  steering.written_.resize(saved->size());
  steering.bytes_ = steering.bytes_of(model);
  steering.set_hash();
  steering.save();
  return steering;
}

void Steering::move(collective::Model& model, uint32_t of, double value) const {
  if (classes_[of].field != nullptr) model.move(of, *classes_[of].field, value);
}

uint64_t Steering::bytes_of(const collective::Model& model) const {
  uint64_t bytes = 0;
  for (uint32_t c = 0; c < classes_.size(); ++c) bytes += model.bytes_of_class(c);
  return bytes;
}

void Steering::heard(uint64_t step, std::span<const control::Report> reports) noexcept {
  const std::span<const control::Report> silent = silent_;
  observed_ = control::observe(step, reports.empty() ? silent : reports, bytes_before_);
}

/// By the step before; laws that look at steps alone go on where nobody reports.
void Steering::decide() {
  if (steps_ == 0) return;
  if (!observed_) {
    observed_ = control::observe(steps_ - 1, std::span<const control::Report>(), bytes_before_);
  }
  if (observed_->usable()) network_s_ = observed_->network_s;
  for (const control::Decision& d : controller_.observe(*observed_)) {
    Class& c = classes_[d.rule];
    c.next = d.to;
    c.from = d.step + control::kDelay;
    c.last = d;
  }
  observed_.reset();
}

Result<bool> Steering::begin_step(uint64_t step, collective::Model& model,
                                  std::vector<bool>& moved) {
  std::fill(moved.begin(), moved.end(), false);
  auto loaded = take_loaded(model, moved);
  if (!loaded) return loaded;
  bool any = *loaded;
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    Class& c = classes_[i];
    if (c.from == 0 || c.from > step) continue;
    c.from = 0;
    if (c.next == c.value) continue;
    c.value = c.next;
    c.since = step;
    move(model, i, c.value);
    moved[i] = any = true;
  }
  decide();  // behind what is due: it holds later
  steps_ = step + 1;
  bytes_before_ = bytes_;
  if (any) {
    ++version_;
    bytes_ = bytes_of(model);
    set_hash();
  }
  save();
  return any;
}

void Steering::set_hash() {
  hash_ = 1;
  for (const Class& c : classes_) {
    const std::array<uint64_t, 2> words{hash_, std::bit_cast<uint64_t>(c.value)};
    hash_ = hash64(Bytes(reinterpret_cast<const uint8_t*>(words.data()), sizeof words));
  }
}

/// Saved state is written into the store by others: what lies there is then not what was left
/// there.
Result<bool> Steering::take_loaded(collective::Model& model, std::vector<bool>& moved) {
  if (std::ranges::equal(saved_, written_)) return false;
  const Error corrupt{Errc::state_corrupt, "the state of the control is damaged",
                      "resume from another checkpoint"};
  if (!control::floats_to_words(saved_, words_)) return corrupt;
  const size_t own = words_.size() - controller_.state_words();
  const auto mine = std::span(words_).first(own);
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = mine.subspan(kHead + kPerClass * i, kPerClass);
    const auto inside = [&](uint64_t word) {
      const auto value = std::bit_cast<double>(word);
      const auto& b = controller_.bounds(i);
      return b ? value >= b->min && value <= b->max : word == 0;
    };
    if (!inside(at[0]) || (at[3] != 0 && !inside(at[2]))) return corrupt;
  }
  if (auto ok = controller_.load(std::span(words_).subspan(own)); !ok) return std::move(ok).error();
  version_ = static_cast<uint32_t>(mine[0]);
  steps_ = mine[1];
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = mine.subspan(kHead + kPerClass * i, kPerClass);
    Class& c = classes_[i];
    c.value = std::bit_cast<double>(at[0]);
    c.since = at[1];
    c.next = std::bit_cast<double>(at[2]);
    c.from = at[3];
    c.last.reset();
    if (c.field == nullptr) continue;
    move(model, i, c.value);
    moved[i] = true;
  }
  observed_.reset();
  bytes_ = bytes_of(model);
  set_hash();
  return true;
}

void Steering::save() {
  const size_t own = words_.size() - controller_.state_words();
  words_[0] = version_;
  words_[1] = steps_;
  for (uint32_t i = 0; i < classes_.size(); ++i) {
    const auto at = std::span(words_).subspan(kHead + kPerClass * i, kPerClass);
    const Class& c = classes_[i];
    at[0] = std::bit_cast<uint64_t>(c.value);
    at[1] = c.since;
    at[2] = std::bit_cast<uint64_t>(c.next);
    at[3] = c.from;
  }
  controller_.save(std::span(words_).subspan(own));
  control::words_to_floats(words_, saved_);
  std::ranges::copy(saved_, written_.begin());
}

Steering::InForce Steering::in_force(uint32_t of) const {
  const Class& c = classes_[of];
  InForce found;
  found.since_step = c.since;
  found.target_ms = 1e3 * controller_.target(of);
  found.network_ms = 1e3 * network_s_;
  if (c.last && c.field != nullptr)
    found.reason = control::decision_text(*c.last, controller_.text(of), c.field->name);
  return found;
}

}  // namespace laconic::session

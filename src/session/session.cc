// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/session.h"

#include <algorithm>
#include <new>
#include <utility>

#include "collective/exchange/strategy_parts.h"
#include "control/rules.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

/// A number of steps in the flush state; anything else there (it can be loaded) counts as none.
uint32_t flush_number(float value) {
  const auto most = static_cast<float>(kMaxFlushSteps);
  return value >= 1.0F && value <= most ? static_cast<uint32_t>(value) : 0;
}

/// The call's, then those of the rules. A rule with a spec of its own leaves the strategy to the
/// planner.
Result<std::vector<collective::Setting>> settings_of(std::string_view text,
                                                     std::span<const Rule> rules,
                                                     collective::StrategyKind strategy) {
  auto spec = Spec::parse(text);
  if (!spec) return std::move(spec).error();
  std::vector<collective::Setting> settings{{*std::move(spec), strategy}};
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].spec.empty()) {
      settings.push_back(settings.front());
      continue;
    }
    auto own = Spec::parse(rules[i].spec);
    if (!own) {
      Error error = std::move(own).error();
      error.message = "rule " + std::to_string(i + 1) + ": " + error.message;
      return error;
    }
    settings.push_back({*std::move(own), collective::StrategyKind::automatic});
  }
  return settings;
}

Result<std::vector<uint32_t>> classes_of(std::span<const Rule> rules,
                                         const std::vector<collective::Parameter>& parameters) {
  std::vector<std::string_view> names;
  std::vector<uint64_t> elements;
  for (const collective::Parameter& p : parameters) {
    names.push_back(p.name);
    elements.push_back(p.count());
  }
  return control::classes_of(rules, names, elements);
}

bool is_long(uint64_t elements) noexcept { return elements > collective::kShortElements; }

/// Exchanges of any size; of long ones as many as the window says.
uint32_t most_in_flight(uint32_t window) noexcept {
  return window > 1 ? collective::kMaxWindow : 1;
}

/// The same rules without laws.
std::vector<Rule> fixed(std::span<const Rule> rules) {
  std::vector<Rule> still(rules.begin(), rules.end());
  for (Rule& rule : still) rule.control.clear();
  return still;
}

}  // namespace

Session::~Session() = default;

Result<std::unique_ptr<Session>> Session::create(std::string_view text,
                                                 std::vector<collective::Parameter> parameters,
                                                 const collective::Options& options,
                                                 std::span<const Rule> rules,
                                                 std::string_view control,
                                                 std::string_view record) {
  auto made = make(text, std::move(parameters), options, rules, control, !record.empty());
  if (!made || record.empty() || options.rank != 0) return made;
  auto recorder = Recorder::open(std::string(record), (*made)->steering_->run());
  if (!recorder) return std::move(recorder).error();
  (*made)->recorder_ = *std::move(recorder);
  return made;
}

Result<std::unique_ptr<Session>> Session::make(std::string_view text,
                                               std::vector<collective::Parameter> parameters,
                                               const collective::Options& options,
                                               std::span<const Rule> rules,
                                               std::string_view control, bool records) {
  if (options.window == 0 || options.window > collective::kMaxWindow) {
    return Error{Errc::value_out_of_range,
                 "window: expected 1 to " + std::to_string(collective::kMaxWindow) + ", found " +
                     std::to_string(options.window),
                 "2 overlaps encoding and wire, 1 exchanges one after the other"};
  }
  auto settings = settings_of(text, rules, options.strategy);
  if (!settings) return std::move(settings).error();
  auto class_of = classes_of(rules, parameters);
  if (!class_of) return std::move(class_of).error();
  std::unique_ptr<Session> session(new Session());
  session->rules_.assign(rules.begin(), rules.end());
  session->control_ = control;
  session->reports_ = options.reports;
  auto steers = Steering::wanted(control, rules);
  if (!steers) return steers.error();
  session->records_ = records;
  *steers = *steers || session->records_;  // without a law, too, it holds what ranks report
  collective::Options mine = options;
  mine.reports = options.world > 1 && (options.reports || *steers);
  auto model = collective::Model::create(*std::move(settings), *std::move(class_of),
                                         std::move(parameters), mine);
  if (!model) return std::move(model).error();
  session->model_ = std::make_unique<collective::Model>(*std::move(model));
  if (options.threads > 1) session->pool_ = std::make_unique<ThreadPool>(options.threads);
  for (uint32_t c = 0; c < session->model_->classes(); ++c)
    session->codecs_.emplace_back(session->model_->spec(c), best_isa(), session->pool_.get());
  const auto bind = [&] {
    return collective::RankState::create(*session->model_, session->codecs_, session->store_);
  };
  session->moved_.resize(session->model_->classes());
  if (*steers) {
    const bool alone = session->model_->alone();  // nothing there for a law to move
    auto steering = alone ? Steering::create(*session->model_, {}, fixed(rules), session->store_)
                          : Steering::create(*session->model_, control, rules, session->store_);
    if (!steering) return std::move(steering).error();
    session->steering_.emplace(*std::move(steering));
  }
  auto state = *steers ? session->steering_->at_most(*session->model_, bind) : bind();
  if (!state) return std::move(state).error();
  session->state_ = *std::move(state);
  session->moving_.resize(session->model_->parameters().size());
  if (*steers) {
    session->state_->set_settings(session->settings_hash());
    session->replan_units();
  }
  if (mine.reports) session->norms_ = NormSample(*session->state_);
  if (auto ok = session->create_flush_state(); !ok) return std::move(ok).error();
  for (uint32_t i = 0; i < most_in_flight(options.window); ++i) {
    auto spare = collective::Exchange::create_spare(*session->state_, *session->counters_);
    if (!spare) return std::move(spare).error();
    session->spares_.push_back(*std::move(spare));
  }
  return session;
}

feedback::StateHeader Session::state_header() const {
  const auto& options = model_->options();
  return {feedback::kStateVersion, options.rank,        options.world,
          model_->model_hash(),    model_->agreement(), model_->configured()};
}

Result<void> Session::create_flush_state() {
  if (!model_->feedback()) return {};
  auto values = store_.add(feedback::StateKind::codec_state, "state/flush", 2);
  if (!values) return std::move(values).error();
  flush_state_ = *values;
  return {};
}

Result<void> Session::check_layout(const collective::LayoutView& layout) const {
  const auto& parameters = model_->parameters();
  if (layout.parameters.size() != layout.offsets.size())
    return Error{Errc::invalid_argument,
                 "bucket: expected " + std::to_string(layout.parameters.size()) +
                     " offsets, found " + std::to_string(layout.offsets.size()),
                 "one offset for each parameter"};
  for (size_t i = 0; i < layout.parameters.size(); ++i) {
    uint64_t end = 0;
    if (layout.parameters[i] >= parameters.size() ||
        !checked_add(layout.offsets[i], parameters[layout.parameters[i]].count(), &end) ||
        end > layout.elements) {
      return Error{Errc::shape_unsupported,
                   "bucket: entry " + std::to_string(i) +
                       " lies outside the buffer or names no parameter of the attached model",
                   "attach again after the model has changed"};
    }
  }
  return {};
}

/// After specs have moved.
void Session::replan_units() {
  for (uint32_t c = 0; c < model_->classes(); ++c) {
    codecs_[c].refresh();
    state_->replan(c);
  }
}

/// With the memory for all that laws may ask of it.
Result<std::unique_ptr<collective::Exchange>> Session::create_exchange(
    const collective::LayoutView& layout, DType dtype) {
  const auto create = [&] {
    return collective::Exchange::create(*state_, layout.copy(), dtype, *counters_);
  };
  if (!steering_) return create();
  struct Back {
    Session* session;
    ~Back() {
      session->set_ways();
      session->replan_units();
    }
  };
  const auto largest = [&] {
    const Back back{this};
    return steering_->at_most(*model_, [&] {
      for (uint32_t c = 0; c < model_->classes(); ++c) state_->set_way(c, {});
      replan_units();
      return create();
    });
  };
  auto made = largest();
  if (made && !(*made)->replan()) return collective::no_exchange_memory();
  return made;
}

/// The exchange that was made for this layout, or a new one: this is where memory may run out.
Result<collective::Exchange*> Session::exchange_for(const collective::LayoutView& layout,
                                                    DType dtype) {
  for (auto& exchange : exchanges_) {
    if (exchange->is_for(layout, dtype)) return exchange.get();
  }
  return without_throwing([&]() -> Result<collective::Exchange*> {
    if (auto ok = check_layout(layout); !ok) return std::move(ok).error();
    exchanges_.reserve(exchanges_.size() + 1);
    auto made = create_exchange(layout, dtype);
    if (!made) return std::move(made).error();
    exchanges_.push_back(*std::move(made));
    return exchanges_.back().get();
  });
}

/// This rank has no exchange for the bucket. Where memory ran out, the layout is new, and the
/// others are about to enrol it: a spare joins them. Where the layout does not fit, this rank may
/// have brought it by mistake: the exchange that the same bucket had before speaks the others'
/// rounds.
collective::Exchange& Session::messenger(const Error& why, const collective::Bucket& bucket,
                                         const collective::LayoutView& layout) {
  for (auto& exchange : exchanges_) {
    const bool known = exchange->enrolled() && exchange->bucket().index == bucket.index &&
                       exchange->dtype() == bucket.dtype && exchange->elements() <= layout.elements;
    if (known && why.code != Errc::out_of_memory && !is_running(*exchange)) return *exchange;
  }
  const auto idle = [&](const auto& spare) { return !is_running(*spare); };
  return **std::ranges::find_if(spares_, idle);  // as many as may be in flight
}

uint32_t Session::place_of(const collective::Exchange& exchange) const noexcept {
  uint32_t place = 0;
  while (place < running_count_ && running_[place].exchange != &exchange) ++place;
  return place;
}

void Session::ended(const collective::Exchange& exchange) noexcept {
  mark(exchange, false);
  const auto at = running_.begin() + place_of(exchange);
  std::copy(at + 1, running_.begin() + running_count_, at);
  --running_count_;
}

void Session::mark(const collective::Exchange& exchange, bool moves) noexcept {
  for (const uint32_t p : exchange.layout().parameters) moving_[p] = moves;
}

uint32_t Session::wish() const noexcept {
  if (flush_state_.empty()) return 0;
  const uint32_t own = flush_number(flush_state_[0]);
  return own == 0 && releasing_ ? kReleaseSteps : own;  // a state may have been loaded meanwhile
}
uint32_t Session::parts_to_come() const noexcept {
  return flush_state_.empty() ? 0 : flush_number(flush_state_[1]);
}

Result<void> Session::flush(uint32_t steps) {
  if (steps == 0 || steps > kMaxFlushSteps) {
    return Error{Errc::value_out_of_range,
                 "flush: expected 1 to " + std::to_string(kMaxFlushSteps) + " steps, found " +
                     std::to_string(steps),
                 "10 drains in equal parts, 1 all at once"};
  }
  const std::lock_guard lock(mutex_);
  if (!flush_state_.empty() && parts_to_come() == 0) flush_state_[0] = static_cast<float>(steps);
  return {};
}

bool Session::releases() const {
  const std::lock_guard lock(mutex_);
  return parts_to_come() != 0 || releasing_;
}

/// All ranks hear the same in the same exchange.
void Session::hear_flush(uint32_t steps) {
  if (steps == 0 || flush_state_.empty() || parts_to_come() != 0) return;
  releasing_ = false;
  flush_state_[0] = 0.0F;
  flush_state_[1] = static_cast<float>(steps);
}

/// Laws have turned all that is compressed to float32.
bool Session::all_dense() const noexcept {
  if (!steering_) return false;
  bool any = false;
  for (uint32_t c = 0; c < model_->classes(); ++c) {
    if (!model_->has_units(c)) continue;
    if (!steering_->way(c).dense) return false;
    any = true;
  }
  return any;
}

void Session::set_ways() noexcept {
  for (uint32_t c = 0; steering_ && c < model_->classes(); ++c)
    state_->set_way(c, steering_->way(c));
}

/// The only place where settings change. No exchange runs.
Result<void> Session::steer(uint64_t step) {
  if (!steering_) return {};
  auto moved = steering_->begin_step(step, *model_, moved_, counters_->rounds);
  if (!moved) return std::move(moved).error();
  if (recorder_) recorder_->begin_step(*steering_);
  set_ways();
  if (!*moved) return {};
  replan_units();
  bool fits = true;
  for (auto& exchange : exchanges_) fits = exchange->replan() && fits;
  return fits ? Result<void>() : collective::no_exchange_memory();
}

Result<void> Session::enter_step(uint64_t step) {
  if (step == last_step_) return {};
  flushed_before_ = parts_ != 0 && !all_dense();
  auto steered = steer(step);
  last_step_ = step;
  step_failure_.reset();
  if (std::exchange(set_begins_, false)) set_since_ = step;
  ++stats_.steps;
  parts_ = parts_to_come();
  if (parts_ != 0) flush_state_[1] = parts_ == 1 ? 0.0F : flush_state_[1] - 1;
  state_->set_settings(settings_hash());
  observer_.begin_step(step, now(),
                       static_cast<uint16_t>(model_->agreement() ^ state_->settings()));
  report_due_ = model_->options().reports;
  return steered;
}

Result<uint32_t> Session::begin_step(uint64_t step) {
  const std::lock_guard lock(mutex_);
  return without_throwing([&]() -> Result<uint32_t> {
    if (broken_) return *broken_;
    const bool first = last_step_ == ~uint64_t{0};
    if (running_count_ != 0 && step != last_step_) {
      return Error{Errc::exchange_order,
                   "exchanges of step " + std::to_string(last_step_) + " are running",
                   "drive a step's exchanges to their ends before the next step begins"};
    }
    if (!first && step < last_step_) {
      return Error{Errc::exchange_order,
                   "step " + std::to_string(step) + " lies behind step " +
                       std::to_string(last_step_) + ", which has begun",
                   "steps count up"};
    }
    if (auto entered = enter_step(step); !entered) step_failure_ = std::move(entered).error();
    if (step_failure_) return *step_failure_;
    return version();
  });
}

void Session::count(const collective::Bucket& bucket, uint64_t elements) {
  const uint64_t world = model_->options().world;
  ++stats_.exchanges;
  const bool releases = steering_ && steering_->releases();
  if ((parts_ != 0 || releases) && !bucket.raw) ++stats_.flushes;
  stats_.elements += elements;
  stats_.dense_bytes += 2 * (world - 1) * elements * sizeof(float) / world;
}

Result<void> Session::check_bucket(const collective::Bucket& bucket,
                                   const collective::LayoutView& layout) const {
  if (auto ok = check_window(bucket, layout); !ok) return ok;
  if (bucket.buffer == nullptr && layout.elements != 0)
    return Error{Errc::invalid_argument, "bucket: expected a buffer, found null",
                 "only a bucket without elements may lack one"};
  if (bucket.dtype == DType::u8)
    return Error{Errc::dtype_unsupported, "bucket: expected f32, f16 or bf16, found u8",
                 "convert the gradients first"};
  return {};
}

Result<void> Session::check_window(const collective::Bucket& bucket,
                                   const collective::LayoutView& layout) const {
  if (running_count_ == 0) return {};
  if (!has_place_unlocked(layout.elements)) {
    return Error{Errc::exchange_order,
                 std::to_string(running_count_) + " exchanges are running, " +
                     std::to_string(running_long()) +
                     " of them long: the window has no place for one of " +
                     std::to_string(layout.elements) + " elements",
                 "drive one to its end or abort them first"};
  }
  if (bucket.step != last_step_) {
    return Error{Errc::exchange_order,
                 "exchanges of step " + std::to_string(last_step_) + " are running",
                 "drive a step's exchanges to their ends before the next step begins"};
  }
  const bool moves = std::ranges::any_of(
      layout.parameters, [&](uint32_t p) { return p < moving_.size() && moving_[p]; });
  if (!moves) return {};
  return Error{Errc::exchange_order, "a parameter of this bucket is in flight already",
               "every parameter lies in one bucket of a step"};
}

/// No exchange will take this gradient.
void Session::keep(const collective::Bucket& bucket, const collective::LayoutView& layout) {
  const auto fits = without_throwing([&] { return check_layout(layout); });
  if (fits && !bucket.raw) collective::keep_gradients(*state_, layout, bucket.buffer, bucket.dtype);
}

Result<collective::Exchange*> Session::begin(const collective::Bucket& bucket,
                                             const collective::LayoutView& layout) {
  const std::lock_guard lock(mutex_);
  auto fits = without_throwing([&] { return check_bucket(bucket, layout); });
  if (!fits) return std::move(fits).error();
  auto entered = enter_step(bucket.step);
  if (entered && step_failure_) entered = *std::exchange(step_failure_, std::nullopt);
  if (broken_) {
    keep(bucket, layout);
    ++stats_.failures;
    return without_throwing([&]() -> Result<collective::Exchange*> { return *broken_; });
  }
  auto found = exchange_for(layout, bucket.dtype);
  if (found && entered) return run(**found, bucket, layout.elements, {});
  keep(bucket, layout);
  if (found) return run(**found, bucket, layout.elements, std::move(entered).error());
  collective::Exchange& exchange = messenger(found.error(), bucket, layout);
  return run(exchange, bucket, layout.elements, std::move(found).error());
}

Result<collective::Exchange*> Session::begin_failed(uint64_t step, uint32_t index,
                                                    const collective::LayoutView& layout,
                                                    Error why) {
  const std::lock_guard lock(mutex_);
  const collective::Bucket nothing{.step = step, .index = index};
  if (auto ok = check_window(nothing, layout); !ok) return std::move(ok).error();
  const auto entered = enter_step(step);  // it has failed already
  if (broken_) {
    ++stats_.failures;
    return without_throwing([&]() -> Result<collective::Exchange*> { return *broken_; });
  }
  auto found = exchange_for(layout, nothing.dtype);
  return run(found ? **found : messenger(found.error(), nothing, layout), nothing, layout.elements,
             std::move(why));
}

void Session::sample(const collective::Layout& layout, const collective::Bucket& bucket) {
  if (!model_->options().reports || bucket.buffer == nullptr || bucket.raw) return;
  const auto sums = norms_.of(*state_, layout, bucket.buffer, bucket.dtype);
  if (sums.elements != 0) observer_.norms(sums.residual, sums.gradient);
}

collective::Exchange* Session::run(collective::Exchange& exchange, const collective::Bucket& bucket,
                                   uint64_t elements, std::optional<Error> local_failure) {
  if (!local_failure) sample(exchange.layout(), bucket);  // else it may be one of another layout
  exchange.begin(bucket, sequence_++, {wish(), parts_},
                 report_due_ ? &observer_.report() : nullptr);
  if (local_failure) exchange.fail(*std::move(local_failure), false);
  count(bucket, elements);
  running_[running_count_++] = {&exchange, elements, true, report_due_};
  if (report_due_) observer_.carried();
  report_due_ = false;
  mark(exchange, true);
  return &exchange;
}

void Session::fail(collective::Exchange& exchange, Error error) {
  const std::lock_guard lock(mutex_);
  exchange.fail(std::move(error));
}

double Session::now() const {
  if (const auto& clock = model_->options().now) return clock();
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void Session::count_work(bool encoded, double seconds) {
  (encoded ? stats_.encode_seconds : stats_.decode_seconds) += seconds;
  encoded ? observer_.encode(seconds) : observer_.decode(seconds);
}

Result<uint32_t> Session::next(collective::Exchange& exchange, std::span<Step> batch,
                               const Timing& last) {
  const std::lock_guard lock(mutex_);
  if (!is_running(exchange)) return collective::exchange_has_ended();
  Running& run = running_[place_of(exchange)];
  if (!run.first_next) observer_.batch(last);
  const double start = now();
  auto steps = without_throwing([&]() -> Result<uint32_t> {
    auto next = exchange.next(batch);
    if (next || next.error().code != Errc::ranks_disagree || version() == 0) return next;
    Error told = std::move(next).error();
    told.message += ", in step " + std::to_string(last_step_) + " with this rank's settings " +
                    std::to_string(version());
    return told;
  });
  count_work(run.first_next, now() - start);
  run.first_next = run.first_next && exchange.enrolling();
  if (!steps) {
    exchange.abort();  // it has done so itself, unless there was no memory to say why
    ++stats_.failures;
  }
  if (!steps || *steps == 0) {
    if (run.reports) {
      const auto heard = steps ? exchange.reports_heard() : collective::HeardReports{};
      if (laws_hear()) steering_->heard(last_step_, heard.reports);
      observer_.heard(heard, model_->options().world);
    }
    ended(exchange);
    if (exchange.fell_back()) ++stats_.fallbacks;
  }
  if (steps && *steps == 0) hear_flush(exchange.flush_heard());
  return steps;
}

void Session::abort(Error why) {
  const std::lock_guard lock(mutex_);
  for (const Running& r : std::span(running_).first(running_count_)) {
    r.exchange->abort();
    if (r.reports && laws_hear()) steering_->heard(last_step_, {});
    if (r.reports) observer_.lost(model_->options().world);
    mark(*r.exchange, false);
    ++stats_.failures;
  }
  running_count_ = 0;
  if (recorder_) recorder_->end();
  if (!broken_) broken_ = std::move(why);
}

void Session::abort() {
  Error why{Errc::engine_failed, {}, {}};
  try {
    why.message = "the engine failed in an earlier exchange";
    why.hint = "restart from the last checkpoint";
  } catch (const std::bad_alloc&) {  // the code alone has to do: payloads must be put back
  }
  abort(std::move(why));
}

uint32_t Session::in_flight() const {
  const std::lock_guard lock(mutex_);
  return running_count_;
}

uint32_t Session::running_long() const noexcept {
  const auto running = std::span(running_).first(running_count_);
  return static_cast<uint32_t>(
      std::ranges::count_if(running, [](const Running& r) { return is_long(r.elements); }));
}

bool Session::has_place_unlocked(uint64_t elements) const noexcept {
  const uint32_t window = model_->options().window;
  return running_count_ < most_in_flight(window) && (!is_long(elements) || running_long() < window);
}

bool Session::has_place(uint64_t elements) const {
  const std::lock_guard lock(mutex_);
  return has_place_unlocked(elements);
}

void Session::summed(const Timing& timing) {
  const std::lock_guard lock(mutex_);
  observer_.batch(timing);
}

void Session::count_parts(uint64_t parts) {
  const std::lock_guard lock(mutex_);
  stats_.parts += parts;
}

void Session::count_window_wait(double seconds) {
  const std::lock_guard lock(mutex_);
  stats_.window_wait_seconds += seconds;
}

void Session::release(const collective::LayoutView& layout, DType dtype) {
  const std::lock_guard lock(mutex_);
  std::erase_if(exchanges_, [&](const auto& exchange) {
    return !is_running(*exchange) && exchange->is_for(layout, dtype);
  });
}

void Session::scale_residuals(float factor) {
  const std::lock_guard lock(mutex_);
  store_.scale_residuals(factor);
}

Stats Session::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.alone = model_->alone();
  stats.counters = *counters_;
  stats.reports_missing = observer_.missing();
  if (steering_) {
    stats.setting_changes += steering_->counts().changes;
    stats.held_steps += steering_->counts().held_steps;
  }
  stats.network_seconds = observer_.network_seconds();
  stats.straggler_seconds = observer_.straggler_seconds();
  stats.layouts = exchanges_.size();
  stats.flush_steps_left = std::max(parts_to_come(), wish());
  if (steering_)
    stats.flush_steps_left =
        std::max<uint64_t>(stats.flush_steps_left, steering_->release_steps_left());
  stats.residual_bytes = store_.residual_bytes();
  stats.residual_norm = store_.residual_norm();
  return stats;
}

uint64_t Session::memory_of_class(uint32_t of) const { return state_->held_by_class(of); }

Memory Session::memory() const {
  const std::lock_guard lock(mutex_);
  Memory memory{store_.residual_bytes(), store_.state_bytes(), 0};
  for (const auto& exchange : exchanges_) memory.exchange_bytes += exchange->held_bytes();
  return memory;
}

Result<void> drive(Session& session, const collective::Bucket& bucket,
                   const collective::LayoutView& layout, Engine& engine) {
  auto exchange = session.begin(bucket, layout);
  if (!exchange) return std::move(exchange).error();
  std::array<Step, kMaxBatch> batch;
  Timing timing;
  for (;;) {
    auto steps = session.next(**exchange, batch, timing);
    if (!steps) return std::move(steps).error();
    if (*steps == 0) return {};
    timing.issued = session.now();
    if (auto ran = engine.run({batch.data(), *steps}); !ran) {
      session.abort(ran.error());
      return ran;
    }
    timing.completed = session.now();
  }
}

}  // namespace laconic::session

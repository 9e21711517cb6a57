// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The public session: a model's session, the layouts of its buckets, and an engine.
#include <algorithm>
#include <cstring>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

#include "laconic/session.h"
#include "session/describe.h"
#include "session/saved_state.h"
#include "session/driver/window.h"
#include "session/without_throwing.h"

namespace laconic {
namespace {

/// A bucket that comes again and again, and its parts.
struct Cut {
  collective::Layout whole;
  std::vector<collective::Part> parts;
};

/// None if a parameter is not in the model.
std::optional<Cut> cut_up(const std::vector<Parameter>& model, std::span<const uint32_t> parameters,
                          uint64_t part) {
  Cut cut;
  for (const uint32_t p : parameters) {
    if (p >= model.size()) return {};
    cut.whole.parameters.push_back(p);
    cut.whole.offsets.push_back(cut.whole.elements);
    cut.whole.elements += model[p].count();
  }
  cut.parts = collective::cut(cut.whole, part);
  return cut;
}

/// Who has not found the others at the server by then is not going to.
constexpr std::chrono::milliseconds kJoin = std::chrono::seconds(60);

Result<collective::Options> options_of(const Engine& engine, const SessionOptions& options) {
  const auto strategy = collective::strategy_of(options.plan);
  if (!strategy) {
    return Error{Errc::invalid_argument, "plan: there is no strategy '" + options.plan + "'",
                 "auto, native_sum, gather_all, two_shot or server_sum"};
  }
  collective::Options o;
  o.rank = engine.rank();
  o.world = engine.world();
  o.caps = engine.caps();
  o.seed = options.seed;
  o.small_elements = options.small_elements;
  o.threads = options.threads;
  o.window = options.window;
  o.part = options.part;
  o.strategy = *strategy;
  for (const laconic_codec_table* table : options.codecs) {
    auto codec = codecs::Registered::create(*table);
    if (!codec) return std::move(codec).error();
    o.codecs.push_back(*std::move(codec));
  }
  return o;
}

Result<void> execute(Engine& engine, std::span<const Step> batch,
                     std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto ticket = engine.start(batch);
  if (!ticket) return std::move(ticket).error();
  return engine.wait(*ticket, deadline);
}

/// What all ranks tell each other, with memory that is taken before anything else can fail.
class Cards {
 public:
  explicit Cards(const Engine& engine)
      : world_(engine.world()),
        own_(session::kAgreementBytes),
        all_(session::kAgreementBytes * world_),
        counts_(world_, session::kAgreementBytes),
        zeros_(world_),
        offsets_(world_) {
    for (uint32_t r = 0; r < world_; ++r) offsets_[r] = r * session::kAgreementBytes;
  }
  Result<void> gather(const session::AgreementCard& own, Engine& engine,
                      std::chrono::milliseconds timeout) {
    const Step step = gathering(own);
    return execute(engine, {&step, 1}, timeout);
  }
  [[nodiscard]] Step gathering(const session::AgreementCard& own) {
    std::memcpy(own_.data(), own.data(), own.size());
    return {.kind = StepKind::all_gather,
            .send = own_.data(),
            .recv = all_.data(),
            .send_counts = counts_,
            .send_offsets = zeros_,
            .recv_counts = counts_,
            .recv_offsets = offsets_};
  }
  [[nodiscard]] Bytes all() const noexcept { return all_; }

 private:
  uint32_t world_;
  std::vector<uint8_t> own_, all_;
  std::vector<uint64_t> counts_, zeros_, offsets_;
};

Error wrong_length(uint64_t found, uint64_t expected) {
  Error why{Errc::shape_unsupported, {}, {}};
  try {
    why.message = "the gradient has " + std::to_string(found) + " elements, its parameters " +
                  std::to_string(expected);
    why.hint = "give all of them, back to back";
  } catch (const std::bad_alloc&) {  // the code alone has to do
  }
  return why;
}

}  // namespace

struct Session::Inner {
  std::unique_ptr<session::Session> session;
  Engine* engine = nullptr;
  std::optional<session::Window> window;
  std::optional<Cards> cards;
  std::vector<std::unique_ptr<Cut>> cuts;  // that of average() is the first
  uint32_t buckets = 0;                    // since the last wait()
  std::optional<uint64_t> last_step;       // that a bucket was of
  std::optional<SettingsChange> waiting;   // until residuals have gone out

  /// This rank's, before it has been compared with the others'.
  static Result<std::unique_ptr<Session>> make(std::string_view spec,
                                               std::vector<Parameter> parameters, Engine& engine,
                                               const SessionOptions& options);
  Result<const Cut*> cut_of(std::span<const uint32_t> parameters);
  Result<void> submit(uint64_t step, const Cut& cut, std::span<float> gradient);
  Result<void> set(const SettingsChange& change);
  Result<void> set_what_waits(uint64_t next);
  Result<void> prepare(const SettingsChange& change);
  Result<bool> compare_and_set(const Result<void>& prepared);
};

Result<std::unique_ptr<Session>> Session::Inner::make(std::string_view spec,
                                                      std::vector<Parameter> parameters,
                                                      Engine& engine,
                                                      const SessionOptions& options) {
  try {
    const auto theirs = options_of(engine, options);
    if (!theirs) return theirs.error();
    auto inner = std::make_unique<Inner>();
    inner->engine = &engine;
    inner->cards.emplace(engine);
    std::vector<uint32_t> all(parameters.size());
    std::iota(all.begin(), all.end(), 0U);
    inner->cuts.push_back(std::make_unique<Cut>(*cut_up(parameters, all, options.part)));
    auto session = session::Session::create(spec, std::move(parameters), *theirs, options.rules,
                                            options.control, options.record);
    if (!session) return std::move(session).error();
    inner->session = *std::move(session);
    inner->window.emplace(*inner->session, engine, options.timeout);
    return std::unique_ptr<Session>(new Session(std::move(inner)));
  } catch (const std::bad_alloc&) {
    return Errc::out_of_memory;
  }
}

Session::Session(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}

Session::~Session() {
  if (!inner_->window || !inner_->window->left_behind()) return;
  Engine* engine = inner_->engine;
  engine->keep_until_end(std::move(inner_));
}

Result<std::unique_ptr<Session>> Session::create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options) {
  try {
    const auto cards = std::make_shared<Cards>(engine);
    // No step: whatever the engine needs for its first batch it takes now.
    if (auto ready = execute(engine, {}, options.timeout); !ready) return std::move(ready).error();
    auto mine = Inner::make(spec, std::move(parameters), engine, options);
    const auto own = mine ? session::agreement_card((*mine)->inner_->session->active())
                          : session::failure_card(mine.error());
    if (auto done = cards->gather(own, engine, options.timeout); !done) {
      if (done.error().code == Errc::timed_out) engine.keep_until_end(cards);
      return std::move(done).error();
    }
    if (auto ok = session::check_failures(cards->all()); !ok) return std::move(ok).error();
    if (!mine) return std::move(mine).error();
    session::Session& own_session = *(*mine)->inner_->session;
    if (auto ok = session::check_agreement(own_session.active(), cards->all()); !ok)
      return std::move(ok).error();
    const collective::Model& model = own_session.model();
    if (!model.uses(collective::StrategyKind::server_sum)) return mine;
    const auto joined = engine.join(model.aggregation_job(), std::min(options.timeout, kJoin));
    const auto answer = joined ? session::AgreementCard{} : session::failure_card(joined.error());
    if (auto done = cards->gather(answer, engine, options.timeout); !done) {
      if (done.error().code == Errc::timed_out) engine.keep_until_end(cards);
      return std::move(done).error();
    }
    if (auto ok = session::check_failures(cards->all()); !ok) return std::move(ok).error();
    return mine;
  } catch (const std::bad_alloc&) {  // too early to tell anybody, or too late to matter to them
    return Errc::out_of_memory;
  }
}

Result<void> Session::average(uint64_t step, std::span<float> gradient) {
  if (inner_->session->in_flight() != 0) {
    return Error{Errc::exchange_order, "buckets are in flight", "call wait() first"};
  }
  auto submitted = inner_->submit(step, *inner_->cuts.front(), gradient);
  auto done = wait();
  return submitted ? std::move(done) : std::move(submitted);
}

Result<void> Session::submit(uint64_t step, const Bucket& bucket) {
  auto cut = inner_->cut_of(bucket.parameters);
  if (!cut) return std::move(cut).error();
  return inner_->submit(step, **cut, bucket.gradient);
}

Result<void> Session::wait() {
  inner_->buckets = 0;
  return inner_->window->finish();
}

/// Those of a bucket that was here before, or new ones.
Result<const Cut*> Session::Inner::cut_of(std::span<const uint32_t> parameters) {
  for (const auto& cut : cuts) {
    if (std::ranges::equal(cut->whole.parameters, parameters)) return cut.get();
  }
  try {
    auto made = cut_up(session->model().parameters(), parameters, session->model().options().part);
    if (!made) {
      return Error{Errc::invalid_argument,
                   "the bucket names a parameter that the model does not have",
                   "places in the list that create() was given"};
    }
    cuts.push_back(std::make_unique<Cut>(*std::move(made)));
    return cuts.back().get();
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "no memory for a new bucket", {}};
  }
}

Result<void> Session::Inner::submit(uint64_t step, const Cut& cut, std::span<float> gradient) {
  Result<void> first = set_what_waits(step);
  if (cut.parts.size() > 1) session->count(cut.parts.size(), 0);
  const uint32_t bucket = buckets++;
  for (uint32_t number = 0; const collective::Part& part : cut.parts) {
    const uint32_t index = bucket | number++ << 16U;
    Result<void> submitted;
    if (gradient.size() == cut.whole.elements) {
      submitted = window->submit(
          {.buffer = gradient.data() + part.first, .step = step, .index = index}, part.layout);
    } else {  // the other ranks are about to exchange it: this one has to tell them
      submitted = window->submit_failed(step, index, part.layout,
                                        wrong_length(gradient.size(), cut.whole.elements));
    }
    // After a failure of the engine, too: gradients go into the residuals.
    if (!submitted && first) first = std::move(submitted);
  }
  return first;
}

/// False: residuals have to go out first.
Result<bool> Session::Inner::compare_and_set(const Result<void>& prepared) {
  if (window->left_behind()) return prepared.error();  // the engine has failed
  const Step step = cards->gathering(session->proposal().card());
  if (auto done = window->run({&step, 1}); !done) return std::move(done).error();
  auto ended = session->proposal().end(cards->all());
  if (ended) return true;
  if (ended.error().code == Errc::residuals_left) return false;
  return std::move(ended).error();
}

Result<void> Session::Inner::prepare(const SettingsChange& change) {
  return session->proposal().prepare({change.spec, change.rules, change.control, change.plan});
}

/// What may have to wait is kept before the others hear of it.
Result<void> Session::Inner::set(const SettingsChange& change) {
  auto ready = session::without_throwing([&]() -> Result<void> {
    waiting = change;
    return {};
  });
  if (ready) {
    ready = prepare(*waiting);
  } else {
    session->proposal().refuse(ready.error());
  }
  auto done = compare_and_set(ready);
  if (!done || *done) waiting.reset();
  return done ? Result<void>() : std::move(done).error();
}

/// Before the first bucket of a step, on all ranks in the same one.
Result<void> Session::Inner::set_what_waits(uint64_t next) {
  const bool begins = last_step != next;
  last_step = next;
  if (!begins || !waiting || session->in_flight() != 0) return {};
  const bool releases = [&] {
    const auto held = session->hold();
    return session->active().flush.releases();
  }();
  if (releases) return {};
  auto done = compare_and_set(prepare(*waiting));
  if (!done || *done) waiting.reset();
  return done ? Result<void>() : std::move(done).error();
}

Result<void> Session::set(const SettingsChange& change) {
  if (inner_->session->in_flight() != 0)
    return Error{Errc::exchange_order, "buckets are in flight", "call wait() first"};
  return inner_->set(change);
}

Result<void> Session::flush(uint32_t steps) { return inner_->session->flush(steps); }
Result<std::vector<uint8_t>> Session::save() const { return session::save_state(*inner_->session); }
Result<void> Session::load(std::span<const uint8_t> state) {
  return session::load_state(*inner_->session, state);
}
std::string Session::explain() const { return session::explain(*inner_->session); }
std::string Session::stats() const { return session::describe_stats(*inner_->session); }

}  // namespace laconic

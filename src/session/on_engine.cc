// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The public session: a model's session, the layouts of its buckets, and an engine.
#include <algorithm>
#include <cmath>
#include <new>
#include <numeric>
#include <optional>
#include <utility>

#include "laconic/session.h"
#include "laconic/sharded.h"
#include "session/describe.h"
#include "session/driver/driver.h"
#include "session/driver/node_driver.h"
#include "session/saved_state.h"
#include "session/without_throwing.h"

namespace laconic {
namespace {

/// Who has not found the others at the server by then is not going to.
constexpr std::chrono::milliseconds kJoin = std::chrono::seconds(60);

/// Several ranks of a node exchange shards.
bool has_nodes(const SessionOptions& options) {
  return options.inside != nullptr && options.inside->world() > 1;
}

Result<collective::Options> options_of(const Engine& engine, const SessionOptions& options) {
  const auto strategy = collective::strategy_of(options.plan);
  if (!strategy) {
    return Error{Errc::invalid_argument, "plan: unknown strategy '" + options.plan + "'",
                 "auto, native_sum, gather_all, two_shot or server_sum"};
  }
  collective::Options o;
  o.rank = engine.rank();
  o.world = engine.world();
  o.caps = engine.caps();
  o.ranks_per_host = std::max(options.ranks_per_host, 1U);
  if (has_nodes(options)) {  // what a shard's ranks send leaves their hosts
    o.ranks_per_host = 1;
    o.node_shards = options.inside->world();
    o.node_shard = options.inside->rank();
  }
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

Error wrong_length(uint64_t found, uint64_t expected) {
  Error why{Errc::shape_unsupported, {}, {}};
  try {
    why.message = "the gradient has " + std::to_string(found) + " elements, its parameters have " +
                  std::to_string(expected);
    why.hint = "pass all of them, contiguously";
  } catch (const std::bad_alloc&) {  // the code alone has to do
  }
  return why;
}

}  // namespace

struct Session::Inner {
  std::unique_ptr<session::Session> session;
  Engine* engine = nullptr;
  Engine* inside = nullptr;                  // of the node's ranks; null: no nodes
  std::optional<session::NodeDriver> nodes;  // in front of the driver
  std::optional<session::Driver> driver;
  std::vector<uint32_t> all;          // parameters: the bucket of average()
  std::vector<uint64_t> offsets;      // of a bucket that is submitted
  uint32_t buckets = 0;               // since the last wait()
  std::optional<uint64_t> last_step;  // that a bucket was of
  /// Version of the state that it continues: buckets of version 1 are not joined.
  uint32_t version = feedback::kStateVersion;

  /// This rank's, before it has been compared with the others'.
  static Result<std::unique_ptr<Session>> make(std::string_view spec,
                                               std::vector<Parameter> parameters, Engine& engine,
                                               const SessionOptions& options, const Values* values);
  Result<void> submit(uint64_t step, const Bucket& bucket);
  [[nodiscard]] bool idle() const { return driver->idle() && (!nodes || nodes->idle()); }
  Result<uint64_t> place(std::span<const uint32_t> parameters);
  Result<void> bind(const Values& values);
  Result<void> set_what_waits(uint64_t next);
};

Result<std::unique_ptr<Session>> Session::Inner::make(std::string_view spec,
                                                      std::vector<Parameter> parameters,
                                                      Engine& engine, const SessionOptions& options,
                                                      const Values* values) {
  try {
    auto theirs = options_of(engine, options);
    if (!theirs) return std::move(theirs).error();
    theirs->owner_turns = values != nullptr;
    auto inner = std::make_unique<Inner>();
    inner->engine = &engine;
    inner->all.resize(parameters.size());
    std::iota(inner->all.begin(), inner->all.end(), 0U);
    inner->offsets.resize(parameters.size());
    std::shared_ptr<const device::Staging> gpu;
    if (options.gpu) {
      if (has_nodes(options)) {
        return Error{Errc::unsupported, "codecs=device: nodes of several ranks need the host",
                     "a session without gpu, or without inside"};
      }
      auto opened = pipeline::DeviceBatches::open(*options.gpu);
      if (!opened) return std::move(opened).error();
      gpu = *std::move(opened);
    }
    auto session =
        session::Session::create(spec, std::move(parameters), *theirs, options.rules,
                                 options.control, options.record, options.down, std::move(gpu));
    if (!session) return std::move(session).error();
    inner->session = *std::move(session);
    if (has_nodes(options)) {
      inner->inside = options.inside;
      inner->nodes.emplace(*inner->session, *options.inside, options.timeout);
    }
    inner->driver.emplace(*inner->session, engine, options.timeout,
                          inner->nodes ? &*inner->nodes : nullptr);
    if (inner->nodes) {
      inner->nodes->stand_before(*inner->driver);
      inner->driver->set_node(&inner->nodes->link());
    }
    if (values != nullptr) {
      if (auto bound = inner->bind(*values); !bound) return std::move(bound).error();
    }
    return std::unique_ptr<Session>(new Session(std::move(inner)));
  } catch (const std::bad_alloc&) {
    return Error{Errc::out_of_memory, "out of memory", {}};
  }
}

Session::Session(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}

Session::~Session() {
  if (!inner_->driver) return;
  Engine* const engine = inner_->driver->left_behind() ? inner_->engine : nullptr;
  Engine* const inside = inner_->nodes && inner_->nodes->left_behind() ? inner_->inside : nullptr;
  const std::shared_ptr<Inner> kept = std::move(inner_);
  if (engine != nullptr) engine->keep_until_end(kept);
  if (inside != nullptr) inside->keep_until_end(kept);
}

Result<std::unique_ptr<Session>> Session::create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options) {
  return create(spec, std::move(parameters), engine, options, nullptr);
}

Result<std::unique_ptr<Session>> Session::create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options,
                                                 const Values* values) {
  try {
    const auto cards = std::make_shared<session::Cards>(engine.world());
    std::shared_ptr<session::NodeLink> node;
    if (has_nodes(options)) {
      node = std::make_shared<session::NodeLink>(*options.inside, options.timeout,
                                                 session::kAgreementBytes);
    }
    // No step: whatever the engine needs for its first batch it takes now.
    const auto ready = session::execute(engine, {}, options.timeout);
    auto mine = ready ? Inner::make(spec, std::move(parameters), engine, options, values)
                      : Result<std::unique_ptr<Session>>(ready.error());
    session::AgreementCard own{};
    const auto carded = session::without_throwing([&]() -> Result<void> {
      if (!mine) return mine.error();
      own = session::agreement_card((*mine)->inner_->session->active());
      return {};
    });
    if (!carded) own = session::failure_card(carded.error());
    if (node) own = node->compare(own);
    const auto agree = [&]() -> Result<void> {
      if (!ready) return ready;
      if (auto done = cards->gather(own, engine, options.timeout); !done) {
        if (done.error().code == Errc::timed_out) engine.keep_until_end(cards);
        return done;
      }
      if (auto ok = session::check_failures(cards->all()); !ok) return ok;
      if (!carded) return carded;
      return session::check_agreement((*mine)->inner_->session->active(), cards->all());
    };
    auto agreed = session::without_throwing(agree);
    if (node) {
      agreed = node->share(agreed);
      if (node->broken()) options.inside->keep_until_end(node);
    }
    if (!agreed) return std::move(agreed).error();
    session::Session& own_session = *(*mine)->inner_->session;
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
  if (!inner_->idle())
    return Error{Errc::exchange_order, "buckets are in flight", "call wait() first"};
  auto submitted = inner_->submit(step, {gradient, inner_->all});
  auto done = wait();
  return submitted ? std::move(done) : std::move(submitted);
}

Result<void> Session::submit(uint64_t step, const Bucket& bucket) {
  return inner_->submit(step, bucket);
}

Result<void> Session::wait() {
  inner_->buckets = 0;
  return inner_->nodes ? inner_->nodes->finish() : inner_->driver->finish();
}

/// Back to back: where each lies, and how many elements they have.
Result<uint64_t> Session::Inner::place(std::span<const uint32_t> parameters) {
  const auto& model = session->model().whole();
  const auto known = [&](uint32_t p) { return p < model.size(); };
  if (parameters.size() > model.size() || !std::ranges::all_of(parameters, known)) {
    return session::without_throwing([]() -> Result<uint64_t> {
      return Error{Errc::invalid_argument,
                   "the bucket names a parameter that the model does not have",
                   "parameters are positions in the list given to create()"};
    });
  }
  uint64_t elements = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    offsets[i] = elements;
    elements += model[parameters[i]].count();
  }
  return elements;
}

Result<void> Session::Inner::submit(uint64_t step, const Bucket& bucket) {
  const auto elements = place(bucket.parameters);
  if (!elements) return elements.error();
  Result<void> first = set_what_waits(step);
  const collective::LayoutView layout{
      bucket.parameters, std::span(offsets).first(bucket.parameters.size()), *elements};
  collective::Bucket brought{.step = step, .index = buckets++};
  session::Submission how{.joins = version > 1};
  const auto submit = [&] {
    return nodes ? nodes->submit(step, static_cast<float*>(brought.buffer), layout, how)
                 : driver->submit(brought, layout, how);
  };
  Result<void> submitted;
  if (bucket.gradient.size() == *elements) {
    brought.buffer = bucket.gradient.data();
    submitted = submit();
  } else {  // the other ranks are about to exchange it: this one has to tell them
    const Error why = wrong_length(bucket.gradient.size(), *elements);
    how.trouble = &why;
    submitted = submit();
  }
  return first ? std::move(submitted) : std::move(first);
}

/// Before the first bucket of a step, on all ranks in the same one.
Result<void> Session::Inner::set_what_waits(uint64_t next) {
  if (std::exchange(last_step, next) == next) return {};
  auto done = driver->set_what_waits();
  return done ? Result<void>() : std::move(done).error();
}

Result<void> Session::set(const SettingsChange& change) {
  if (!inner_->idle())
    return Error{Errc::exchange_order, "buckets are in flight", "call wait() first"};
  auto done = inner_->driver->set(change);
  return done ? Result<void>() : std::move(done).error();
}

Result<void> Session::flush(uint32_t steps) { return inner_->session->flush(steps); }
Result<std::vector<uint8_t>> Session::save() const {
  if (!inner_->idle()) return session::in_flight_error();
  return session::save_state(*inner_->session, inner_->version);
}
Result<void> Session::load(std::span<const uint8_t> state) {
  if (!inner_->idle()) return session::in_flight_error();
  auto version = session::load_state(*inner_->session, state);
  if (!version) return std::move(version).error();
  inner_->version = *version;
  return {};
}
std::string Session::explain() const { return session::explain(*inner_->session); }
std::string Session::stats() const { return session::describe_stats(*inner_->session); }

Result<std::unique_ptr<Sharded>> Sharded::create(std::string_view push, std::string_view pull,
                                                 std::vector<Parameter> parameters,
                                                 std::span<const std::span<float>> values,
                                                 Engine& engine, const SessionOptions& options) {
  SessionOptions both = options;
  both.down = pull;
  auto session = Session::create(push, std::move(parameters), engine, both, &values);
  if (!session) return std::move(session).error();
  return std::unique_ptr<Sharded>(new Sharded(*std::move(session)));
}

Result<void> Session::Inner::bind(const Values& values) {
  version = feedback::kStateVersionOfMasters;
  const auto& model = session->model().parameters();
  bool fits = values.size() == model.size();
  std::vector<collective::Replica> replicas;
  for (size_t p = 0; p < values.size() && fits; ++p) {
    fits = values[p].size() == model[p].count();
    replicas.push_back({values[p].data(), DType::f32});
  }
  if (fits) return driver->turns().set_replicas(replicas, true);
  return Error{Errc::shape_unsupported, "values: expected all elements of each parameter",
               "as many spans as there are parameters, each as long as its parameter"};
}

Result<void> Sharded::push(uint64_t step, const Bucket& bucket) {
  if (session_->inner_->session->model().alone())
    finite_ =
        finite_ && std::ranges::all_of(bucket.gradient, [](float x) { return std::isfinite(x); });
  return session_->submit(step, bucket);
}

Result<bool> Sharded::step(const Turn& turn) {
  session_->inner_->buckets = 0;
  session::OwnerTurns& turns = session_->inner_->driver->turns();
  Result<void> turned;
  {
    const auto begun = session::without_throwing([&] { return turns.begin(); });
    for (size_t i = 0; begun && turned && i < begun->ranges.size(); ++i) {
      const collective::OwnedRange& r = begun->ranges[i];
      turned = session::without_throwing([&] {
        return turn({r.parameter, r.offset, {r.mean, r.count}, {r.master, r.count}});
      });
    }
  }
  auto pulled = turns.pull(turned ? nullptr : &turned.error());
  const bool finite = std::exchange(finite_, true);
  if (!pulled) return pulled;
  return *pulled && finite;
}

bool Sharded::is_small(uint32_t parameter) const {
  return session_->inner_->session->model().assignment(parameter).raw;
}

std::vector<OwnedRange> Sharded::owned() const {
  std::vector<OwnedRange> ranges;
  for (const auto& r : session_->inner_->driver->turns().owned())
    ranges.push_back({r.parameter, r.offset, {}, {r.master, r.count}});
  return ranges;
}

Result<std::vector<uint8_t>> Sharded::save() const { return session_->save(); }
Result<void> Sharded::load(std::span<const uint8_t> state) { return session_->load(state); }
Result<void> Sharded::flush(uint32_t steps) { return session_->flush(steps); }
std::string Sharded::explain() const { return session_->explain(); }
std::string Sharded::stats() const { return session_->stats(); }

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The public session: a model's session, the one layout of its flat gradient, and an engine.
#include <cstring>
#include <new>
#include <utility>

#include "laconic/session.h"
#include "session/describe.h"
#include "session/session.h"

namespace laconic {
namespace {

collective::Layout back_to_back(const std::vector<Parameter>& parameters) {
  collective::Layout layout;
  for (const Parameter& p : parameters) {
    layout.parameters.push_back(static_cast<uint32_t>(layout.parameters.size()));
    layout.offsets.push_back(layout.elements);
    layout.elements += p.count();
  }
  return layout;
}

Result<collective::Options> options_of(const Engine& engine, const SessionOptions& options) {
  const auto strategy = collective::strategy_of(options.plan);
  if (!strategy) {
    return Error{Errc::invalid_argument, "plan: there is no strategy '" + options.plan + "'",
                 "auto, native_sum, gather_all or two_shot"};
  }
  collective::Options o;
  o.rank = engine.rank();
  o.world = engine.world();
  o.caps = engine.caps();
  o.seed = options.seed;
  o.small_elements = options.small_elements;
  o.threads = options.threads;
  o.strategy = *strategy;
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
    std::memcpy(own_.data(), own.data(), own.size());
    const Step step{.kind = StepKind::all_gather,
                    .send = own_.data(),
                    .recv = all_.data(),
                    .send_counts = counts_,
                    .send_offsets = zeros_,
                    .recv_counts = counts_,
                    .recv_offsets = offsets_};
    return execute(engine, {&step, 1}, timeout);
  }
  [[nodiscard]] Bytes all() const noexcept { return all_; }

 private:
  uint32_t world_;
  std::vector<uint8_t> own_, all_;
  std::vector<uint64_t> counts_, zeros_, offsets_;
};

}  // namespace

struct Session::Inner {
  std::unique_ptr<session::Session> session;
  Engine* engine = nullptr;
  collective::Layout layout;
  std::chrono::milliseconds timeout{};
  bool in_flight = false;  // for good: a batch has timed out

  /// This rank's, before it has been compared with the others'.
  static Result<std::unique_ptr<Session>> make(std::string_view spec,
                                               std::vector<Parameter> parameters, Engine& engine,
                                               const SessionOptions& options);
  Result<void> average(uint64_t step, std::span<float> gradient);
  Result<void> drive(collective::Exchange& exchange);
};

Result<std::unique_ptr<Session>> Session::Inner::make(std::string_view spec,
                                                      std::vector<Parameter> parameters,
                                                      Engine& engine,
                                                      const SessionOptions& options) {
  try {
    const auto theirs = options_of(engine, options);
    if (!theirs) return theirs.error();
    auto inner = std::make_unique<Inner>();
    inner->layout = back_to_back(parameters);
    inner->engine = &engine;
    inner->timeout = options.timeout;
    auto session = session::Session::create(spec, std::move(parameters), *theirs);
    if (!session) return std::move(session).error();
    inner->session = *std::move(session);
    return std::unique_ptr<Session>(new Session(std::move(inner)));
  } catch (const std::bad_alloc&) {
    return Errc::out_of_memory;
  }
}

Session::Session(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}

Session::~Session() {
  if (!inner_->in_flight) return;
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
    const auto own =
        mine ? (*mine)->inner_->session->agreement_card() : session::failure_card(mine.error());
    if (auto done = cards->gather(own, engine, options.timeout); !done) {
      if (done.error().code == Errc::timed_out) engine.keep_until_end(cards);
      return std::move(done).error();
    }
    if (auto ok = session::check_failures(cards->all()); !ok) return std::move(ok).error();
    if (!mine) return std::move(mine).error();
    const session::Session& own_session = *(*mine)->inner_->session;
    if (auto ok = own_session.check_agreement(cards->all()); !ok) return std::move(ok).error();
    return mine;
  } catch (const std::bad_alloc&) {  // too early to tell anybody, or too late to matter to them
    return Errc::out_of_memory;
  }
}

Result<void> Session::average(uint64_t step, std::span<float> gradient) {
  return inner_->average(step, gradient);
}

Result<void> Session::Inner::average(uint64_t step, std::span<float> gradient) {
  collective::Bucket bucket;
  bucket.buffer = gradient.data();
  bucket.step = step;
  if (gradient.size() == layout.elements) {
    auto exchange = session->begin(bucket, layout);
    return exchange ? drive(**exchange) : Result<void>(std::move(exchange).error());
  }
  // The other ranks are about to average: this one has to tell them.
  Error why{Errc::shape_unsupported, {}, {}};
  try {
    why.message = "the gradient has " + std::to_string(gradient.size()) + " elements, the model " +
                  std::to_string(layout.elements);
    why.hint = "give all parameters, back to back";
  } catch (const std::bad_alloc&) {  // the code alone has to do
  }
  auto exchange = session->begin_failed(step, layout, std::move(why));
  return exchange ? drive(**exchange) : Result<void>(std::move(exchange).error());
}

Result<void> Session::Inner::drive(collective::Exchange& exchange) {
  std::array<Step, kMaxBatch> batch;
  for (;;) {
    auto steps = session->next(exchange, batch);
    if (!steps) return std::move(steps).error();
    if (*steps == 0) return {};
    if (auto ran = execute(*engine, {batch.data(), *steps}, timeout); !ran) {
      in_flight = in_flight || ran.error().code == Errc::timed_out;
      session->abort(exchange, ran.error());
      return ran;
    }
  }
}

Result<void> Session::flush(uint32_t steps) { return inner_->session->flush(steps); }
std::string Session::explain() const { return session::explain(*inner_->session); }
std::string Session::stats() const { return session::describe_stats(*inner_->session); }

}  // namespace laconic

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

Result<std::unique_ptr<session::Session>> make(std::string_view spec,
                                               std::vector<Parameter> parameters,
                                               const Engine& engine,
                                               const SessionOptions& options) {
  try {
    collective::Options o;
    o.rank = engine.rank();
    o.world = engine.world();
    o.caps = engine.caps();
    o.seed = options.seed;
    o.small_elements = options.small_elements;
    o.threads = options.threads;
    const auto strategy = collective::strategy_of(options.plan);
    if (!strategy) {
      return Error{Errc::invalid_argument, "plan: there is no strategy '" + options.plan + "'",
                   "auto, native_sum, gather_all or two_shot"};
    }
    o.strategy = *strategy;
    return session::Session::create(spec, std::move(parameters), o);
  } catch (const std::bad_alloc&) {
    return Errc::out_of_memory;
  }
}

Result<void> execute(Engine& engine, std::span<const Step> batch,
                     std::chrono::milliseconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  auto ticket = engine.start(batch);
  if (!ticket) return std::move(ticket).error();
  return engine.wait(*ticket, deadline);
}

/// What all ranks tell each other. Taken before anything of this rank's can fail.
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

/// All ranks have a session, and the same one.
Result<void> agree(const Result<std::unique_ptr<session::Session>>& mine, Engine& engine,
                   std::chrono::milliseconds timeout) {
  const auto cards = std::make_shared<Cards>(engine);
  const auto own = mine ? (*mine)->agreement_card() : session::failure_card(mine.error());
  if (auto done = cards->gather(own, engine, timeout); !done) {
    if (done.error().code == Errc::timed_out) engine.keep_until_end(cards);
    return done;
  }
  if (auto ok = session::check_failures(cards->all()); !ok) return ok;
  return (*mine)->check_agreement(cards->all());
}

}  // namespace

struct Session::Inner {
  std::unique_ptr<session::Session> session;
  Engine* engine = nullptr;
  collective::Layout layout;
  std::chrono::milliseconds timeout{};
  bool in_flight = false;  // for good: a batch has timed out

  Result<void> average(uint64_t step, std::span<float> gradient);
  Result<void> drive(collective::Exchange& exchange);
};

Session::Session(std::unique_ptr<Inner> inner) : inner_(std::move(inner)) {}

Session::~Session() {
  if (!inner_->in_flight) return;
  Engine* engine = inner_->engine;
  engine->keep_until_end(std::move(inner_));
}

Result<std::unique_ptr<Session>> Session::create(std::string_view spec,
                                                 std::vector<Parameter> parameters, Engine& engine,
                                                 const SessionOptions& options) {
  auto inner = std::make_unique<Inner>();
  inner->layout = back_to_back(parameters);
  inner->engine = &engine;
  inner->timeout = options.timeout;
  auto made = make(spec, std::move(parameters), engine, options);
  if (auto ok = agree(made, engine, options.timeout); !ok) return std::move(ok).error();
  inner->session = *std::move(made);
  return std::unique_ptr<Session>(new Session(std::move(inner)));
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

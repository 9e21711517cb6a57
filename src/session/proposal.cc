// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/proposal.h"

#include <string>
#include <utility>

#include "base/concat.h"
#include "collective/exchange/succession.h"
#include "session/session.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

Error aggregated() {
  return {Errc::unsupported, "set: settings cannot change while an aggregation server is used",
          "attach again, or train without a server"};
}

bool by_server(const Active& active) {
  return active.model.uses(collective::StrategyKind::server_sum);
}

}  // namespace

Result<std::unique_ptr<Active>> Proposal::make(const Change& change) const {
  if (session_->broken_) return *session_->broken_;
  if (session_->model().options().owner_turns) {
    return Error{Errc::unsupported, "set: settings cannot change in a session with owner_turns",
                 "flush(), save the full state, and start again with the new settings"};
  }
  if (session_->in_flight_.count() != 0) {
    return Error{Errc::exchange_order, "set: exchanges are in flight",
                 "call set() between two steps, when no bucket is in flight"};
  }
  const Active& now = *session_->active_;
  collective::Options options = now.model.options();
  if (change.plan) {
    const auto strategy = collective::strategy_of(*change.plan);
    if (!strategy) {
      return Error{Errc::invalid_argument,
                   "plan: unknown strategy '" + std::string(*change.plan) + "'",
                   "auto, native_sum, gather_all or two_shot"};
    }
    options.strategy = *strategy;
  }
  options.reports = session_->reports_;
  Asked asked = now.asked;
  if (change.rules) asked.rules.assign(change.rules->begin(), change.rules->end());
  if (change.control) asked.control = *change.control;
  if (change.down) asked.down = *change.down;
  auto made = Active::create(change.spec.value_or(now.model.spec().canonical()), std::move(asked),
                             now.model.whole(), options);
  if (!made) return made;
  if ((*made)->model.cuts() != now.model.cuts()) {
    return Error{
        Errc::unsupported,
        concat({"set: ", (*made)->model.configured(),
                " cuts the shards of a node in other places than ", now.model.configured()}),
        "attach again with the new settings"};
  }
  if (by_server(now) || by_server(**made)) return aggregated();
  if (auto moved = session_->active_->store.to_host(); !moved) return std::move(moved).error();
  const auto lost = collective::stranded(*now.state, *(*made)->state);
  if (!lost) return made;
  const collective::Model& model = (*made)->model;
  return Error{Errc::residuals_left,
               "set: " + model.spec(model.class_of(*lost)).canonical() +
                   " keeps no residuals, and " + now.state->name_of(*lost) +
                   " has a residual that must be sent first",
               "call set() again when flush_steps_left in stats() is 0"};
}

Result<void> Proposal::prepare(const Change& change) {
  const std::lock_guard lock(session_->mutex_);
  open_ = true;
  next_.reset();
  auto ready = without_throwing([&]() -> Result<void> {
    auto made = make(change);
    if (!made) return std::move(made).error();
    card_ = agreement_card(**made);
    next_ = *std::move(made);
    return {};
  });
  if (!ready) card_ = failure_card(ready.error());
  return ready;
}

void Proposal::refuse(const AgreementCard& failure) {
  const std::lock_guard lock(session_->mutex_);
  open_ = true;
  next_.reset();
  card_ = failure;
}

/// Reports and counters continue.
void Proposal::put_in_force() noexcept {
  next_->take_over(*session_->active_, session_->step_.number);
  Stats& stats = session_->stats_;
  ++stats.setting_changes;
  if (const auto& before = session_->active_->steering) {
    stats.setting_changes += before->counts().changes;
    stats.held_steps += before->counts().held_steps;
  }
  session_->active_ = std::move(next_);
  if (session_->recorder_) session_->recorder_->go_on_with(session_->active_->steering->run());
}

Result<void> Proposal::end(Bytes cards, std::string_view what) {
  const std::lock_guard lock(session_->mutex_);
  open_ = false;
  if (next_ && cards_agree(cards, next_->model.options().world)) {
    put_in_force();
    return {};
  }
  const std::unique_ptr<Active> next = std::move(next_);
  return without_throwing([&]() -> Result<void> {
    if (auto ok = check_failures(cards, what); !ok) {
      if (ok.error().code == Errc::residuals_left)
        session_->active_->flush.release(session_->observer_.report().report.residual);
      return ok;
    }
    if (next) {
      if (auto ok = check_agreement(*next, cards); !ok) return ok;
    }
    return Error{Errc::invalid_argument, "set: this rank has not prepared a change",
                 "every rank must prepare, exchange its card, and end"};
  });
}

}  // namespace laconic::session

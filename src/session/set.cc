// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Settings replaced between two steps. What comes is a session of its own until all ranks have one;
// then the two change places, which takes no memory and cannot fail.
#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "base/hash.h"
#include "collective/exchange/succession.h"
#include "session/session.h"
#include "session/without_throwing.h"

namespace laconic::session {
namespace {

using collective::StrategyKind;

Error aggregated() {
  return {Errc::unsupported, "set: an aggregation server keeps the settings of attach",
          "attach again, or do without a server"};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::successor(const Change& change) const {
  if (broken_) return *broken_;
  if (running_count_ != 0) {
    return Error{Errc::exchange_order, "set: exchanges are in flight",
                 "set between two steps, when all buckets have come back"};
  }
  collective::Options options = model_->options();
  if (change.plan) {
    const auto strategy = collective::strategy_of(*change.plan);
    if (!strategy) {
      return Error{Errc::invalid_argument,
                   "plan: there is no strategy '" + std::string(*change.plan) + "'",
                   "auto, native_sum, gather_all or two_shot"};
    }
    options.strategy = *strategy;
  }
  options.reports = reports_;
  const std::span<const Rule> rules = change.rules.value_or(rules_);
  auto made = make(change.spec.value_or(model_->spec().canonical()), model_->parameters(), options,
                   rules, change.control.value_or(control_), records_);
  if (!made) return made;
  const auto by_server = [](const Session& s) { return s.model_->uses(StrategyKind::server_sum); };
  if (by_server(*this) || by_server(**made)) return aggregated();
  const auto lost = collective::stranded(*state_, *(*made)->state_);
  if (!lost) return made;
  const collective::Model& model = *(*made)->model_;
  return Error{Errc::residuals_left,
               "set: " + model.spec(model.class_of(*lost)).canonical() +
                   " has no place for residuals, and " + state_->name_of(*lost) +
                   " has a residual, which goes out first",
               "set again when flush_steps_left in stats() is 0"};
}

Result<void> Session::prepare_set(const Change& change) {
  const std::lock_guard lock(mutex_);
  setting_ = true;
  next_.reset();
  auto ready = without_throwing([&]() -> Result<void> {
    auto made = successor(change);
    if (!made) return std::move(made).error();
    set_card_ = (*made)->agreement_card();
    next_ = *std::move(made);
    return {};
  });
  if (!ready) set_card_ = failure_card(ready.error());
  return ready;
}

void Session::refuse_set(const Error& why) {
  const std::lock_guard lock(mutex_);
  setting_ = true;
  next_.reset();
  set_card_ = failure_card(why);
}

Result<void> Session::end_set(Bytes cards) {
  const std::lock_guard lock(mutex_);
  const std::unique_ptr<Session> next = std::move(next_);
  setting_ = false;
  if (next && next->cards_agree(cards)) {
    become(*next);
    return {};
  }
  return without_throwing([&]() -> Result<void> {
    if (auto ok = check_failures(cards); !ok) {
      if (ok.error().code == Errc::residuals_left) ask_for_release();
      return ok;
    }
    if (next) {
      if (auto ok = next->check_agreement(cards); !ok) return ok;
    }
    return Error{Errc::invalid_argument, "set: nothing was prepared on this rank",
                 "every rank prepares, tells its card, and ends"};
  });
}

/// All ranks do, each by its own norms; the OR of what they ask for holds.
void Session::ask_for_release() noexcept {
  if (flush_state_.empty() || parts_to_come() != 0) return;
  const control::Ratio ratio = observer_.report().report.residual;
  const uint32_t steps = ratio.missing() ? kReleaseSteps : control::release_parts(ratio.value());
  flush_state_[0] = static_cast<float>(steps);
  releasing_ = true;
}

/// What was observed and counted goes on; all that hangs on settings is that of `next`.
void Session::become(Session& next) noexcept {
  collective::hand_over(*state_, *next.state_);
  if (!flush_state_.empty() && !next.flush_state_.empty())
    std::ranges::copy(flush_state_, next.flush_state_.begin());
  *next.counters_ = *counters_;
  ++stats_.setting_changes;
  if (steering_) {
    stats_.setting_changes += steering_->counts().changes;
    stats_.held_steps += steering_->counts().held_steps;
  }
  versions_before_ = version() + 1;
  set_since_ = last_step_ + 1;  // or a later one: see enter_step
  set_begins_ = true;
  std::swap(pool_, next.pool_);
  std::swap(rules_, next.rules_);
  std::swap(control_, next.control_);
  std::swap(model_, next.model_);
  std::swap(codecs_, next.codecs_);
  store_.swap(next.store_);
  std::swap(state_, next.state_);
  std::swap(steering_, next.steering_);
  std::swap(moved_, next.moved_);
  std::swap(spares_, next.spares_);
  std::swap(exchanges_, next.exchanges_);
  std::swap(counters_, next.counters_);
  std::swap(moving_, next.moving_);
  std::swap(norms_, next.norms_);
  std::swap(flush_state_, next.flush_state_);
  releasing_ = releasing_ && !flush_state_.empty();
  state_->set_settings(settings_hash());
  if (steering_) steering_->begin_after(counters_->rounds, versions_before_);
  if (recorder_) recorder_->go_on_with(steering_->run());
}

/// In force on this rank in the step at hand, beside the model: 0 as at attach, without laws and
/// without a flush.
uint64_t Session::settings_hash() const noexcept {
  const uint64_t laws = steering_ ? steering_->hash() : 0;
  if (versions_before_ == 0 && parts_ == 0) return laws;
  const std::array<uint64_t, 3> words{laws, versions_before_, parts_};
  return hash64(std::span<const uint64_t>(words));
}

}  // namespace laconic::session

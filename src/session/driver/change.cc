// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "session/driver/change.h"

#include <utility>

#include "session/without_throwing.h"

namespace laconic::session {

Result<void> SettingsOfAll::prepare(const SettingsChange& change) {
  return session_->proposal().prepare(
      {change.spec, change.rules, change.control, change.plan, change.down});
}

/// False: residuals have to go out first.
Result<bool> SettingsOfAll::compare(Result<void> prepared) {
  if (window_->failed()) return prepared.error();
  if (node_ != nullptr) {
    const AgreementCard card = node_->compare(session_->proposal().card());
    if (card != session_->proposal().card()) session_->proposal().refuse(card);
  }
  const Step step = cards_.gathering(session_->proposal().card());
  if (auto gathered = window_->run({&step, 1}); !gathered) return std::move(gathered).error();
  auto ended = session_->proposal().end(cards_.all(), what_);
  if (ended) return true;
  if (ended.error().code == Errc::residuals_left) return false;
  return std::move(ended).error();
}

Result<bool> SettingsOfAll::done(Result<bool> compared) {
  if (!compared || *compared) waiting_.reset();
  return compared;
}

/// Keep a change that may have to wait before the others learn of it.
Result<bool> SettingsOfAll::set(const SettingsChange& change, const Error* trouble) {
  auto ready = without_throwing([&]() -> Result<void> {
    if (trouble != nullptr) return *trouble;
    waiting_ = change;
    return {};
  });
  if (ready) {
    ready = prepare(*waiting_);
  } else {
    session_->proposal().refuse(failure_card(ready.error()));
  }
  return done(compare(ready));
}

Result<bool> SettingsOfAll::set_what_waits() {
  if (!waiting_) return false;
  const bool releases = [&] {
    const auto held = session_->hold();
    return session_->active().flush.releases();
  }();
  if (node_ != nullptr) {  // a shard whose exchange failed may release for longer
    const auto any = node_->any(releases);
    if (any && *any) return false;
  }
  if (releases) return false;
  return done(compare(prepare(*waiting_)));
}

}  // namespace laconic::session

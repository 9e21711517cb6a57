// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "collective/exchange/leg_set.h"

#include <algorithm>

#include "collective/exchange/owner_turn.h"

namespace laconic::collective {

void LegSet::begin(const Input& input) {
  trouble_.reset();
  raw_ = false;
  flush_ = 0;
  reports_ = {};
  Input given = input;
  for (Leg& leg : legs_) {
    leg.runs = !leg.strategy->idle();
    if (!leg.runs) continue;
    leg.strategy->begin(given);
    given.report = nullptr;  // once is enough
  }
}

void LegSet::adopt(const Input& input) {
  trouble_.reset();
  raw_ = false;
  flush_ = 0;
  reports_ = {};
  legs_.front().runs = true;
  owner_turn()->adopt(input);
}

/// All legs run to their ends, even if one fails: other ranks may not have seen the failure, and
/// learn of it from the remaining legs.
Result<Next> LegSet::next(std::span<Step> batch) {
  uint32_t steps = 0;
  for (Leg& leg : legs_) {
    if (!leg.runs) continue;
    auto result = leg.strategy->next(batch.subspan(steps));
    flush_ = std::max(flush_, leg.strategy->flush_heard());
    if (result && reports_.reports.empty()) reports_ = leg.strategy->reports_heard();
    if (result && result->verdict == Verdict::owner_turn) return result;
    if (result && result->verdict == Verdict::steps) {
      steps += result->steps;
      continue;
    }
    leg.runs = false;
    if (result) {
      raw_ = raw_ || result->verdict == Verdict::take_raw;
    } else if (!trouble_) {
      trouble_ = std::move(result).error();
      fail(*trouble_);
    }
  }
  return steps != 0 ? Next{Verdict::steps, steps} : end();
}

/// A leg counts as delivered only if all legs are.
Result<Next> LegSet::end() {
  if (!trouble_) return Next{raw_ ? Verdict::take_raw : Verdict::delivered, 0};
  undo(pipeline::Undo::gradient_lost);
  return *std::move(trouble_);
}

void LegSet::fail(const Error& failure) {
  for (Leg& leg : legs_) {
    if (leg.runs) leg.strategy->fail(failure);
  }
}

Result<void> LegSet::finish() {
  Result<void> first;
  for (Leg& leg : legs_) {
    if (leg.strategy->idle()) continue;
    if (auto done = leg.strategy->finish(); !done && first) first = std::move(done);
  }
  return first;
}

void LegSet::undo(pipeline::Undo why) {
  for (Leg& leg : legs_) leg.strategy->undo(why);
}

bool LegSet::replan() {
  bool ok = true;
  for (Leg& leg : legs_) ok = leg.strategy->replan() && ok;
  return ok;
}

uint64_t LegSet::held_bytes() const noexcept {
  uint64_t bytes = held(legs_);
  for (const Leg& leg : legs_) bytes += leg.strategy->held_bytes();
  return bytes;
}

}  // namespace laconic::collective

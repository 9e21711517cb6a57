// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/hearing.h"

#include "aggregation/link/settings.h"

namespace laconic::aggregation {
namespace {

/// A network without multicast delays registration by 20 + 40 + 80 + 160 ms.
constexpr uint32_t kTries = 4;
/// After this number of results that arrived only on request, the group counts as unreachable.
constexpr uint32_t kUnheard = 32;
/// Time until an unreachable group is tested again.
constexpr Time kNextTrial = 5000 * kMillisecond;

}  // namespace

void Hearing::follow(const protocol::Group& group) noexcept {
  if (group == group_) return;
  group_ = group;
  hears_ = on_trial_ = false;
  try_at_ = kNever;
}

void Hearing::become_member(Time now, bool first) noexcept {
  if (!group_.exists() || hears_) return;
  on_trial_ = first;
  begin_trial(now, kTries);
}

void Hearing::begin_exchange(Time now) noexcept {
  if (group_.exists() && !hears_ && try_at_ == kNever && now >= next_trial_) begin_trial(now, 1);
}

void Hearing::begin_trial(Time now, uint32_t tries) noexcept {
  tries_left_ = tries;
  try_at_ = now;
}

void Hearing::end_trial(Time now) noexcept {
  on_trial_ = false;
  try_at_ = kNever;
  next_trial_ = now + kNextTrial;
}

bool Hearing::next_try(Time now) noexcept {
  if (now < try_at_) return false;
  if (tries_left_ == 0) {
    end_trial(now);
    return false;
  }
  try_at_ = now + (kFirstHello << (kTries - tries_left_--));
  return true;
}

void Hearing::note_way(Time now, bool by_group) noexcept {
  if (by_group) {
    if (!hears_) end_trial(now);
    hears_ = true;
    unheard_ = 0;
  } else if (hears_ && ++unheard_ >= kUnheard) {
    hears_ = false;
    unheard_ = 0;
    next_trial_ = now + kNextTrial;
  }
}

}  // namespace laconic::aggregation

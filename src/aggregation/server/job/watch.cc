// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job/watch.h"

#include <algorithm>

namespace laconic::aggregation {

bool Watch::refused_again(Time now, Member& member) noexcept {
  const bool again =
      member.refused != 0 && member.heard <= member.refused && now - member.refused <= kProbe;
  if (!again) member.refused = std::max<Time>(now, 1);
  return again;
}

Time Watch::next_event(const Members& members, bool beside) const noexcept {
  Time next = idle_after() + 1;
  if (beside) next = std::min(next, ticked_ + kProbe);
  if (waiting_ == kNever) return next;
  next = std::min(next, std::max(probe_at_, waiting_ + kProbe));
  const Time timeout = terms_.timeout();
  for (const Member& m : members.all()) {
    // A silent worker that is not needed now may be needed later.
    const Time silent = std::max(m.heard, waiting_) + timeout + 1;
    next = std::min(next, silent > ticked_ ? silent : ticked_ + timeout / 4 + 1);
  }
  return next;
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job/members.h"

#include <algorithm>

namespace laconic::aggregation {

void Member::acknowledge(Time now, uint64_t number) noexcept {
  if (timed == 0 || number < timed) return;
  const Time sample = std::max<Time>(now - timed_since, 1);
  round_trip = round_trip == 0 ? sample : (7 * round_trip + sample) / 8;
  timed = 0;
}

uint8_t Members::enrolled() const noexcept {
  const auto members = all();
  return static_cast<uint8_t>(
      std::count_if(members.begin(), members.end(), [](const Member& m) { return m.enrolled; }));
}

bool Members::has_one_at(const Address& address) const noexcept {
  const auto members = all();
  return std::any_of(members.begin(), members.end(),
                     [&](const Member& m) { return m.enrolled && m.address == address; });
}

Member* Members::sender(const Address& from, uint32_t worker) noexcept {
  if (worker >= world_) return nullptr;
  Member& member = members_[worker];
  return member.enrolled && member.address == from ? &member : nullptr;
}

bool Members::enrol(const protocol::Enrolment& e, const Address& from) noexcept {
  Member& member = members_[e.from.worker];
  member.address = from;
  member.attempt = e.from.attempt;
  member.wants_group = e.wants_group;
  if (member.enrolled) return false;
  member.enrolled = true;
  member.instance = e.from.instance;
  member.ack = e.ack;
  member.kept = e.kept;
  std::copy(e.held.begin(), e.held.end(),
            held_.begin() + static_cast<std::ptrdiff_t>(e.from.worker * e.held.size()));
  return enrolled() == world_;
}

Members::Holdings Members::holdings() const noexcept {
  Holdings holdings;
  const std::size_t bytes = held_.size() / world_;
  for (uint32_t w = 0; w < world_; ++w)
    holdings[w] = {members_[w].ack, members_[w].kept, Bytes(held_).subspan(w * bytes, bytes)};
  return holdings;
}

}  // namespace laconic::aggregation

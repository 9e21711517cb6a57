// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/flights.h"

namespace laconic::aggregation {
namespace {

constexpr uint16_t kNobody = 0xFFFFU;

}  // namespace

void Flights::append(List& list, Flight& f, Where where) noexcept {
  const auto index = static_cast<uint16_t>(&f - flights_.data());
  f.where = where;
  f.before = list.last;
  f.behind = kNobody;
  // Lost datagrams in order of their numbers: after a timeout few are sent at a time, and sums
  // close only if all workers send the same.
  while (where == Where::lost && f.before != kNobody && flights_[f.before].number > f.number) {
    f.behind = f.before;
    f.before = flights_[f.before].before;
  }
  (f.before == kNobody ? list.first : flights_[f.before].behind) = index;
  (f.behind == kNobody ? list.last : flights_[f.behind].before) = index;
  ++list.size;
}

void Flights::remove(Flight& f) noexcept {
  if (f.where == Where::nowhere) return;
  List& list = f.where == Where::under_way ? under_way_ : lost_;
  (f.before == kNobody ? list.first : flights_[f.before].behind) = f.behind;
  (f.behind == kNobody ? list.last : flights_[f.behind].before) = f.before;
  --list.size;
  f.where = Where::nowhere;
}

void Flights::lose(Flight& f) noexcept {
  remove(f);
  append(lost_, f, Where::lost);
}

template <class Which>
bool Flights::lose_those(Which&& which) noexcept {
  const uint32_t before = lost_.size;
  for (uint16_t i = under_way_.first; i != kNobody;) {
    Flight& f = flights_[i];
    i = f.behind;
    if (which(f)) lose(f);
  }
  return lost_.size != before;
}

void Flights::lose_all() noexcept {
  lose_those([](const Flight&) { return true; });
}

bool Flights::lose_from(uint64_t number) noexcept {
  return lose_those([number](const Flight& f) { return f.number >= number; });
}

void Flights::lose_pulls_from(uint64_t number) noexcept {
  lose_those([number](const Flight& f) { return f.pull && f.number >= number; });
}

bool Flights::send(Time now, uint64_t number, bool pull) noexcept {
  Flight& f = flight(number);
  const bool again = f.number == number && f.where == Where::lost;
  if (again) remove(f);
  f.number = number;
  f.again = again;
  f.pull = pull;
  f.sent = now;
  f.order = ++order_;
  append(under_way_, f, Where::under_way);
  return again;
}

void Flights::arrived(Time now, uint64_t number, Pace& pace) noexcept {
  Flight& f = flight(number);
  const bool limited = under_way_.size + 1 >= pace.window();
  if (f.number == number && f.where == Where::under_way && !f.again) {
    pace.sample(now, std::max<Time>(now - f.sent, 1));
    latest_sends_.add(f.order);
  }
  latest_numbers_.add(number + 1);
  if (f.number == number) remove(f);
  pace.delivered(now, limited);
  find_holes(now, pace);
}

// A datagram counts as lost after three later results: others also send in order. One sent again is
// compared with those sent after it, and has a round trip's time, because the missing contribution
// may be another worker's.
void Flights::find_holes(Time now, const Pace& pace) noexcept {
  const uint64_t order = latest_sends_.third(), number = latest_numbers_.third();
  const Time late = pace.round_trip() + pace.round_trip() / 4;
  for (uint16_t i = under_way_.first; i != kNobody;) {
    Flight& f = flights_[i];
    i = f.behind;
    if (!f.again && f.number + 1 >= number) return;
    if (f.again && (f.order >= order || now < f.sent + late)) continue;
    lose(f);
  }
}

}  // namespace laconic::aggregation

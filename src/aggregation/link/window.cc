// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/window.h"

namespace laconic::aggregation {
namespace {

uint32_t largest_window(const LinkSettings& s) noexcept {
  return s.window == 0 ? s.job.ring : std::min<uint32_t>(s.window, s.job.ring);
}

}  // namespace

Window::Window(const LinkSettings& settings)
    : ring_(settings.job.ring),
      pace_(largest_window(settings), longest_timeout(settings.job)),
      flights_(settings.job.ring) {}

void Window::begin(Time now, uint64_t first) noexcept {
  next_ = first;
  probe_at_ = now;
}

void Window::begin_again(Time now) noexcept {
  probe_at_ = now;
  flights_.lose_all();
}

// The floor may lie lower than was thought: what lies above floor + ring was not taken.
void Window::take_status(Time now) noexcept {
  if (flights_.lose_from(floor_ + ring_)) probe_at_ = now + pace_.timeout();
}

bool Window::send(Time now, Time moved, const Results& results, Uplink& uplink) noexcept {
  const bool timed_out = flights_.under_way() != 0 && now >= times_out_at(moved);
  if (timed_out) {
    pace_.timed_out();
    flights_.lose_all();
  }
  uint64_t number = 0;
  while (flights_.under_way() < pace_.window() && next_to_send(now, results, &number)) {
    uplink.granule(results, number, flights_.send(now, number, results.behind()));
  }
  return timed_out;
}

// Above what the server takes only a probe goes, from time to time: its answer names the floor.
bool Window::next_to_send(Time now, const Results& results, uint64_t* number) noexcept {
  const uint64_t above = floor_ + ring_;
  const bool probe = flights_.under_way() == 0 && now >= probe_at_;
  if (flights_.any_lost()) {
    *number = flights_.first_lost();
    if (*number < above) return true;
    if (probe) probe_at_ = now + pace_.timeout();
    return probe;
  }
  while (next_ < results.end() && results.has(next_)) ++next_;
  if (next_ >= results.end() || next_ >= results.ack() + ring_) return false;
  if (next_ >= above && !probe) return false;
  if (next_ >= above) probe_at_ = now + pace_.timeout();
  *number = next_++;
  return true;
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/link.h"

#include <algorithm>
#include <string>
#include <utility>

namespace laconic::aggregation {
namespace {

using protocol::DatagramFault;
using protocol::DatagramType;

constexpr Time kKeepEvery = 200 * kMillisecond;
constexpr uint32_t kTimeoutsBeforeHello = 3;

}  // namespace

Link::Link(LinkSettings settings)
    : settings_(std::make_unique<const LinkSettings>(std::move(settings))),
      registration_(*settings_),
      results_(*settings_),
      window_(*settings_),
      silence_(settings_->job.timeout_ms) {}

LinkStats Link::stats() const noexcept {
  LinkStats stats = stats_;
  results_.add_to(stats);
  stats.rtt_us = window_.pace().round_trip() / 1000;
  stats.multicast_servers = hearing_.hears() ? 1 : 0;
  return stats;
}

void Link::fail(const Failure& failure) noexcept {
  if (failed() || !failure.exists()) return;
  // Nothing is wanted any more, and what others want is lost with them or with the server.
  if (closing_ && done()) {
    closed_ = true;
    return;
  }
  failure_ = failure;
}

Error Link::late(const char* what) const {
  const bool answered = registration_.answered();
  return {Errc::timed_out,
          "aggregation server " + settings_->server + ": " + (answered ? what : "no answer"),
          answered ? "" : std::string(kIsItThere)};
}

// ---- registration ----

void Link::connect(Time now) noexcept {
  silence_.restart(now);
  registration_.greet(now);
}

void Link::become_member(Time now) noexcept {
  const bool first = !registration_.ever_joined();
  if (!first) ++stats_.aggregator_restarts;
  hearing_.become_member(now, first);
  registration_.become_member();
  silence_.moved(now);
  results_.caught_up();
  window_.begin_again(now);
  if (closing_) leave_at_ = now;
}

// ---- what comes ----

void Link::take(Time now, Bytes datagram, bool by_group) noexcept {
  protocol::DatagramStart start;
  if (failed() || protocol::parse_start(datagram, &start) != DatagramFault::none ||
      start.job != settings_->id()) {
    ++stats_.rejected;
    return;
  }
  Failure failure;
  protocol::Welcome welcome;
  bool taken = false;
  switch (by_group ? DatagramType::result : start.type) {
    case DatagramType::challenge:
      taken = registration_.take_challenge(now, datagram, window_.pace(), failure);
      if (taken) silence_.heard(now);
      break;
    case DatagramType::welcome:
      taken = registration_.take_welcome(datagram, welcome);
      if (!taken) break;
      silence_.heard(now);
      if (settings_->multicast) hearing_.follow(welcome.group);
      if (!registration_.enrolled() && welcome.complete) become_member(now);
      break;
    case DatagramType::refusal:
      taken = registration_.take_refusal(datagram, failure);
      break;
    case DatagramType::stranger:
      taken = registration_.take_stranger(now, datagram, window_.pace());
      break;
    default:
      taken = take_down(now, datagram, by_group);
      break;
  }
  if (!taken) ++stats_.rejected;
  fail(failure);
}

bool Link::take_down(Time now, Bytes datagram, bool by_group) noexcept {
  const Epoch& epoch = registration_.epoch();
  protocol::DownHeader h;
  if (!epoch.known || protocol::parse_down(datagram, &h) != DatagramFault::none ||
      h.epoch != static_cast<uint16_t>(epoch.number) || h.type == DatagramType::held ||
      settings_->job.full_tags != ((h.flags & protocol::kFull) != 0) ||
      (by_group && (!hearing_.group().exists() ||
                    (h.type != DatagramType::result && h.type != DatagramType::status)))) {
    return false;
  }
  const uint64_t number = protocol::nearest_number(h.granule, results_.ack());
  if (!protocol::tag_is_right(datagram, protocol::kDownHeaderBytes, epoch.key,
                              protocol::era_of(number)))
    return false;
  ++stats_.received;
  silence_.heard(now);
  if (h.type == DatagramType::failed) {
    fail(reported(h));
    return true;
  }
  if (!registration_.enrolled()) {          // the welcome was lost
    if (settings_->multicast) return true;  // it names the group: enrol again
    become_member(now);
  }
  registration_.confirm();
  if (h.ahead != 0xFFFFU && h.ahead <= number) window_.raise_floor(number - h.ahead);
  switch (h.type) {
    case DatagramType::result:
      return take_result(now, number, h, datagram.subspan(protocol::kDownHeaderBytes), by_group);
    case DatagramType::status:
      if (by_group) {
        // Only for a requested result: one that is sent again does not show that new ones arrive.
        if (hearing_.has_asked()) hearing_.note_way(now, true);
        return true;
      }
      if (closing_ && window_.floor() >= results_.end()) closed_ = true;
      window_.take_status(now);
      return true;
    case DatagramType::open:
      results_.caught_up();
      window_.open(number);
      return true;
    case DatagramType::fetch:
      results_.ask(number);
      return true;
    default:
      return true;
  }
}

bool Link::take_result(Time now, uint64_t number, const protocol::DownHeader& h, Bytes payload,
                       bool by_group) noexcept {
  const Results::Judgement judgement = results_.judge(number, payload.size());
  if (judgement == Results::Judgement::duplicate) ++stats_.duplicate_datagrams;
  if (judgement != Results::Judgement::wanted) return judgement == Results::Judgement::duplicate;
  silence_.moved(now);
  if (results_.in_exchange(number)) window_.arrived(now, number);
  fail(results_.store(number, h, payload));
  results_.advance();
  if (done()) {
    ack_due_ = true;
    results_.caught_up();
  }
  hearing_.note_way(now, by_group);
  if (by_group) ++stats_.multicast_datagrams;
  return true;
}

// ---- exchanges ----

void Link::begin(Time now, const Outgoing* out, Incoming* in, uint64_t count,
                 uint64_t stride) noexcept {
  silence_.restart(now);
  ack_due_ = floor_due_ = false;
  hearing_.begin_exchange(now);
  fail(results_.begin(out, in, count, stride));
  window_.begin(now, results_.first());
  results_.advance();
  if (done()) {
    ack_due_ = count != 0;
    results_.caught_up();
  }
}

void Link::close(Time now) noexcept {
  closing_ = true;
  silence_.restart(now);
  leave_at_ = now;
  if (!registration_.ever_joined() || failed()) closed_ = true;
}

void Link::keep(Time now) noexcept {
  if (failed() || closed_ || closing_ || !registration_.ever_joined() || !done()) return;
  if (!waits()) silence_.restart(now);  // other links' results may have taken long
  const bool all_have_all = results_.end() != 0 && window_.floor() >= results_.end();
  if (all_have_all || !registration_.may_send() || now < keep_at_) return;
  floor_due_ = true;
  keep_at_ = now + kKeepEvery;
}

bool Link::waits() const noexcept {
  return !failed() && !closed_ && !registration_.idle() &&
         (!registration_.ever_joined() || closing_ || !done() || !registration_.is_member());
}

// ---- what goes ----

void Link::send(Time now, Sender& sender) noexcept {
  if (waits()) fail(silence_.too_long(now));
  if (failed() || closed_ || registration_.idle()) return;
  Uplink uplink(*settings_, registration_.epoch(), hearing_.hears(), sender, stats_);
  for (const uint64_t number : results_.asked()) uplink.held(results_, number);
  results_.forget_asked();
  registration_.send(now, results_, window_.pace(), sender);
  if (!registration_.may_send()) return;
  if (hearing_.next_try(now)) uplink.bare(DatagramType::ack, results_.ack(), protocol::kTry);
  if (!done() && window_.send(now, silence_.moved_at(), results_, uplink) &&
      window_.pace().timeouts_in_a_row() >= kTimeoutsBeforeHello) {
    registration_.doubt(now);
  }
  if (ack_due_) uplink.bare(DatagramType::ack, results_.ack());
  // Above what the server takes: the answer to that is a status.
  if (floor_due_) uplink.bare(DatagramType::pull, results_.ack(), 0, settings_->job.ring);
  ack_due_ = floor_due_ = false;
  if (closing_ && now >= leave_at_) leave(now, uplink);
}

void Link::leave(Time now, Uplink& uplink) noexcept {
  uplink.bare(DatagramType::leave, results_.ack());
  Pace& pace = window_.pace();
  leave_at_ = now + std::min(longest_timeout(settings_->job), pace.timeout());
  pace.timed_out();
  if (pace.timeouts_in_a_row() > kTimeoutsBeforeHello) registration_.doubt(now);
}

Time Link::wake(Time now) const noexcept {
  if (failed() || closed_ || registration_.idle()) return kNever;
  Time next = registration_.wake();
  if (waits()) next = std::min(next, silence_.wake());
  if (!results_.asked().empty()) next = now;
  if (registration_.may_send()) {
    next = std::min(next, hearing_.wake());
    if (ack_due_) next = now;
    if (closing_) next = std::min(next, leave_at_);
    if (!done()) next = std::min(next, window_.wake(silence_.moved_at()));
  }
  return next;
}

}  // namespace laconic::aggregation

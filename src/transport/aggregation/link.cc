// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "transport/aggregation/link.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "laconic/engine/names_of.h"

namespace laconic::transport::aggregation {
namespace {

using wire::DatagramFault;
using wire::DatagramType;
using wire::Reason;

constexpr Time kMillisecond = 1000000;
constexpr uint16_t kNobody = 0xFFFFU;
/// Before the first round trip is known.
constexpr Time kFirstHello = 20 * kMillisecond;
constexpr Time kLongestTimeout = 1000 * kMillisecond;
constexpr Time kKeepEvery = 200 * kMillisecond;
constexpr uint32_t kTimeoutsBeforeHello = 3;
constexpr uint32_t kBadChallenges = 3;
/// A network without multicast delays registration by 20 + 40 + 80 + 160 ms.
constexpr uint32_t kTries = 4;
/// Behind so many results that only came on asking, the group is not heard any more.
constexpr uint32_t kUnheard = 32;
/// A group that was not heard is tried again.
constexpr Time kNextTrial = 5000 * kMillisecond;

Time longest_timeout(const wire::JobSettings& job) noexcept {
  return std::min<Time>(kLongestTimeout, uint64_t{job.timeout_ms} * kMillisecond / 8);
}

uint32_t largest_window(const LinkSettings& s) noexcept {
  return s.window == 0 ? s.job.ring : std::min<uint32_t>(s.window, s.job.ring);
}

std::vector<uint32_t> workers_of(uint64_t bitmap) {
  std::vector<uint32_t> workers;
  for (; bitmap != 0; bitmap &= bitmap - 1)
    workers.push_back(static_cast<uint32_t>(std::countr_zero(bitmap)));
  return workers;
}

}  // namespace

Link::Link(LinkSettings settings)
    : settings_(std::move(settings)),
      kept_(settings_.job.ring),
      sums_(settings_.job.ring * round_up(settings_.job.slot_bytes(), 64)),
      stride_bytes_(round_up(settings_.job.slot_bytes(), 64)),
      flights_(settings_.job.ring),
      pace_(largest_window(settings_), longest_timeout(settings_.job)) {}

LinkStats Link::stats() const noexcept {
  LinkStats stats = stats_;
  stats.rtt_us = pace_.round_trip() / 1000;
  stats.multicast_servers = hears_ ? 1 : 0;
  return stats;
}

void Link::fail(Errc code, std::string message, std::string hint) noexcept {
  if (failed()) return;
  // Nothing is wanted any more, and what others want is lost with them or with the server.
  if (closing_ && done()) {
    closed_ = true;
    return;
  }
  error_ = {code, "aggregation server " + settings_.server + ": " + std::move(message),
            std::move(hint)};
}

// ---- lists of granules, by their places in the ring ----

void Link::append(List& list, Flight& f, Where where) noexcept {
  const auto index = static_cast<uint16_t>(&f - flights_.data());
  f.where = where;
  f.before = list.last;
  f.behind = kNobody;
  // Lost ones by their numbers: after a time-out few go at a time, and sums close only if those of
  // all workers are the same.
  while (where == Where::lost && f.before != kNobody && flights_[f.before].number > f.number) {
    f.behind = f.before;
    f.before = flights_[f.before].before;
  }
  (f.before == kNobody ? list.first : flights_[f.before].behind) = index;
  (f.behind == kNobody ? list.last : flights_[f.behind].before) = index;
  ++list.size;
}

void Link::remove(Flight& f) noexcept {
  if (f.where == Where::nowhere) return;
  List& list = f.where == Where::under_way ? under_way_ : lost_;
  (f.before == kNobody ? list.first : flights_[f.before].behind) = f.behind;
  (f.behind == kNobody ? list.last : flights_[f.behind].before) = f.before;
  --list.size;
  f.where = Where::nowhere;
}

// ---- registration ----

void Link::connect(Time now) noexcept {
  heard_ = moved_ = now;
  greet(now);
}

// The key stays: as long as no other epoch was registered for, results of this one are good.
void Link::greet(Time now) noexcept {
  phase_ = Phase::greeting;
  tries_ = 0;
  hello_at_ = now;
  enrol_at_ = kNever;
}

void Link::send_hello(Time now, Outlet& outlet) noexcept {
  const wire::Applicant me{settings_.number, settings_.instance, ++attempt_, settings_.worker};
  // A server answers a tag whatever else comes to it. One of before has no use for it, and for the
  // hello: every other one goes without.
  const bool tagged = settings_.token != wire::Token{} && attempt_ % 2 == 1;
  const wire::SipKey key = wire::hello_key(settings_.token);
  std::array<uint8_t, wire::kHelloBytes> message;
  wire::write_hello(me, tagged ? &key : nullptr, message.data());
  outlet.send(message, {}, 0);
  hello_sent_ = now;
  const Time once = std::max(kFirstHello, pace_.timeout());
  hello_at_ = now + std::min(longest_timeout(settings_.job), once << std::min(tries_++, 6U));
}

void Link::take_challenge(Time now, Bytes datagram) noexcept {
  wire::Challenge challenge;
  if (wire::parse_challenge(datagram, &challenge) != DatagramFault::none ||
      challenge.to.job != settings_.number || challenge.to.instance != settings_.instance ||
      challenge.to.attempt <= settled_ || challenge.to.attempt > attempt_) {
    ++stats_.rejected;
    return;
  }
  if (!wire::message_tag_is_right(datagram, wire::challenge_key(settings_.token, challenge.to))) {
    ++stats_.rejected;
    if (!ever_joined_ && ++bad_challenges_ >= kBadChallenges) {
      fail(Errc::ranks_disagree, std::string(wire::reason_text(Reason::token)),
           "every worker needs the file that the server was started with");
    }
    return;
  }
  heard_ = now;
  if (challenge.to.attempt == attempt_) pace_.sample(now, std::max<Time>(now - hello_sent_, 1));
  settled_ = attempt_;
  hello_at_ = kNever;
  if (challenge.epoch == epoch_ && enrolled_) {
    phase_ = Phase::member;  // the server that we know
    return;
  }
  // From here on results of the old epoch are refused: the server is told what is held now.
  epoch_ = challenge.epoch;
  pad_ = challenge.pad;
  nonce_ = challenge.nonce;
  key_ = wire::job_key(settings_.token, settings_.number, epoch_);
  has_key_ = true;
  enrolled_ = false;
  phase_ = Phase::enrolling;
  tries_ = 0;
  enrol_at_ = now;
}

void Link::send_enrolment(Time now, Outlet& outlet) noexcept {
  std::array<uint8_t, wire::kMaxRing / 8> held{};
  for (uint64_t i = 0; i < ring(); ++i) {
    if (has(ack_ + i)) held[i / 8] |= static_cast<uint8_t>(1U << (i % 8));
  }
  wire::Enrolment e;
  e.from = {settings_.number, settings_.instance, attempt_, settings_.worker};
  e.epoch = epoch_;
  e.nonce = nonce_;
  e.settings = settings_.job;
  e.ack = ack_;
  e.kept = top_ > ring() ? std::min(ack_, top_ - ring()) : 0;
  e.held = Bytes(held).first(ring() / 8);
  e.wants_group = settings_.multicast;
  std::array<uint8_t, wire::kMaxEnrolmentBytes> message;
  const wire::SipKey key = wire::enrolment_key(settings_.token, e.from, epoch_, nonce_);
  const uint64_t bytes = wire::write_enrolment(e, key, message.data());
  outlet.send(Bytes(message).first(bytes), {}, 0);
  const Time once = std::max(kFirstHello, pace_.timeout());
  enrol_at_ = now + std::min(longest_timeout(settings_.job), once << std::min(tries_++, 6U));
}

void Link::take_welcome(Time now, Bytes datagram) noexcept {
  wire::Welcome welcome;
  if (!has_key_ || wire::parse_welcome(datagram, &welcome) != DatagramFault::none ||
      welcome.to.instance != settings_.instance || welcome.epoch != epoch_ ||
      !wire::message_tag_is_right(datagram, key_)) {
    ++stats_.rejected;
    return;
  }
  heard_ = now;
  set_group(welcome.group);
  if (!enrolled_ && welcome.complete) become_member(now);
}

// ---- the group ----

// What was heard of another group says nothing of this one.
void Link::set_group(const wire::Group& group) noexcept {
  if (!settings_.multicast || group == group_) return;
  group_ = group;
  hears_ = on_trial_ = false;
  try_at_ = kNever;
}

void Link::begin_trial(Time now, uint32_t tries) noexcept {
  tries_left_ = tries;
  try_at_ = now;
}

void Link::end_trial(Time now) noexcept {
  on_trial_ = false;
  try_at_ = kNever;
  next_trial_ = now + kNextTrial;
}

void Link::send_try(Time now, Outlet& outlet) noexcept {
  if (tries_left_ == 0) return end_trial(now);
  try_at_ = now + (kFirstHello << (kTries - tries_left_--));
  send_bare(DatagramType::ack, outlet, wire::kTry);
}

// Which way something new came.
void Link::note_way(Time now, bool by_group) noexcept {
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

void Link::become_member(Time now) noexcept {
  if (ever_joined_) ++stats_.aggregator_restarts;
  if (group_.exists() && !hears_) {
    on_trial_ = !ever_joined_;
    begin_trial(now, kTries);
  }
  phase_ = Phase::member;
  enrolled_ = ever_joined_ = true;
  hello_at_ = kNever;
  enrol_at_ = kNever;
  moved_ = now;
  pulling_ = false;
  probe_at_ = now;
  if (closing_) leave_at_ = now;
  // What the old server had of this worker is lost with it.
  while (under_way_.size != 0) {
    Flight& f = flights_[under_way_.first];
    remove(f);
    append(lost_, f, Where::lost);
  }
}

void Link::take_refusal(Bytes datagram) noexcept {
  wire::Refusal refusal;
  const bool sound = wire::parse_refusal(datagram, &refusal) == DatagramFault::none &&
                     refusal.to.job == settings_.number &&
                     refusal.to.instance == settings_.instance && refusal.to.attempt <= attempt_ &&
                     (phase_ == Phase::greeting || phase_ == Phase::enrolling);
  // Another token or version cannot give a tag that is right here; before the first step a forged
  // answer of that kind does what silence does.
  const bool untagged = refusal.reason == Reason::token || refusal.reason == Reason::version;
  const bool believed =
      sound && (untagged ? !ever_joined_
                         : wire::message_tag_is_right(
                               datagram, wire::challenge_key(settings_.token, refusal.to)));
  if (!believed) {
    ++stats_.rejected;
    return;
  }
  std::string text(wire::reason_text(refusal.reason));
  switch (refusal.reason) {
    case Reason::version:
    case Reason::world:
    case Reason::quorum:
      text += ": expected " + std::to_string(refusal.expected) + ", found " +
              std::to_string(refusal.found);
      return fail(Errc::ranks_disagree, std::move(text), "start all of them in the same way");
    case Reason::token:
      return fail(Errc::ranks_disagree, std::move(text),
                  "every worker needs the file that the server was started with");
    case Reason::auth:
      return fail(Errc::ranks_disagree, std::move(text),
                  "give the workers auth=full, or start the server with --auth header");
    case Reason::lane_overflow:
      text += ": at most " + std::to_string(refusal.expected) + " workers, found " +
              std::to_string(refusal.found);
      return fail(Errc::unsupported, std::move(text), "use lanes of 16 bits, or fewer bits");
    case Reason::memory:
      text += ": " + std::to_string(refusal.found) + " bytes are needed, " +
              std::to_string(refusal.expected) + " are left";
      return fail(Errc::out_of_memory, std::move(text), "start it with a larger --memory");
    case Reason::jobs:
      return fail(Errc::unsupported, std::move(text), "wait for another job to end");
    case Reason::spec:
    case Reason::settings:
    case Reason::malformed:
      return fail(Errc::ranks_disagree, std::move(text), "start all of them in the same way");
    default:
      blamed_ = static_cast<int>(refusal.found);
      return fail(Errc::peer_failed, "rank " + std::to_string(refusal.found) + ": " + text, {});
  }
}

// Anybody can send this: it is only a hint to ask, and never asked for more often than hellos go.
void Link::take_stranger(Time now, Bytes datagram) noexcept {
  uint32_t job = 0;
  if (wire::parse_stranger(datagram, &job) != DatagramFault::none ||
      job != static_cast<uint32_t>(settings_.number)) {
    ++stats_.rejected;
    return;
  }
  if (phase_ != Phase::member && phase_ != Phase::enrolling) return;
  const Time again = hello_sent_ + std::max(kFirstHello, pace_.round_trip());
  greet(std::max(now, again));
}

// ---- what comes ----

void Link::take(Time now, Bytes datagram, bool by_group) noexcept {
  wire::DatagramStart start;
  if (failed() || wire::parse_start(datagram, &start) != DatagramFault::none ||
      start.job != static_cast<uint32_t>(settings_.number)) {
    ++stats_.rejected;
    return;
  }
  if (by_group) return take_down(now, datagram, true);
  switch (start.type) {
    case DatagramType::challenge:
      return take_challenge(now, datagram);
    case DatagramType::welcome:
      return take_welcome(now, datagram);
    case DatagramType::refusal:
      return take_refusal(datagram);
    case DatagramType::stranger:
      return take_stranger(now, datagram);
    default:
      return take_down(now, datagram, false);
  }
}

void Link::take_down(Time now, Bytes datagram, bool by_group) noexcept {
  wire::DownHeader h;
  if (!has_key_ || wire::parse_down(datagram, &h) != DatagramFault::none ||
      h.epoch != static_cast<uint16_t>(epoch_) || h.type == DatagramType::held ||
      settings_.job.full_tags != ((h.flags & wire::kFull) != 0) ||
      (by_group &&
       (!group_.exists() || (h.type != DatagramType::result && h.type != DatagramType::status)))) {
    ++stats_.rejected;
    return;
  }
  const uint64_t number = wire::nearest_number(h.granule, ack_);
  if (!wire::tag_is_right(datagram, wire::kDownHeaderBytes, key_, wire::era_of(number))) {
    ++stats_.rejected;
    return;
  }
  ++stats_.received;
  heard_ = now;
  if (h.type == DatagramType::failed) return take_failure(h);
  if (!enrolled_) {                   // the welcome was lost
    if (settings_.multicast) return;  // it names the group: enrol again
    become_member(now);
  }
  if (phase_ == Phase::member) hello_at_ = kNever;
  if (h.ahead != 0xFFFFU && h.ahead <= number) floor_ = std::max(floor_, number - h.ahead);
  switch (h.type) {
    case DatagramType::result:
      if (take_result(now, number, h, datagram.subspan(wire::kDownHeaderBytes))) {
        note_way(now, by_group);
        if (by_group) ++stats_.multicast_datagrams;
      }
      return;
    case DatagramType::status:
      if (!by_group) return take_status(now);
      // Only what was asked for: one that is sent again says nothing of what comes now.
      if (try_at_ != kNever) note_way(now, true);
      return;
    case DatagramType::open:
      return take_open(number);
    case DatagramType::fetch:
      if (has(number) && asked_count_ < asked_.size()) asked_[asked_count_++] = number;
      return;
    default:
      return;
  }
}

void Link::take_failure(const wire::DownHeader& h) noexcept {
  const auto reason =
      static_cast<Reason>(std::min(h.divisor, static_cast<uint8_t>(wire::kLastReason + 1)));
  blamed_ = h.added;
  const bool gone =
      reason == Reason::lost_worker || reason == Reason::lost_results || reason == Reason::left;
  const bool several = std::popcount(h.bitmap) > 1;
  fail(gone ? Errc::peer_failed : Errc::ranks_disagree,
       several ? names_of(workers_of(h.bitmap)) + ": the workers are silent or gone"
               : names_of({h.added}) + ": " + std::string(wire::reason_text(reason)),
       {});
}

// True: it is new.
bool Link::take_result(Time now, uint64_t number, const wire::DownHeader& h,
                       Bytes payload) noexcept {
  if (number < ack_ || has(number)) {
    ++stats_.duplicate_datagrams;
    return false;
  }
  if (number >= ack_ + ring() || payload.size() > stride_bytes_) {
    ++stats_.rejected;
    return false;
  }
  moved_ = now;
  store_result(number, h, payload);
  if (number >= first_ && number < end_) {
    note_arrival(now, number);
    deliver(number);
  }
  while (ack_ < end_ && has(ack_)) ++ack_;
  if (done()) {
    ack_due_ = true;
    pulling_ = false;
  }
  return true;
}

void Link::store_result(uint64_t number, const wire::DownHeader& h, Bytes payload) noexcept {
  Kept& k = kept(number);
  k = {number, h.bitmap, h.settings, static_cast<uint32_t>(payload.size()),
       h.norm, h.flags,  h.added};
  std::copy(payload.begin(), payload.end(), memory(number, payload.size()).begin());
  top_ = std::max(top_, number + 1);
}

void Link::deliver(uint64_t number) noexcept {
  const Kept& k = kept(number);
  const uint64_t i = (number - first_) * stride_;
  Incoming& in = in_[i];
  if (k.settings != out_[i].settings) {
    return fail(
        Errc::ranks_disagree,
        "granule " + std::to_string(number) + " is a sum of other settings than this rank's",
        "the ranks do not run the same sequence of exchanges");
  }
  if (k.length > in.lanes.size()) {
    return fail(Errc::ranks_disagree,
                "granule " + std::to_string(number) + " has " + std::to_string(k.length) +
                    " bytes, expected at most " + std::to_string(in.lanes.size()),
                "the ranks do not run the same sequence of exchanges");
  }
  const Bytes sum = memory(number, k.length);
  std::copy(sum.begin(), sum.end(), in.lanes.begin());
  in.bitmap = k.bitmap;
  in.length = k.length;
  in.norm = k.norm;
  in.flags = k.flags & (wire::kEmpty | wire::kTrouble | wire::kValues);
  in.added = k.added;
  in.divisor = static_cast<uint8_t>(std::popcount(k.bitmap));
  if (in.divisor < settings_.job.world) ++stats_.partial_granules;
  if ((k.bitmap >> settings_.worker & 1U) == 0) {
    ++stats_.excluded_granules;
    pulling_ = true;  // the others are ahead: catch up before contributing again
  }
}

void Link::note_arrival(Time now, uint64_t number) noexcept {
  Flight& f = flight(number);
  const bool limited = under_way_.size + 1 >= pace_.window();
  if (f.number == number && f.where == Where::under_way && !f.again) {
    pace_.sample(now, std::max<Time>(now - f.sent, 1));
    latest_sends_.add(f.order);
  }
  latest_numbers_.add(number + 1);
  if (f.number == number) remove(f);
  pace_.delivered(now, limited);
  find_holes(now);
}

// A hole is lost behind three later results: others, too, send in order. What was sent again is
// compared with what was sent behind it, and has a round trip's time, because the contribution that
// is missing may be another worker's.
void Link::find_holes(Time now) noexcept {
  const uint64_t order = latest_sends_.third(), number = latest_numbers_.third();
  const Time patience = pace_.round_trip() + pace_.round_trip() / 4;
  for (uint16_t i = under_way_.first; i != kNobody;) {
    Flight& f = flights_[i];
    i = f.behind;
    if (!f.again && f.number + 1 >= number) return;
    if (f.again && (f.order >= order || now < f.sent + patience)) continue;
    remove(f);
    append(lost_, f, Where::lost);
  }
}

// The floor may lie lower than was thought: what lies above floor + ring was not taken.
void Link::take_status(Time now) noexcept {
  if (closing_ && floor_ >= end_) closed_ = true;
  for (uint16_t i = under_way_.first; i != kNobody;) {
    Flight& f = flights_[i];
    i = f.behind;
    if (f.number < floor_ + ring()) continue;
    remove(f);
    append(lost_, f, Where::lost);
    probe_at_ = now + pace_.timeout();
  }
}

void Link::take_open(uint64_t number) noexcept {
  pulling_ = false;
  for (uint16_t i = under_way_.first; i != kNobody;) {
    Flight& f = flights_[i];
    i = f.behind;
    if (!f.pull || f.number < number) continue;
    remove(f);
    append(lost_, f, Where::lost);
  }
}

// ---- exchanges ----

void Link::begin(Time now, const Outgoing* out, Incoming* in, uint64_t count,
                 uint64_t stride) noexcept {
  out_ = out;
  in_ = in;
  stride_ = stride;
  first_ = end_;
  end_ += count;
  next_ = first_;
  heard_ = moved_ = now;
  probe_at_ = now;
  ack_due_ = floor_due_ = false;
  if (group_.exists() && !hears_ && try_at_ == kNever && now >= next_trial_) begin_trial(now, 1);
  // Others may have been faster by a whole exchange.
  for (uint64_t number = first_; number < std::min(end_, top_); ++number) {
    if (has(number)) deliver(number);
  }
  while (ack_ < end_ && has(ack_)) ++ack_;
  if (done()) {
    ack_due_ = count != 0;
    pulling_ = false;
  }
}

void Link::close(Time now) noexcept {
  closing_ = true;
  heard_ = moved_ = now;
  leave_at_ = now;
  if (!ever_joined_ || failed()) closed_ = true;
}

void Link::keep(Time now) noexcept {
  if (failed() || closed_ || closing_ || !ever_joined_ || !done()) return;
  if (!waits()) heard_ = moved_ = now;  // other links' results may have taken long
  const bool all_have_all = end_ != 0 && floor_ >= end_;
  if (all_have_all || !may_send() || now < keep_at_) return;
  floor_due_ = true;
  keep_at_ = now + kKeepEvery;
}

bool Link::waits() const noexcept {
  return !failed() && !closed_ && phase_ != Phase::idle &&
         (!ever_joined_ || closing_ || !done() || phase_ != Phase::member);
}

void Link::give_up_if_silent(Time now) noexcept {
  if (!waits()) return;
  const auto spent = [&](Time since, Time patience) {
    return now > since && now - since > patience;
  };
  if (spent(heard_, patience() * 3 / 2)) {
    return fail(Errc::timed_out,
                "no answer within " + std::to_string(settings_.job.timeout_ms * 3 / 2) + " ms",
                std::string(kIsItThere));
  }
  if (spent(moved_, patience() * 3)) {
    fail(Errc::timed_out,
         "no result within " + std::to_string(settings_.job.timeout_ms * 3) + " ms",
         "another rank did not get there");
  }
}

// ---- what goes ----

void Link::send(Time now, Outlet& outlet) noexcept {
  give_up_if_silent(now);
  if (failed() || closed_ || phase_ == Phase::idle) return;
  send_held(outlet);
  if (now >= hello_at_) send_hello(now, outlet);
  if (phase_ == Phase::enrolling && now >= enrol_at_) send_enrolment(now, outlet);
  if (!may_send()) return;
  if (now >= try_at_) send_try(now, outlet);
  if (!done()) send_window(now, outlet);
  if (ack_due_) {
    send_bare(DatagramType::ack, outlet);
    ack_due_ = false;
  }
  // Above what the server takes: the answer to that is a status.
  if (floor_due_)
    send_bare(DatagramType::pull, outlet, 0, static_cast<uint16_t>(settings_.job.ring));
  floor_due_ = false;
  if (closing_ && now >= leave_at_) {
    send_bare(DatagramType::leave, outlet);
    leave_at_ = now + std::min(longest_timeout(settings_.job), pace_.timeout());
    pace_.timed_out();
    if (pace_.timeouts_in_a_row() > kTimeoutsBeforeHello && hello_at_ == kNever) hello_at_ = now;
  }
}

void Link::send_window(Time now, Outlet& outlet) noexcept {
  if (under_way_.size != 0 && now >= times_out_at()) time_out(now);
  uint64_t number = 0;
  while (under_way_.size < pace_.window() && next_to_send(now, &number)) {
    send_granule(now, number, outlet);
  }
}

// While results come, holes are found by them.
Time Link::times_out_at() const noexcept {
  return std::max(flights_[under_way_.first].sent, moved_) + pace_.timeout();
}

void Link::time_out(Time now) noexcept {
  pace_.timed_out();
  while (under_way_.size != 0) {
    Flight& f = flights_[under_way_.first];
    remove(f);
    append(lost_, f, Where::lost);
  }
  // Perhaps it was started again and knows nothing of us.
  if (pace_.timeouts_in_a_row() >= kTimeoutsBeforeHello && hello_at_ == kNever) hello_at_ = now;
}

// Above what the server takes only a probe goes, from time to time: its answer names the floor.
bool Link::next_to_send(Time now, uint64_t* number) noexcept {
  const uint64_t above = floor_ + ring();
  const bool probe = under_way_.size == 0 && now >= probe_at_;
  for (uint16_t i = lost_.first; i != kNobody; i = flights_[i].behind) {
    *number = flights_[i].number;
    if (*number < above) return true;
  }
  if (lost_.size != 0) {
    *number = flights_[lost_.first].number;
    if (probe) probe_at_ = now + pace_.timeout();
    return probe;
  }
  while (next_ < end_ && has(next_)) ++next_;
  if (next_ >= end_ || next_ >= ack_ + ring()) return false;
  if (next_ >= above && !probe) return false;
  if (next_ >= above) probe_at_ = now + pace_.timeout();
  *number = next_++;
  return true;
}

void Link::send_granule(Time now, uint64_t number, Outlet& outlet) noexcept {
  Flight& f = flight(number);
  const bool again = f.number == number && f.where == Where::lost;
  if (again) {
    remove(f);
    ++stats_.resent_datagrams;
  }
  f.number = number;
  f.again = again;
  f.pull = pulling_;
  f.sent = now;
  f.order = ++order_;
  append(under_way_, f, Where::under_way);
  const Outgoing& o = out_[(number - first_) * stride_];
  wire::UpHeader h;
  h.type = pulling_ ? DatagramType::pull : DatagramType::data;
  h.flags = flags_of_all();
  h.job = static_cast<uint32_t>(settings_.number);
  h.granule = static_cast<uint32_t>(number);
  h.settings = o.settings;
  h.epoch = static_cast<uint16_t>(epoch_);
  h.ahead = static_cast<uint16_t>(number - ack_);
  h.worker = settings_.worker;
  Bytes payload;
  if (!pulling_) {
    h.flags |= o.flags & (wire::kEmpty | wire::kTrouble | wire::kValues);
    if (number == first_) h.flags |= wire::kFirst;
    h.norm = o.norm;
    if ((o.flags & wire::kEmpty) == 0) payload = o.payload;
  }
  std::array<uint8_t, wire::kUpHeaderBytes> header;
  const bool codes = !payload.empty() && (o.flags & wire::kValues) == 0;
  const std::size_t padding =
      pad_ && codes ? settings_.job.padded_bytes() - settings_.job.code_bytes() : 0;
  wire::write_up(h, key_, wire::era_of(number), payload, header.data(), padding);
  ++stats_.sent;
  outlet.send(header, payload, padding);
}

void Link::send_bare(DatagramType type, Outlet& outlet, uint8_t flags, uint16_t ahead) noexcept {
  wire::UpHeader h;
  h.type = type;
  h.flags = flags_of_all() | flags;
  h.job = static_cast<uint32_t>(settings_.number);
  h.granule = static_cast<uint32_t>(ack_ + ahead);
  h.ahead = ahead;
  h.epoch = static_cast<uint16_t>(epoch_);
  h.worker = settings_.worker;
  std::array<uint8_t, wire::kUpHeaderBytes> header;
  wire::write_up(h, key_, wire::era_of(ack_ + ahead), {}, header.data());
  ++stats_.sent;
  outlet.send(header, {}, 0);
}

void Link::send_held(Outlet& outlet) noexcept {
  for (std::size_t i = 0; i < asked_count_; ++i) {
    const uint64_t number = asked_[i];
    if (!has(number)) continue;
    const Kept& k = kept(number);
    wire::DownHeader h;
    h.type = DatagramType::held;
    h.flags = k.flags;
    h.job = static_cast<uint32_t>(settings_.number);
    h.granule = static_cast<uint32_t>(number);
    h.settings = k.settings;
    h.epoch = static_cast<uint16_t>(epoch_);
    h.ahead = settings_.worker;
    h.norm = k.norm;
    h.added = k.added;
    h.divisor = static_cast<uint8_t>(std::popcount(k.bitmap));
    h.bitmap = k.bitmap;
    const Bytes sum = memory(number, k.length);
    std::array<uint8_t, wire::kDownHeaderBytes> header;
    wire::write_down(h, key_, wire::era_of(number), sum, header.data());
    ++stats_.sent;
    outlet.send(header, sum, 0);
  }
  asked_count_ = 0;
}

Time Link::wake(Time now) const noexcept {
  if (failed() || closed_ || phase_ == Phase::idle) return kNever;
  Time next = hello_at_;
  if (phase_ == Phase::enrolling) next = std::min(next, enrol_at_);
  if (waits())
    next = std::min({next, heard_ + patience() * 3 / 2 + 1, moved_ + patience() * 3 + 1});
  if (asked_count_ != 0) next = now;
  if (may_send()) {
    next = std::min(next, try_at_);
    if (ack_due_) next = now;
    if (closing_) next = std::min(next, leave_at_);
    if (!done() && under_way_.size != 0) {
      next = std::min(next, times_out_at());
    }
    if (!done() && under_way_.size == 0) next = std::min(next, probe_at_);
  }
  return next;
}

}  // namespace laconic::transport::aggregation

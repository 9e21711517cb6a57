// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/registration.h"

#include <array>

namespace laconic::aggregation {
namespace {

using protocol::DatagramFault;
using protocol::Reason;

constexpr uint32_t kBadChallenges = 3;

}  // namespace

// The key stays: as long as no other epoch was registered for, results of this one are good.
void Registration::greet(Time at) noexcept {
  phase_ = Phase::greeting;
  tries_ = 0;
  hello_at_ = at;
  enrol_at_ = kNever;
}

void Registration::become_member() noexcept {
  phase_ = Phase::member;
  enrolled_ = ever_joined_ = true;
  hello_at_ = enrol_at_ = kNever;
}

Time Registration::next_try(Time now, const Pace& pace) noexcept {
  const Time once = std::max(kFirstHello, pace.timeout());
  return now + std::min(longest_timeout(settings_->job), once << std::min(tries_++, 6U));
}

void Registration::send(Time now, const Results& results, const Pace& pace,
                        Sender& sender) noexcept {
  if (now >= hello_at_) send_hello(now, pace, sender);
  if (now >= enrol_at_) send_enrolment(now, results, pace, sender);
}

void Registration::send_hello(Time now, const Pace& pace, Sender& sender) noexcept {
  ++attempt_;
  // A server answers a tag whatever else comes to it. One of before has no use for it, and for the
  // hello: every other one goes without.
  const bool tagged = settings_->token != protocol::Token{} && attempt_ % 2 == 1;
  const protocol::SipKey key = protocol::hello_key(settings_->token);
  std::array<uint8_t, protocol::kHelloBytes> message;
  protocol::write_hello(me(), tagged ? &key : nullptr, message.data());
  sender.send(kPeer, message, {}, 0);
  hello_sent_ = now;
  hello_at_ = next_try(now, pace);
}

void Registration::send_enrolment(Time now, const Results& results, const Pace& pace,
                                  Sender& sender) noexcept {
  std::array<uint8_t, protocol::kMaxRing / 8> held{};
  results.write_held(held.data());
  protocol::Enrolment e;
  e.from = me();
  e.epoch = epoch_.number;
  e.nonce = nonce_;
  e.settings = settings_->job;
  e.ack = results.ack();
  e.kept = results.lowest_kept();
  e.held = Bytes(held).first(settings_->job.ring / 8U);
  e.wants_group = settings_->multicast;
  std::array<uint8_t, protocol::kMaxEnrolmentBytes> message;
  const protocol::SipKey key = protocol::enrolment_key(settings_->token, e.from, e.epoch, nonce_);
  const uint64_t bytes = protocol::write_enrolment(e, key, message.data());
  sender.send(kPeer, Bytes(message).first(bytes), {}, 0);
  enrol_at_ = next_try(now, pace);
}

bool Registration::take_challenge(Time now, Bytes datagram, Pace& pace, Failure& failure) noexcept {
  protocol::Challenge challenge;
  if (protocol::parse_challenge(datagram, &challenge) != DatagramFault::none ||
      challenge.to.job != settings_->number || challenge.to.instance != settings_->instance ||
      challenge.to.attempt <= settled_ || challenge.to.attempt > attempt_) {
    return false;
  }
  if (!protocol::message_tag_is_right(datagram,
                                      protocol::challenge_key(settings_->token, challenge.to))) {
    if (!ever_joined_ && ++bad_challenges_ >= kBadChallenges)
      failure = refused({me(), Reason::token});
    return false;
  }
  if (challenge.to.attempt == attempt_) pace.sample(now, std::max<Time>(now - hello_sent_, 1));
  settled_ = attempt_;
  hello_at_ = kNever;
  if (challenge.epoch == epoch_.number && enrolled_) {
    phase_ = Phase::member;  // the server that we know
    return true;
  }
  // From here on results of the old epoch are rejected; the server receives what this worker holds
  // now.
  epoch_.number = challenge.epoch;
  epoch_.pad = challenge.pad;
  epoch_.key = protocol::job_key(settings_->token, settings_->number, epoch_.number);
  epoch_.known = true;
  nonce_ = challenge.nonce;
  enrolled_ = false;
  phase_ = Phase::enrolling;
  tries_ = 0;
  enrol_at_ = now;
  return true;
}

bool Registration::take_welcome(Bytes datagram, protocol::Welcome& welcome) const noexcept {
  return epoch_.known && protocol::parse_welcome(datagram, &welcome) == DatagramFault::none &&
         welcome.to.instance == settings_->instance && welcome.epoch == epoch_.number &&
         protocol::message_tag_is_right(datagram, epoch_.key);
}

bool Registration::take_refusal(Bytes datagram, Failure& failure) const noexcept {
  protocol::Refusal refusal;
  const bool sound = protocol::parse_refusal(datagram, &refusal) == DatagramFault::none &&
                     refusal.to.job == settings_->number &&
                     refusal.to.instance == settings_->instance && refusal.to.attempt <= attempt_ &&
                     (phase_ == Phase::greeting || phase_ == Phase::enrolling);
  // Another token or version cannot give a tag that is right here; before the first step a forged
  // answer of that kind does what silence does.
  const bool untagged = refusal.reason == Reason::token || refusal.reason == Reason::version;
  const bool believed =
      sound && (untagged ? !ever_joined_
                         : protocol::message_tag_is_right(
                               datagram, protocol::challenge_key(settings_->token, refusal.to)));
  if (believed) failure = refused(refusal);
  return believed;
}

// Anybody can send this: it is only a hint to ask, at most as often as hellos are sent.
bool Registration::take_stranger(Time now, Bytes datagram, const Pace& pace) noexcept {
  uint32_t job = 0;
  if (protocol::parse_stranger(datagram, &job) != DatagramFault::none || job != settings_->id())
    return false;
  if (phase_ == Phase::member || phase_ == Phase::enrolling)
    greet(std::max(now, hello_sent_ + std::max(kFirstHello, pace.round_trip())));
  return true;
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/server.h"

#include <algorithm>

namespace laconic::aggregation {
namespace {

using protocol::DatagramFault;
using protocol::DatagramType;
using protocol::Reason;

}  // namespace

Server::Server(const ServerSettings& settings)
    : settings_(settings),
      nonce_key_{load<uint64_t>(settings.secret.data()),
                 load<uint64_t>(settings.secret.data() + 8)},
      hello_key_(protocol::hello_key(settings.token)),
      next_epoch_(load<uint64_t>(settings.secret.data() + 16)),
      answers_({nonce_key_.k0, ~nonce_key_.k1}) {
  jobs_.reserve(settings.jobs);
}

Job* Server::find(uint32_t id) noexcept {
  for (const auto& job : jobs_) {
    if (job->id() == id) return job.get();
  }
  return nullptr;
}

// Remembers nothing: who can repeat it receives at that address.
uint64_t Server::nonce_for(const Address& from, const protocol::Applicant& who,
                           uint64_t epoch) const noexcept {
  laconic_sip s = laconic_sip_begin(&nonce_key_);
  laconic_sip_words(&s, from.bytes.data(), 3);
  laconic_sip_word(&s, who.job);
  laconic_sip_word(&s, who.instance);
  laconic_sip_word(&s, who.worker);
  laconic_sip_word(&s, epoch);
  return laconic_sip_end(&s, 56, 0);
}

bool Server::is_vouched_for(Bytes hello) const noexcept {
  return settings_.token != protocol::Token{} && protocol::message_tag_is_right(hello, hello_key_);
}

bool Server::may_answer(Time now, const Address& to, uint32_t kept) noexcept {
  if (answers_.take(now, to, kept)) return true;
  ++stats_.unanswered;
  return false;
}

void Server::receive(Time now, const Address& from, Bytes datagram, Sender& out, bool stays) {
  ++stats_.datagrams;
  protocol::DatagramStart start;
  if (const auto fault = protocol::parse_start(datagram, &start); fault != DatagramFault::none) {
    return count(fault);
  }
  if (start.type == DatagramType::hello) return hello(now, from, start.version, datagram, out);
  if (start.version != protocol::kDatagramVersion) return count(DatagramFault::version);
  if (start.type == DatagramType::enrol) return enrol(now, from, datagram, out);
  const bool up = start.type >= DatagramType::data && start.type <= DatagramType::held;
  if (!up) return count(DatagramFault::type);
  if (datagram.size() < protocol::kUpHeaderBytes) return count(DatagramFault::size);
  Job* job = find(start.job);
  if (job == nullptr || protocol::epoch_of(datagram) != static_cast<uint16_t>(job->epoch())) {
    return stranger(now, from, start, datagram.size(), out);
  }
  count(job->receive(now, from, start.type == DatagramType::held, datagram, out, stays));
}

void Server::settle() noexcept {
  for (const auto& job : jobs_) job->settle();
}

bool Server::owes() const noexcept {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [](const auto& job) { return job->slots().owes(); });
}

void Server::stranger(Time now, const Address& from, const protocol::DatagramStart& start,
                      uint64_t size, Sender& out) {
  ++stats_.strangers;
  // After a restart all workers send whole windows: their hellos need answers, too.
  if (size < protocol::kUpHeaderBytes || !may_answer(now, from, Budget::kOfAll / 2)) return;
  std::array<uint8_t, protocol::kUpHeaderBytes> answer;
  protocol::write_stranger(start.job, answer.data());
  out.send(from, answer, {}, 0);
}

void Server::hello(Time now, const Address& from, uint8_t version, Bytes datagram, Sender& out) {
  protocol::Applicant who;
  bool tagged = false;
  const auto fault = protocol::parse_hello(datagram, &who, &tagged);
  if (fault == DatagramFault::version && datagram.size() >= protocol::kHelloBytes) {
    count(fault);
    return refuse(now, from, protocol::applicant_of(datagram),
                  {Reason::version, protocol::kDatagramVersion, version}, true, out);
  }
  if (fault != DatagramFault::none) return count(fault);
  // A tag that is wrong is answered like none: how else would a worker know that its token is?
  const bool known = tagged && is_vouched_for(datagram);
  if (!known && !may_answer(now, from)) return;
  const Job* job = find(static_cast<uint32_t>(who.job));
  protocol::Challenge challenge;
  challenge.to = who;
  challenge.pad = settings_.pad;
  challenge.epoch = job != nullptr ? job->epoch() : next_epoch_;
  challenge.nonce = nonce_for(from, who, challenge.epoch);
  std::array<uint8_t, protocol::kHelloBytes> answer;
  protocol::write_challenge(challenge, protocol::challenge_key(settings_.token, who),
                            answer.data());
  out.send(from, answer, {}, 0);
}

void Server::enrol(Time now, const Address& from, Bytes datagram, Sender& out) {
  protocol::Enrolment e;
  if (const auto fault = protocol::parse_enrolment(datagram, &e); fault != DatagramFault::none) {
    return count(fault);
  }
  const Job* job = find(static_cast<uint32_t>(e.from.job));
  const uint64_t epoch = job != nullptr ? job->epoch() : next_epoch_;
  // From an earlier start, or another job has the epoch: the worker says hello again.
  if (e.epoch != epoch || e.nonce != nonce_for(from, e.from, epoch)) {
    return stranger(
        now, from,
        {DatagramType::enrol, protocol::kDatagramVersion, 0, static_cast<uint32_t>(e.from.job)},
        datagram.size(), out);
  }
  const protocol::SipKey key = protocol::enrolment_key(settings_.token, e.from, e.epoch, e.nonce);
  if (!protocol::message_tag_is_right(datagram, key)) {
    count(DatagramFault::tag);
    return refuse(now, from, e.from, {Reason::token, 0, 0}, true, out);
  }
  const Judgement judgement = admit(now, e, from, out);
  if (judgement.reason != Reason::none) refuse(now, from, e.from, judgement, false, out);
}

// The tag is right: only now may memory be taken.
Judgement Server::admit(Time now, const protocol::Enrolment& e, const Address& from, Sender& out) {
  if (Job* job = find(static_cast<uint32_t>(e.from.job)); job != nullptr) {
    if (job->number() != e.from.job) return {Reason::jobs, settings_.jobs, jobs_.size()};
    return job->enrol(now, e, from, out);
  }
  if (const Reason reason = protocol::judge_settings(e.settings); reason != Reason::none) {
    const uint32_t code = std::max(protocol::largest_code(e.settings), 1U);
    const uint32_t most = ((1U << (e.settings.lane_bits & 31U)) - 1U) / code;
    if (reason == Reason::lane_overflow) return {reason, most, e.settings.world};
    return {reason, 0, e.from.worker};
  }
  if (settings_.full_tags && !e.settings.full_tags) return {Reason::auth, 0, e.from.worker};
  const uint64_t bytes = Job::memory(e.settings);
  while (jobs_.size() >= settings_.jobs || used_ + bytes > settings_.memory) {
    const std::size_t before = jobs_.size();
    drop_one_that_is_over(out);
    if (jobs_.size() != before) continue;
    if (jobs_.size() >= settings_.jobs) return {Reason::jobs, settings_.jobs, jobs_.size()};
    return {Reason::memory, settings_.memory - used_, bytes};
  }
  used_ += bytes;
  jobs_.push_back(std::make_unique<Job>(e, next_epoch_++, settings_.token, now, settings_.kernel,
                                        settings_.multicast));
  return jobs_.back()->enrol(now, e, from, out);
}

void Server::refuse(Time now, const Address& to, const protocol::Applicant& who,
                    const Judgement& judgement, bool is_stranger, Sender& out) {
  ++stats_.refusals;
  if (is_stranger && !may_answer(now, to)) return;
  const protocol::Refusal refusal{who, judgement.reason, judgement.expected, judgement.found};
  std::array<uint8_t, protocol::kHelloBytes> answer;
  protocol::write_refusal(refusal, protocol::challenge_key(settings_.token, who), answer.data());
  out.send(to, answer, {}, 0);
}

void Server::unreachable(Time now, const Address& at, Sender& out) {
  for (const auto& job : jobs_) job->unreachable(now, at, out);
}

void Server::count_kernel(Job& job) noexcept {
  const laconic_kernel_counts news = job.taken_in_kernel();
  stats_.datagrams += news.datagrams + news.forged;
  stats_.in_kernel += news.datagrams + news.forged;
  stats_.rejected[static_cast<std::size_t>(DatagramFault::tag)] += news.forged;
}

// Sent datagrams may point into the job's slots.
void Server::drop(std::size_t index, Sender& out) {
  out.flush();
  count_kernel(*jobs_[index]);
  used_ -= Job::memory(jobs_[index]->settings());
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(index));
}

void Server::drop_one_that_is_over(Sender& out) {
  for (std::size_t i = 0; i < jobs_.size(); ++i) {
    const JobState state = jobs_[i]->state();
    if (state == JobState::failed || state == JobState::ended) return drop(i, out);
  }
}

void Server::tick(Time now, Sender& out) {
  for (std::size_t i = 0; i < jobs_.size();) {
    jobs_[i]->tick(now, out);
    count_kernel(*jobs_[i]);
    if (jobs_[i]->is_over(now)) {
      drop(i, out);
    } else {
      ++i;
    }
  }
}

Time Server::next_event() const noexcept {
  Time next = kNever;
  for (const auto& job : jobs_) next = std::min(next, job->next_event());
  return next;
}

}  // namespace laconic::aggregation

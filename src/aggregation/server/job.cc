// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job.h"

#include <algorithm>
#include <bit>

namespace laconic::aggregation {
namespace {

using protocol::DatagramFault;
using protocol::DatagramType;
using protocol::Reason;

/// How long a job that is over answers that it is.
constexpr Time kEpilogue = 10000000000;

}  // namespace

uint64_t Job::memory(const protocol::JobSettings& settings) noexcept {
  return sizeof(Job) + Slots::memory(settings) + Members::memory(settings);
}

Job::Job(const protocol::Enrolment& first, uint64_t epoch, const protocol::Token& token, Time now,
         KernelPath* kernel, const Multicast& multicast)
    : terms_{first.settings, first.from.job, epoch, protocol::job_key(token, first.from.job, epoch),
             multicast},
      members_(first.settings),
      gate_(kernel, terms_),
      slots_(first.settings, gate_.slots()),
      serving_(terms_, course_, members_, slots_, gate_, stats_),
      watch_(terms_, now) {}

// ---- admission ----

Judgement Job::enrol(Time now, const protocol::Enrolment& e, const Address& from, Sender& out) {
  const protocol::JobSettings& own = terms_.settings;
  const uint32_t worker = e.from.worker;
  if (course_.state == JobState::failed) return {course_.reason, 0, course_.blamed};
  const Reason differs = protocol::compare_settings(own, e.settings);
  if (differs != Reason::none) {
    Judgement judgement{differs, own.world, e.settings.world};
    if (differs == Reason::quorum) judgement = {differs, own.needed, e.settings.needed};
    if (differs == Reason::spec) judgement = {differs, own.spec, e.settings.spec};
    if (differs == Reason::settings) judgement = {differs, 0, worker};
    // Before the first step this is an error that every worker should get.
    if (course_.state == JobState::gathering) fail(now, {differs, 0, worker}, out);
    return judgement;
  }
  if (worker >= own.world) return {Reason::malformed, own.world, worker};
  Member& member = members_[worker];
  if (member.enrolled && member.instance != e.from.instance)
    return fail(now, {Reason::lost_results, 0, worker}, out);
  member.heard = now;
  watch_.heard(now);
  gate_.place(member, worker, from);
  serving_.set_gate();
  if (!members_.enrol(e, from)) {
    Downlink(terms_, slots_.ring(), out)
        .welcome(members_, worker, course_.state != JobState::gathering);
    return {};
  }
  begin(now, out);
  if (course_.state == JobState::failed) return {course_.reason, 0, course_.blamed};
  return {};
}

void Job::begin(Time now, Sender& out) {
  for (Member& member : members_.all()) member.heard = now;
  const Members::Holdings holdings = members_.holdings();
  const int lost = slots_.restore({holdings.data(), members_.world()});
  if (lost >= 0) {
    fail(now, {Reason::lost_results, 0, static_cast<uint64_t>(lost)}, out);
    return;
  }
  course_.state = JobState::running;
  Downlink down(terms_, slots_.ring(), out);
  for (uint32_t w = 0; w < members_.world(); ++w) down.welcome(members_, w, true);
  serving_.begin(now, out);
  watch_.note(now, false);
  watch_.note(now, is_waiting());
  serving_.set_gate();
}

// ---- what comes ----

DatagramFault Job::receive(Time now, const Address& from, bool held, Bytes datagram, Sender& out,
                           bool stays) {
  const DatagramFault fault =
      held ? receive_held(now, from, datagram, out) : receive_up(now, from, datagram, out, stays);
  if (fault != DatagramFault::none) ++stats_.rejected[static_cast<std::size_t>(fault)];
  return fault;
}

DatagramFault Job::receive_up(Time now, const Address& from, Bytes datagram, Sender& out,
                              bool stays) {
  protocol::UpHeader header;
  if (const auto fault = protocol::parse_up(datagram, &header); fault != DatagramFault::none) {
    return fault;
  }
  if (terms_.settings.full_tags != ((header.flags & protocol::kFull) != 0))
    return DatagramFault::field;
  Member* member = members_.sender(from, header.worker);
  if (member == nullptr) return DatagramFault::field;
  const uint64_t number = protocol::nearest_number(header.granule, slots_.ring().floor());
  if (!protocol::tag_is_right(datagram, protocol::kUpHeaderBytes, terms_.key,
                              protocol::era_of(number))) {
    return DatagramFault::tag;
  }
  if (header.ahead > number) return DatagramFault::field;
  ++stats_.datagrams;
  member->heard = now;
  watch_.heard(now);
  member->hears_group = terms_.multicast.group.exists() && (header.flags & protocol::kGroup) != 0;
  handle(now, header, number, datagram.subspan(protocol::kUpHeaderBytes), stays, out);
  return DatagramFault::none;
}

void Job::handle(Time now, const protocol::UpHeader& header, uint64_t number, Bytes payload,
                 bool stays, Sender& out) {
  if (course_.state == JobState::failed) {
    return Downlink(terms_, slots_.ring(), out).failure(members_[header.worker].address, course_);
  }
  if (course_.state == JobState::gathering) return;  // who is here waits for the others
  Judgement wrong;
  if (!serving_.handle(now, header, number, payload, stays, out, &wrong)) return;
  if (wrong.reason != Reason::none) {
    fail(now, wrong, out);
    return;
  }
  const bool all_left = std::popcount(members_.left()) == terms_.settings.world;
  if (course_.state == JobState::running && all_left) {
    course_.state = JobState::ended;
    course_.over = now;
  }
  watch_.note(now, is_waiting());
}

DatagramFault Job::receive_held(Time now, const Address& from, Bytes datagram, Sender& out) {
  protocol::DownHeader header;
  if (const auto fault = protocol::parse_down(datagram, &header); fault != DatagramFault::none) {
    return fault;
  }
  if (header.type != DatagramType::held) return DatagramFault::type;
  if (terms_.settings.full_tags != ((header.flags & protocol::kFull) != 0))
    return DatagramFault::field;
  Member* member = members_.sender(from, header.ahead);
  if (member == nullptr) return DatagramFault::field;
  const uint64_t number = protocol::nearest_number(header.granule, slots_.ring().floor());
  if (!protocol::tag_is_right(datagram, protocol::kDownHeaderBytes, terms_.key,
                              protocol::era_of(number))) {
    return DatagramFault::tag;
  }
  member->heard = now;
  watch_.heard(now);
  if (course_.state != JobState::running) return DatagramFault::none;
  ++stats_.datagrams;
  serving_.take_held(now, header, number, datagram.subspan(protocol::kDownHeaderBytes), out);
  watch_.note(now, is_waiting());
  return DatagramFault::none;
}

// ---- what does not come ----

bool Job::is_waiting() const noexcept {
  if (course_.state == JobState::gathering) return true;
  return course_.state == JobState::running && serving_.is_waited_for();
}

Judgement Job::fail(Time now, const Judgement& why, Sender& out) {
  if (course_.state == JobState::failed) return why;
  course_.state = JobState::failed;
  course_.reason = why.reason;
  course_.blamed = static_cast<uint8_t>(why.found);
  course_.over = now;
  serving_.set_gate();
  Downlink down(terms_, slots_.ring(), out);
  for (const Member& member : members_.all()) {
    if (member.enrolled) down.failure(member.address, course_);
  }
  return why;
}

// A closed port answers with an error, a worker is not disturbed.
void Job::ask(uint32_t worker, Sender& out) {
  Downlink down(terms_, slots_.ring(), out);
  if (course_.state == JobState::gathering) {
    down.welcome(members_, worker, false);
  } else {
    down.floor(members_[worker].address);
  }
}

void Job::unreachable(Time now, const Address& at, Sender& out) {
  if (course_.state != JobState::running && course_.state != JobState::gathering) return;
  for (uint32_t w = 0; w < members_.world(); ++w) {
    Member& m = members_[w];
    if (!m.enrolled || members_.has_left(w) || !(m.address == at)) continue;
    const bool again = Watch::refused_again(now, m);
    if (again) {
      fail(now, {Reason::lost_worker, 0, w}, out);
      return;
    }
    ask(w, out);
  }
}

void Job::tick(Time now, Sender& out) {
  watch_.tick(now);
  if (course_.state == JobState::running) {
    watch_.heard_beside(gate_.hear(members_));
    serving_.tick(now, out);
    watch_.note(now, is_waiting());
  }
  if (!is_waiting()) return;
  watch_.probe(now, members_, [&](uint32_t w) { ask(w, out); });
  course_.lost |= watch_.silent(now, members_, [&](uint32_t w) {
    return course_.state == JobState::gathering || slots_.waits_for(w);
  });
  // A server that was started again cannot tell who was lost first: it names all that are missing.
  if (course_.lost != 0) {
    const auto first = static_cast<uint64_t>(std::countr_zero(course_.lost));
    fail(now, {Reason::lost_worker, 0, first}, out);
  }
}

Time Job::next_event() const noexcept {
  if (course_.over != kNever) return course_.over + kEpilogue + 1;
  const bool beside = gate_.is_there() && course_.state == JobState::running;
  return std::min(serving_.next_event(), watch_.next_event(members_, beside));
}

bool Job::is_over(Time now) const noexcept {
  if (course_.over != kNever) return now > course_.over + kEpilogue;
  return watch_.is_idle(now);
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "server/job.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <limits>

namespace laconic::server {
namespace {

using wire::DatagramFault;
using wire::DatagramType;
using wire::Reason;

constexpr Time kMillisecond = 1000000;
constexpr Time kFetchRetry = 20 * kMillisecond;
constexpr uint32_t kFetchesAtOnce = 32;
constexpr uint32_t kUnreached = 8;
/// Between two statuses to the group, which a switch copies to all ports, whatever comes again.
constexpr Time kTryEvery = kMillisecond;
/// A rank that is waited for and silent for so long is asked. An error in answer, and another one
/// within this time: its port is closed.
constexpr Time kProbe = 100 * kMillisecond;
/// How long a job that is over answers that it is.
constexpr Time kEpilogue = 10000 * kMillisecond;
/// A job that nobody has spoken of for so many time-outs is forgotten; its workers can come back
/// with what they hold.
constexpr uint64_t kIdleTimeouts = 4;

uint16_t ahead_of(uint64_t number, uint64_t floor) noexcept {
  const uint64_t ahead = number - floor;
  return static_cast<uint16_t>(std::min<uint64_t>(ahead, std::numeric_limits<uint16_t>::max()));
}

}  // namespace

uint64_t Job::memory(const wire::JobSettings& settings) noexcept {
  return sizeof(Job) + Slots::memory(settings) + uint64_t{settings.world} * settings.ring / 8;
}

Job::Job(const wire::Enrolment& first, uint64_t epoch, const wire::Token& token, Time now,
         KernelPath* kernel, const Multicast& multicast)
    : settings_(first.settings),
      number_(first.from.job),
      epoch_(epoch),
      key_(wire::job_key(token, first.from.job, epoch)),
      kernel_(kernel),
      shared_(kernel != nullptr ? kernel->take(settings_, id(), epoch_, key_) : SharedSlots{}),
      multicast_(multicast),
      slots_(first.settings, shared_),
      members_{},
      held_(std::size_t{first.settings.world} * first.settings.ring / 8),
      waiting_(now),
      heard_(now) {}

Job::~Job() {
  if (shared_.job != nullptr) kernel_->give_back(shared_);
}

// The program adds and answers while nothing else is going on.
void Job::set_gate() noexcept {
  if (shared_.job == nullptr) return;
  const bool open =
      state_ == JobState::running && in_reach_ && slots_.fetching() == 0 && left_ == 0;
  std::atomic_ref(shared_.job->open).store(open ? 1 : 0);
}

// What the program sent twice and the worker asks for again: its host may not take what is
// redirected to it (a virtual interface without generic receive offload). The process serves it.
void Job::note_unreached(uint64_t number, uint32_t worker) noexcept {
  if (shared_.job == nullptr || !in_reach_) return;
  const uint64_t asked = shared_.slots[number % settings_.ring].asked;
  if ((asked >> worker & 1U) == 0) return;
  Member& member = members_[worker];
  const uint64_t ack = slots_.ring().ack(worker);
  if (ack > member.reached + 4 * kUnreached) {
    member.reached = ack;
    member.unreached = 0;
  }
  if (++member.unreached < kUnreached) return;
  in_reach_ = false;
  set_gate();
}

void Job::hear_kernel() noexcept {
  if (shared_.job == nullptr) return;
  for (uint32_t w = 0; w < settings_.world; ++w) {
    const Time heard = std::atomic_ref(shared_.job->members[w].heard).load();
    members_[w].heard = std::max(members_[w].heard, heard);
    heard_ = std::max(heard_, heard);
  }
  if (slots_.ring().floor() != floor_seen_) blocked_ = false;
  floor_seen_ = slots_.ring().floor();
}

laconic_kernel_counts Job::taken_in_kernel() noexcept {
  laconic_kernel_counts news{};
  if (shared_.job == nullptr) return news;
  const auto take = [&](uint64_t laconic_kernel_counts::*which) {
    const uint64_t all = std::atomic_ref(shared_.job->counts.*which).load();
    news.*which = all - counted_.*which;
    counted_.*which = all;
  };
  take(&laconic_kernel_counts::datagrams);
  take(&laconic_kernel_counts::duplicates);
  take(&laconic_kernel_counts::stored);
  take(&laconic_kernel_counts::closed);
  take(&laconic_kernel_counts::forged);
  stats_.datagrams += news.datagrams;
  stats_.duplicates += news.duplicates;
  stats_.stored += news.stored;
  stats_.closed += news.closed;
  stats_.rejected[static_cast<std::size_t>(DatagramFault::tag)] += news.forged;
  return news;
}

uint8_t Job::enrolled() const noexcept {
  const auto all = members();
  return static_cast<uint8_t>(
      std::count_if(all.begin(), all.end(), [](const Member& m) { return m.enrolled; }));
}

bool Job::has_member_at(const Address& address) const noexcept {
  const auto all = members();
  return std::any_of(all.begin(), all.end(),
                     [&](const Member& m) { return m.enrolled && m.address == address; });
}

Judgement Job::enrol(Time now, const wire::Enrolment& e, const Address& from, Outbox& out) {
  if (state_ == JobState::failed) return {reason_, 0, blamed_};
  const Reason differs = wire::compare_settings(settings_, e.settings);
  if (differs != Reason::none) {
    Judgement judgement{differs, settings_.world, e.settings.world};
    if (differs == Reason::quorum) judgement = {differs, settings_.needed, e.settings.needed};
    if (differs == Reason::spec) judgement = {differs, settings_.spec, e.settings.spec};
    if (differs == Reason::settings) judgement = {differs, 0, e.from.worker};
    // Before the first step this is a mistake that every worker should hear of.
    if (state_ == JobState::gathering) fail(now, differs, e.from.worker, out);
    return judgement;
  }
  if (e.from.worker >= settings_.world) return {Reason::malformed, settings_.world, e.from.worker};
  Member& member = members_[e.from.worker];
  if (member.enrolled && member.instance != e.from.instance) {
    fail(now, Reason::lost_results, e.from.worker, out);
    return {Reason::lost_results, 0, e.from.worker};
  }
  heard_ = member.heard = now;
  // One that has moved is answered by the process.
  if (member.enrolled && !(member.address == from)) in_reach_ = false;
  if (shared_.job != nullptr && in_reach_) in_reach_ = kernel_->place(shared_, e.from.worker, from);
  set_gate();
  member.address = from;
  member.attempt = e.from.attempt;
  member.wants_group = e.wants_group;
  if (!member.enrolled) {
    member.enrolled = true;
    member.instance = e.from.instance;
    member.ack = e.ack;
    member.kept = e.kept;
    std::copy(e.held.begin(), e.held.end(),
              held_.begin() + static_cast<std::ptrdiff_t>(e.from.worker * e.held.size()));
    if (enrolled() == settings_.world) {
      begin(now, out);
      if (state_ == JobState::failed) return {reason_, 0, blamed_};
      return {};
    }
  }
  send_welcome(member, e.from.worker, out);
  return {};
}

void Job::begin(Time now, Outbox& out) {
  std::array<Holding, wire::kMaxWorkers> holdings;
  const std::size_t bytes = settings_.ring / 8U;
  for (uint32_t w = 0; w < settings_.world; ++w) {
    holdings[w] = {members_[w].ack, members_[w].kept, Bytes(held_).subspan(w * bytes, bytes)};
    members_[w].heard = now;
  }
  const int lost = slots_.restore({holdings.data(), settings_.world});
  if (lost >= 0) return fail(now, Reason::lost_results, static_cast<uint32_t>(lost), out);
  state_ = JobState::running;
  waiting_ = kNever;
  floor_seen_ = slots_.ring().floor();
  for (uint32_t w = 0; w < settings_.world; ++w) send_welcome(members_[w], w, out);
  send_fetches(now, kFetchesAtOnce, out);
  note_waiting(now);
  set_gate();
}

Job::Member* Job::sender(const Address& from, uint8_t worker) noexcept {
  if (worker >= settings_.world) return nullptr;
  Member& member = members_[worker];
  return member.enrolled && member.address == from ? &member : nullptr;
}

DatagramFault Job::receive(Time now, const Address& from, bool held, Bytes datagram, Outbox& out,
                           bool stays) {
  const DatagramFault fault =
      held ? receive_held(now, from, datagram, out) : receive_up(now, from, datagram, out, stays);
  if (fault != DatagramFault::none) ++stats_.rejected[static_cast<std::size_t>(fault)];
  return fault;
}

DatagramFault Job::receive_up(Time now, const Address& from, Bytes datagram, Outbox& out,
                              bool stays) {
  wire::UpHeader header;
  if (const auto fault = wire::parse_up(datagram, &header); fault != DatagramFault::none) {
    return fault;
  }
  if (settings_.full_tags != ((header.flags & wire::kFull) != 0)) return DatagramFault::field;
  Member* member = sender(from, header.worker);
  if (member == nullptr) return DatagramFault::field;
  const uint64_t number = wire::nearest_number(header.granule, slots_.ring().floor());
  if (!wire::tag_is_right(datagram, wire::kUpHeaderBytes, key_, wire::era_of(number))) {
    return DatagramFault::tag;
  }
  if (header.ahead > number) return DatagramFault::field;
  ++stats_.datagrams;
  heard_ = member->heard = now;
  member->hears_group = multicast_.group.exists() && (header.flags & wire::kGroup) != 0;
  handle(now, *member, header, number, datagram.subspan(wire::kUpHeaderBytes), out, stays);
  return DatagramFault::none;
}

void Job::handle(Time now, Member& member, const wire::UpHeader& header, uint64_t number,
                 Bytes payload, Outbox& out, bool stays) {
  if (state_ == JobState::failed) return send_failure(member.address, out);
  if (state_ == JobState::gathering) return;  // who is here waits for the others
  if (!slots_.acknowledge(header.worker, number - header.ahead)) {
    ++stats_.bad_acks;
    return;
  }
  if (member.timed != 0) end_round_trip(now, member, number - header.ahead);
  if (slots_.ring().floor() != floor_seen_) blocked_ = false;
  floor_seen_ = slots_.ring().floor();
  switch (header.type) {
    case DatagramType::data: {
      if (number >= slots_.ring().front()) {
        if (left_ != 0) {
          return fail(now, Reason::left, static_cast<uint32_t>(std::countr_zero(left_)), out);
        }
      }
      const Contribution c{header.worker, number, header.settings, header.norm, header.flags,
                           payload,       stays};
      const Verdict verdict = slots_.add(now, c);
      if (verdict == Verdict::differs) return fail(now, Reason::sums_differ, header.worker, out);
      if (verdict == Verdict::beyond) blocked_ = true;
      publish(now, out);
      answer(verdict, member, header.worker, number, out);
      break;
    }
    case DatagramType::pull:
      answer(slots_.pull(header.worker, number), member, header.worker, number, out);
      break;
    case DatagramType::leave:
      leave(now, header.worker, out);
      break;
    default:  // an ack is in every header
      if ((header.flags & wire::kTry) != 0 && multicast_.group.exists() && now >= try_at_) {
        try_at_ = now + kTryEvery;
        send_status(multicast_.address, DatagramType::status, slots_.ring().floor(), out);
      }
      break;
  }
  note_waiting(now);
}

void Job::end_round_trip(Time now, Member& member, uint64_t ack) noexcept {
  if (ack < member.timed) return;
  const Time sample = std::max<Time>(now - member.timed_since, 1);
  member.round_trip = member.round_trip == 0 ? sample : (7 * member.round_trip + sample) / 8;
  member.timed = 0;
}

void Job::answer(Verdict verdict, const Member& member, uint32_t worker, uint64_t number,
                 Outbox& out) {
  switch (verdict) {
    case Verdict::duplicate:
      ++stats_.duplicates;
      break;
    case Verdict::beyond:
      ++stats_.beyond;
      send_status(member.address, DatagramType::status, slots_.ring().floor(), out);
      break;
    case Verdict::open:
      send_status(member.address, DatagramType::open, number, out);
      break;
    case Verdict::stored:
      ++stats_.stored;
      note_unreached(number, worker);
      if ((slots_.ring().slot(number).bitmap >> worker & 1U) == 0) ++stats_.late;
      send_sum(member.address, number, out);
      break;
    default:
      break;
  }
}

void Job::leave(Time now, uint32_t worker, Outbox& out) {
  left_ |= uint64_t{1} << worker;
  set_gate();
  send_status(members_[worker].address, DatagramType::status, slots_.ring().floor(), out);
  if (state_ == JobState::running && std::popcount(left_) == settings_.world) {
    state_ = JobState::ended;
    over_ = now;
  }
}

DatagramFault Job::receive_held(Time now, const Address& from, Bytes datagram, Outbox& out) {
  wire::DownHeader header;
  if (const auto fault = wire::parse_down(datagram, &header); fault != DatagramFault::none) {
    return fault;
  }
  if (header.type != DatagramType::held) return DatagramFault::type;
  if (settings_.full_tags != ((header.flags & wire::kFull) != 0)) return DatagramFault::field;
  Member* member =
      header.ahead < wire::kMaxWorkers ? sender(from, static_cast<uint8_t>(header.ahead)) : nullptr;
  if (member == nullptr) return DatagramFault::field;
  const uint64_t number = wire::nearest_number(header.granule, slots_.ring().floor());
  if (!wire::tag_is_right(datagram, wire::kDownHeaderBytes, key_, wire::era_of(number))) {
    return DatagramFault::tag;
  }
  heard_ = member->heard = now;
  if (state_ != JobState::running) return DatagramFault::none;
  ++stats_.datagrams;
  if (slots_.take_held(header.ahead, number, header, datagram.subspan(wire::kDownHeaderBytes))) {
    ++stats_.fetched;
    publish(now, out);
    send_fetches(now, 1, out);
    set_gate();
  }
  note_waiting(now);
  return DatagramFault::none;
}

// What was closed goes to everybody who has not got it yet: once to all who hear the group.
void Job::publish(Time now, Outbox& out) {
  for (const uint64_t number : slots_.newly_closed()) {
    const Slot& slot = slots_.ring().slot(number);
    ++stats_.closed;
    if (std::popcount(slot.bitmap) < settings_.world) ++stats_.partial;
    SumHeader beside;
    const Bytes datagram = write_datagram(number, beside);
    const auto send_to = [&](const Address& to) {
      if (datagram.empty()) {
        out.send(to, beside, slots_.ring().sum(slot));
      } else {
        out.send_sum(to, datagram);
      }
    };
    bool together = false;
    for (uint32_t w = 0; w < settings_.world; ++w) {
      if (slots_.ring().ack(w) > number) continue;
      Member& member = members_[w];
      if (member.timed == 0) {
        member.timed = number + 1;
        member.timed_since = now;
      }
      if (member.hears_group) {
        together = true;
      } else {
        send_to(member.address);
      }
    }
    if (!together) continue;
    ++stats_.together;
    send_to(multicast_.address);
  }
  slots_.forget_closed();
}

void Job::send_sum(const Address& to, uint64_t number, Outbox& out) {
  SumHeader beside;
  const Bytes datagram = write_datagram(number, beside);
  if (!datagram.empty()) return out.send_sum(to, datagram);
  out.send(to, beside, slots_.ring().sum(slots_.ring().slot(number)));
}

Bytes Job::write_datagram(uint64_t number, SumHeader& beside) noexcept {
  const Slot& slot = slots_.ring().slot(number);
  wire::DownHeader h;
  h.type = DatagramType::result;
  h.flags = static_cast<uint8_t>(slot.flags | (settings_.full_tags ? wire::kFull : 0));
  h.job = id();
  h.granule = static_cast<uint32_t>(number);
  h.settings = slot.settings;
  h.epoch = static_cast<uint16_t>(epoch_);
  h.ahead = ahead_of(number, slots_.ring().floor());
  h.norm = slot.norm;
  h.added = slot.added;
  h.divisor = static_cast<uint8_t>(std::popcount(slot.bitmap));
  h.bitmap = slot.bitmap;
  const MutBytes datagram = slots_.ring().datagram(slot);
  uint8_t* header = datagram.empty() ? beside.data() : datagram.data();
  wire::write_down(h, key_, wire::era_of(number), slots_.ring().sum(slot), header);
  return datagram;
}

void Job::send_status(const Address& to, DatagramType type, uint64_t number, Outbox& out) {
  wire::DownHeader h;
  h.type = type;
  h.flags = settings_.full_tags ? wire::kFull : 0;
  h.job = id();
  h.granule = static_cast<uint32_t>(number);
  h.epoch = static_cast<uint16_t>(epoch_);
  h.ahead = ahead_of(number, slots_.ring().floor());
  std::array<uint8_t, wire::kDownHeaderBytes> header;
  wire::write_down(h, key_, wire::era_of(number), {}, header.data());
  out.send(to, header, {});
}

void Job::send_failure(const Address& to, Outbox& out) {
  wire::DownHeader h;
  h.type = DatagramType::failed;
  h.flags = settings_.full_tags ? wire::kFull : 0;
  h.job = id();
  h.granule = static_cast<uint32_t>(slots_.ring().floor());
  h.epoch = static_cast<uint16_t>(epoch_);
  h.added = blamed_;
  h.divisor = static_cast<uint8_t>(reason_);
  if (std::popcount(lost_) > 1) h.bitmap = lost_;
  std::array<uint8_t, wire::kDownHeaderBytes> header;
  wire::write_down(h, key_, wire::era_of(slots_.ring().floor()), {}, header.data());
  out.send(to, header, {});
}

void Job::send_welcome(const Member& member, uint32_t worker, Outbox& out) {
  wire::Welcome w;
  w.to = {number_, member.instance, member.attempt, static_cast<uint8_t>(worker)};
  w.registered = enrolled();
  w.complete = state_ != JobState::gathering;
  w.epoch = epoch_;
  if (member.wants_group) w.group = multicast_.group;
  std::array<uint8_t, wire::kHelloBytes> message;
  wire::write_welcome(w, key_, message.data());
  out.send(member.address, message, {});
}

void Job::send_fetches(Time now, uint32_t most, Outbox& out) {
  Fetch fetch;
  for (; most > 0 && slots_.next_fetch(now, kFetchRetry, &fetch); --most) {
    send_status(members_[fetch.worker].address, DatagramType::fetch, fetch.number, out);
  }
  fetch_at_ = slots_.fetching() != 0 ? now + kFetchRetry : kNever;
}

void Job::fail(Time now, Reason reason, uint32_t worker, Outbox& out) {
  if (state_ == JobState::failed) return;
  state_ = JobState::failed;
  reason_ = reason;
  blamed_ = static_cast<uint8_t>(worker);
  over_ = now;
  set_gate();
  for (const Member& member : members()) {
    if (member.enrolled) send_failure(member.address, out);
  }
}

bool Job::is_waiting() const noexcept {
  if (state_ == JobState::gathering) return true;
  return state_ == JobState::running && (slots_.open() != 0 || slots_.fetching() != 0 || blocked_);
}

void Job::note_waiting(Time now) noexcept {
  if (!is_waiting()) {
    waiting_ = kNever;
  } else if (waiting_ == kNever) {
    waiting_ = now;
  }
}

void Job::unreachable(Time now, const Address& at, Outbox& out) {
  if (state_ != JobState::running && state_ != JobState::gathering) return;
  for (uint32_t w = 0; w < settings_.world; ++w) {
    Member& m = members_[w];
    if (!m.enrolled || has_left(w) || !(m.address == at)) continue;
    const bool again = m.refused != 0 && m.heard <= m.refused && now - m.refused <= kProbe;
    if (again) return fail(now, Reason::lost_worker, w, out);
    m.refused = std::max<Time>(now, 1);
    ask(m, w, out);
  }
}

void Job::find_silent(Time now, Outbox& out) {
  if (waiting_ == kNever) return;
  for (uint32_t w = 0; w < settings_.world; ++w) {
    const Time since = std::max(members_[w].heard, waiting_);
    const bool needed = state_ == JobState::gathering || slots_.waits_for(w);
    if (needed && now > since && now - since > timeout()) lost_ |= uint64_t{1} << w;
  }
  // A server that was started again cannot tell who was lost first: it names all that are missing.
  if (lost_ != 0) {
    fail(now, Reason::lost_worker, static_cast<uint32_t>(std::countr_zero(lost_)), out);
  }
}

void Job::probe(Time now, Outbox& out) {
  if (now < probe_at_) return;
  probe_at_ = now + kProbe;
  for (uint32_t w = 0; w < settings_.world; ++w) {
    const Member& m = members_[w];
    if (!m.enrolled || has_left(w) || now < m.heard + kProbe) continue;
    ask(m, w, out);
  }
}

// A closed port answers with an error, a worker is not disturbed.
void Job::ask(const Member& member, uint32_t worker, Outbox& out) {
  if (state_ == JobState::gathering) {
    send_welcome(member, worker, out);
  } else {
    send_status(member.address, DatagramType::status, slots_.ring().floor(), out);
  }
}

void Job::tick(Time now, Outbox& out) {
  ticked_ = now;
  if (state_ == JobState::running) {
    hear_kernel();
    slots_.tick(now);
    publish(now, out);
    if (now >= fetch_at_) send_fetches(now, kFetchesAtOnce, out);
    note_waiting(now);
  }
  if (!is_waiting()) return;
  probe(now, out);
  find_silent(now, out);
}

Time Job::next_event() const noexcept {
  if (over_ != kNever) return over_ + kEpilogue + 1;
  Time next = std::min(fetch_at_, slots_.next_deadline());
  next = std::min(next, heard_ + kIdleTimeouts * timeout() + 1);
  // What the kernel takes wakes nobody.
  if (shared_.job != nullptr && state_ == JobState::running)
    next = std::min(next, ticked_ + kProbe);
  if (waiting_ != kNever) {
    next = std::min(next, std::max(probe_at_, waiting_ + kProbe));
    for (const Member& m : members()) {
      // A silent worker that is not needed now may be needed later.
      const Time silent = std::max(m.heard, waiting_) + timeout() + 1;
      next = std::min(next, silent > ticked_ ? silent : ticked_ + timeout() / 4 + 1);
    }
  }
  return next;
}

bool Job::is_over(Time now) const noexcept {
  if (over_ != kNever) return now > over_ + kEpilogue;
  return now > heard_ + kIdleTimeouts * timeout();
}

}  // namespace laconic::server

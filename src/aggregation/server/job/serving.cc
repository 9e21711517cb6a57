// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job/serving.h"

#include <bit>

namespace laconic::aggregation {
namespace {

using protocol::DatagramType;
using protocol::Reason;

constexpr Time kFetchRetry = 20 * kMillisecond;
constexpr uint32_t kFetchesAtOnce = 32;
/// Between two statuses to the group, which a switch copies to all ports, whatever comes again.
constexpr Time kTryEvery = kMillisecond;

}  // namespace

void Serving::set_gate() noexcept {
  gate_.set(course_.state == JobState::running && slots_.fetching() == 0 && members_.left() == 0);
}

void Serving::note_floor() noexcept {
  const uint64_t floor = slots_.ring().floor();
  if (floor != floor_seen_) blocked_ = false;
  floor_seen_ = floor;
}

void Serving::begin(Time now, Sender& out) {
  floor_seen_ = slots_.ring().floor();
  send_fetches(now, kFetchesAtOnce, out);
}

void Serving::tick(Time now, Sender& out) {
  if (gate_.is_there()) note_floor();
  slots_.tick(now);
  publish(now, out);
  if (now >= fetch_at_) send_fetches(now, kFetchesAtOnce, out);
}

bool Serving::handle(Time now, const protocol::UpHeader& header, uint64_t number, Bytes payload,
                     bool stays, Sender& out, Judgement* wrong) {
  const uint32_t worker = header.worker;
  const uint64_t ack = number - header.ahead;
  if (!slots_.acknowledge(worker, ack)) {
    ++stats_.bad_acks;
    return false;
  }
  members_[worker].acknowledge(now, ack);
  note_floor();
  switch (header.type) {
    case DatagramType::data: {
      if (number >= slots_.ring().front() && members_.left() != 0) {
        const auto first = static_cast<uint64_t>(std::countr_zero(members_.left()));
        *wrong = {Reason::left, 0, first};
        return true;
      }
      const Addend c{worker, number, header.settings, header.norm, header.flags, payload, stays};
      const Verdict verdict = slots_.add(now, c);
      if (verdict == Verdict::differs) {
        *wrong = {Reason::sums_differ, 0, worker};
        return true;
      }
      if (verdict == Verdict::beyond) blocked_ = true;
      publish(now, out);
      answer(verdict, worker, number, out);
      break;
    }
    case DatagramType::pull:
      answer(slots_.pull(worker, number), worker, number, out);
      break;
    case DatagramType::leave:
      members_.leave(worker);
      set_gate();
      Downlink(terms_, slots_.ring(), out).floor(members_[worker].address);
      break;
    default:  // an ack is in every header
      if ((header.flags & protocol::kTry) != 0 && terms_.multicast.group.exists() &&
          now >= try_at_) {
        try_at_ = now + kTryEvery;
        Downlink(terms_, slots_.ring(), out).floor(terms_.multicast.address);
      }
      break;
  }
  return true;
}

void Serving::answer(Verdict verdict, uint32_t worker, uint64_t number, Sender& out) {
  Member& member = members_[worker];
  SlotRing& ring = slots_.ring();
  Downlink down(terms_, ring, out);
  switch (verdict) {
    case Verdict::duplicate:
      ++stats_.duplicates;
      break;
    case Verdict::beyond:
      ++stats_.beyond;
      down.floor(member.address);
      break;
    case Verdict::open:
      down.status(member.address, DatagramType::open, number);
      break;
    case Verdict::stored:
      ++stats_.stored;
      if (gate_.note_unreached(ring.index_of(number), ring.ack(worker), member, worker)) set_gate();
      if ((ring.slot(number).bitmap & bit_of(worker)) == 0) ++stats_.late;
      SumDatagram(terms_, ring, number).send(member.address, out);
      break;
    default:
      break;
  }
}

void Serving::take_held(Time now, const protocol::DownHeader& header, uint64_t number,
                        Bytes payload, Sender& out) {
  if (!slots_.take_held(header.ahead, number, header, payload)) return;
  ++stats_.fetched;
  publish(now, out);
  send_fetches(now, 1, out);
  set_gate();
}

void Serving::publish(Time now, Sender& out) {
  SlotRing& ring = slots_.ring();
  for (const uint64_t number : slots_.newly_closed()) {
    ++stats_.closed;
    if (std::popcount(ring.slot(number).bitmap) < terms_.settings.world) ++stats_.partial;
    const SumDatagram sum(terms_, ring, number);
    bool together = false;
    for (uint32_t w = 0; w < members_.world(); ++w) {
      if (ring.ack(w) > number) continue;
      Member& member = members_[w];
      if (member.timed == 0) {
        member.timed = number + 1;
        member.timed_since = now;
      }
      if (member.hears_group) {
        together = true;
      } else {
        sum.send(member.address, out);
      }
    }
    if (!together) continue;
    ++stats_.together;
    sum.send(terms_.multicast.address, out);
  }
  slots_.forget_closed();
}

void Serving::send_fetches(Time now, uint32_t most, Sender& out) {
  Downlink down(terms_, slots_.ring(), out);
  Fetch fetch;
  for (; most > 0 && slots_.next_fetch(now, kFetchRetry, &fetch); --most)
    down.status(members_[fetch.worker].address, DatagramType::fetch, fetch.number);
  fetch_at_ = slots_.fetching() != 0 ? now + kFetchRetry : kNever;
}

}  // namespace laconic::aggregation

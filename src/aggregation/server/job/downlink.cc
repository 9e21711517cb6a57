// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/job/downlink.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace laconic::aggregation {
namespace {

using protocol::DatagramType;

protocol::DownHeader header_of(const Terms& terms, DatagramType type, uint64_t number) noexcept {
  protocol::DownHeader h;
  h.type = type;
  h.flags = terms.settings.full_tags ? protocol::kFull : 0;
  h.job = terms.id();
  h.granule = static_cast<uint32_t>(number);
  h.epoch = static_cast<uint16_t>(terms.epoch);
  return h;
}

uint16_t ahead_of(uint64_t number, uint64_t floor) noexcept {
  const uint64_t ahead = number - floor;
  return static_cast<uint16_t>(std::min<uint64_t>(ahead, std::numeric_limits<uint16_t>::max()));
}

}  // namespace

void Downlink::status(const Address& to, DatagramType type, uint64_t number) {
  protocol::DownHeader h = header_of(terms_, type, number);
  h.ahead = ahead_of(number, ring_.floor());
  std::array<uint8_t, protocol::kDownHeaderBytes> header;
  protocol::write_down(h, terms_.key, protocol::era_of(number), {}, header.data());
  out_.send(to, header, {}, 0);
}

void Downlink::failure(const Address& to, const Course& course) {
  const uint64_t floor = ring_.floor();
  protocol::DownHeader h = header_of(terms_, DatagramType::failed, floor);
  h.added = course.blamed;
  h.divisor = static_cast<uint8_t>(course.reason);
  if (std::popcount(course.lost) > 1) h.bitmap = course.lost;
  std::array<uint8_t, protocol::kDownHeaderBytes> header;
  protocol::write_down(h, terms_.key, protocol::era_of(floor), {}, header.data());
  out_.send(to, header, {}, 0);
}

void Downlink::welcome(const Members& members, uint32_t worker, bool complete) {
  const Member& member = members[worker];
  protocol::Welcome w;
  w.to = {terms_.number, member.instance, member.attempt, static_cast<uint8_t>(worker)};
  w.registered = members.enrolled();
  w.complete = complete;
  w.epoch = terms_.epoch;
  if (member.wants_group) w.group = terms_.multicast.group;
  std::array<uint8_t, protocol::kHelloBytes> message;
  protocol::write_welcome(w, terms_.key, message.data());
  out_.send(member.address, message, {}, 0);
}

SumDatagram::SumDatagram(const Terms& terms, SlotRing& ring, uint64_t number) noexcept {
  const Slot& slot = ring.slot(number);
  datagram_ = ring.datagram(slot);
  sum_ = ring.sum(slot);
  protocol::DownHeader h = header_of(terms, DatagramType::result, number);
  h.flags |= slot.flags;
  h.settings = slot.settings;
  h.ahead = ahead_of(number, ring.floor());
  h.norm = slot.norm;
  h.added = slot.added;
  h.divisor = static_cast<uint8_t>(std::popcount(slot.bitmap));
  h.bitmap = slot.bitmap;
  uint8_t* header = datagram_.empty() ? beside_.data() : ring.datagram(slot).data();
  protocol::write_down(h, terms.key, protocol::era_of(number), sum_, header);
}

void SumDatagram::send(const Address& to, Sender& out) const {
  datagram_.empty() ? out.send(to, beside_, sum_, 0) : out.send(to, {}, datagram_, 0);
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/link/uplink.h"

#include <array>
#include <bit>

namespace laconic::aggregation {

using protocol::DatagramType;

protocol::UpHeader Uplink::header(DatagramType type, uint64_t number,
                                  uint64_t ahead) const noexcept {
  protocol::UpHeader h;
  h.type = type;
  h.flags = static_cast<uint8_t>((settings_.job.full_tags ? protocol::kFull : 0) |
                                 (hears_ ? protocol::kGroup : 0));
  h.job = settings_.id();
  h.granule = static_cast<uint32_t>(number);
  h.epoch = static_cast<uint16_t>(epoch_.number);
  h.ahead = static_cast<uint16_t>(ahead);
  h.worker = settings_.worker;
  return h;
}

void Uplink::granule(const Results& results, uint64_t number, bool again) noexcept {
  const bool pull = results.behind();
  const Outgoing& o = results.outgoing(number);
  protocol::UpHeader h =
      header(pull ? DatagramType::pull : DatagramType::data, number, number - results.ack());
  h.settings = o.settings;
  Bytes payload;
  if (!pull) {
    h.flags |= o.flags & (protocol::kEmpty | protocol::kTrouble | protocol::kValues);
    if (number == results.first()) h.flags |= protocol::kFirst;
    h.norm = o.norm;
    if ((o.flags & protocol::kEmpty) == 0) payload = o.payload;
  }
  std::array<uint8_t, protocol::kUpHeaderBytes> front;
  const bool codes = !payload.empty() && (o.flags & protocol::kValues) == 0;
  const std::size_t padding =
      epoch_.pad && codes ? settings_.job.padded_bytes() - settings_.job.code_bytes() : 0;
  protocol::write_up(h, epoch_.key, protocol::era_of(number), payload, front.data(), padding);
  ++stats_.sent;
  if (again) ++stats_.resent_datagrams;
  sender_.send(kPeer, front, payload, padding);
}

void Uplink::bare(DatagramType type, uint64_t ack, uint8_t flags, uint16_t ahead) noexcept {
  protocol::UpHeader h = header(type, ack + ahead, ahead);
  h.flags |= flags;
  std::array<uint8_t, protocol::kUpHeaderBytes> front;
  protocol::write_up(h, epoch_.key, protocol::era_of(ack + ahead), {}, front.data());
  ++stats_.sent;
  sender_.send(kPeer, front, {}, 0);
}

void Uplink::held(const Results& results, uint64_t number) noexcept {
  if (!results.has(number)) return;
  const Results::Header& k = results.kept(number);
  protocol::DownHeader h;
  h.type = DatagramType::held;
  h.flags = k.flags;
  h.job = settings_.id();
  h.granule = static_cast<uint32_t>(number);
  h.settings = k.settings;
  h.epoch = static_cast<uint16_t>(epoch_.number);
  h.ahead = settings_.worker;
  h.norm = k.norm;
  h.added = k.added;
  h.divisor = static_cast<uint8_t>(std::popcount(k.bitmap));
  h.bitmap = k.bitmap;
  const Bytes sum = results.sum(number);
  std::array<uint8_t, protocol::kDownHeaderBytes> front;
  protocol::write_down(h, epoch_.key, protocol::era_of(number), sum, front.data());
  ++stats_.sent;
  sender_.send(kPeer, front, sum, 0);
}

}  // namespace laconic::aggregation

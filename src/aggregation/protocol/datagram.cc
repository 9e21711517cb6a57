// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/protocol/datagram.h"

#include <bit>

#include "aggregation/protocol/enrolment.h"

namespace laconic::aggregation::protocol {
namespace {

static_assert(LACONIC_AT_UP_TAG == kUpHeaderBytes - kTagBytes &&
              LACONIC_AT_DOWN_TAG == kDownHeaderBytes - kTagBytes);

constexpr uint8_t kUpFlags = kEmpty | kTrouble | kValues | kFirst | kFull;

bool is_up(DatagramType type) noexcept {
  return type >= DatagramType::data && type <= DatagramType::leave;
}
bool is_down(DatagramType type) noexcept { return type >= DatagramType::held; }
bool carries_sum(DatagramType type) noexcept {
  return type == DatagramType::held || type == DatagramType::result;
}

DatagramFault check_start(Bytes datagram, DatagramStart* start) noexcept {
  if (const auto fault = parse_start(datagram, start); fault != DatagramFault::none) return fault;
  return start->version == kDatagramVersion ? DatagramFault::none : DatagramFault::version;
}

template <class Header>
void get_common(Bytes datagram, const DatagramStart& start, Header* h) noexcept {
  const uint8_t* p = datagram.data();
  h->type = start.type;
  h->flags = start.flags;
  h->job = start.job;
  h->granule = load<uint32_t>(p + LACONIC_AT_GRANULE);
  h->settings = load<uint32_t>(p + LACONIC_AT_SETTINGS);
  h->epoch = load<uint16_t>(p + LACONIC_AT_EPOCH);
  h->ahead = load<uint16_t>(p + LACONIC_AT_AHEAD);
  h->norm = load<uint16_t>(p + LACONIC_AT_NORM);
}

template <class Header>
void put_common(const Header& h, uint8_t* out) noexcept {
  store(out, kDatagramMagic);
  out[LACONIC_AT_TYPE] =
      static_cast<uint8_t>(kDatagramVersion << 4U | static_cast<uint8_t>(h.type));
  out[LACONIC_AT_FLAGS] = h.flags;
  store(out + LACONIC_AT_JOB, h.job);
  store(out + LACONIC_AT_GRANULE, h.granule);
  store(out + LACONIC_AT_SETTINGS, h.settings);
  store(out + LACONIC_AT_EPOCH, h.epoch);
  store(out + LACONIC_AT_AHEAD, h.ahead);
  store(out + LACONIC_AT_NORM, h.norm);
}

// A payload is there exactly if something is to be added.
bool payload_fits(bool sum, uint8_t flags, uint64_t payload) noexcept {
  if (!sum) return payload == 0;
  return (payload == 0) == ((flags & kEmpty) != 0) && payload <= kMaxDatagramPayload;
}

bool flags_fit(bool sum, uint8_t flags) noexcept {
  return (flags & ~(sum ? kUpFlags : uint8_t{kFull})) == 0;
}

bool counts_fit(const DownHeader& h) noexcept {
  if (h.type == DatagramType::failed) {
    const bool lost = h.divisor == static_cast<uint8_t>(Reason::lost_worker);
    return h.bitmap == 0 || (lost && h.added < 64 && (h.bitmap >> h.added & 1) != 0);
  }
  if (!carries_sum(h.type)) return h.bitmap == 0 && h.added == 0 && h.divisor == 0 && h.norm == 0;
  const auto contributors = static_cast<uint32_t>(std::popcount(h.bitmap));
  return contributors >= 1 && h.divisor == contributors && h.added <= h.divisor &&
         (h.added == 0) == ((h.flags & kEmpty) != 0);
}

// A word of zeros after another, as if they were there.
uint64_t end_with_zeros(laconic_sip* s, uint64_t taken, Bytes payload, uint64_t zeros) noexcept {
  const uint64_t whole = payload.size() / 8 * 8;
  for (uint64_t i = 0; i < whole; i += 8) laconic_sip_word(s, laconic_sip_load(payload.data() + i));
  uint64_t tail = 0, rest = payload.size() - whole;
  for (uint64_t i = 0; i < rest; ++i) tail |= uint64_t{payload[whole + i]} << (8 * i);
  for (rest += zeros; rest >= 8; rest -= 8, tail = 0) laconic_sip_word(s, tail);
  return laconic_sip_end(s, taken + payload.size() + zeros, tail);
}

uint64_t tag_of(Bytes header, bool full, Bytes payload, uint64_t zeros, const SipKey& key,
                uint64_t era) noexcept {
  laconic_sip s = laconic_sip_begin(&key);
  laconic_sip_words(&s, header.data(), static_cast<int>(header.size() / 8));
  // A datagram that was cut, or moved to another era, has another tag.
  laconic_sip_word(&s, era | (payload.size() + zeros) << 32U);
  const uint64_t taken = header.size() + 8;
  if (!full) return laconic_sip_end(&s, taken, 0);
  return end_with_zeros(&s, taken, payload, zeros);
}

void seal(uint8_t* out, uint64_t header_bytes, uint8_t flags, Bytes payload, uint64_t zeros,
          const SipKey& key, uint64_t era) noexcept {
  const uint64_t tagged = header_bytes - kTagBytes;
  store(out + tagged, tag_of(Bytes(out, tagged), (flags & kFull) != 0, payload, zeros, key, era));
}

}  // namespace

std::string_view datagram_fault_name(DatagramFault fault) noexcept {
  constexpr std::string_view kNames[] = {"none", "size",  "magic", "version",
                                         "type", "field", "tag"};
  return kNames[static_cast<std::size_t>(fault)];
}

DatagramFault parse_start(Bytes datagram, DatagramStart* start) noexcept {
  if (datagram.size() < LACONIC_AT_GRANULE) return DatagramFault::size;
  const uint8_t* p = datagram.data();
  if (load<uint16_t>(p) != kDatagramMagic) return DatagramFault::magic;
  start->version = p[LACONIC_AT_TYPE] >> 4U;
  start->type = static_cast<DatagramType>(p[LACONIC_AT_TYPE] & 15U);
  start->flags = p[LACONIC_AT_FLAGS];
  start->job = load<uint32_t>(p + LACONIC_AT_JOB);
  return DatagramFault::none;
}

DatagramFault parse_up(Bytes datagram, UpHeader* header) noexcept {
  DatagramStart start;
  if (const auto fault = check_start(datagram, &start); fault != DatagramFault::none) return fault;
  if (!is_up(start.type)) return DatagramFault::type;
  if (datagram.size() < kUpHeaderBytes) return DatagramFault::size;
  get_common(datagram, start, header);
  header->worker = datagram[LACONIC_AT_WORKER];
  const bool sum = start.type == DatagramType::data;
  const bool tries = start.type == DatagramType::ack;
  const auto of_groups = static_cast<uint8_t>(tries ? kGroup | kTry : int{kGroup});
  const bool known = flags_fit(sum, start.flags & static_cast<uint8_t>(~of_groups)) &&
                     datagram[LACONIC_AT_ZERO] == 0;
  if (!known || header->worker >= kMaxWorkers) return DatagramFault::field;
  if (!sum && header->norm != 0) return DatagramFault::field;
  const bool fits = payload_fits(sum, start.flags, datagram.size() - kUpHeaderBytes);
  return fits ? DatagramFault::none : DatagramFault::size;
}

DatagramFault parse_down(Bytes datagram, DownHeader* header) noexcept {
  DatagramStart start;
  if (const auto fault = check_start(datagram, &start); fault != DatagramFault::none) return fault;
  if (!is_down(start.type)) return DatagramFault::type;
  if (datagram.size() < kDownHeaderBytes) return DatagramFault::size;
  get_common(datagram, start, header);
  header->added = datagram[LACONIC_AT_ADDED];
  header->divisor = datagram[LACONIC_AT_DIVISOR];
  header->bitmap = load<uint64_t>(datagram.data() + LACONIC_AT_BITMAP);
  const bool sum = carries_sum(start.type);
  if (!flags_fit(sum, start.flags) || !counts_fit(*header)) return DatagramFault::field;
  const bool fits = payload_fits(sum, start.flags, datagram.size() - kDownHeaderBytes);
  return fits ? DatagramFault::none : DatagramFault::size;
}

bool tag_is_right(Bytes datagram, uint64_t header_bytes, const SipKey& key, uint64_t era) noexcept {
  const uint64_t tagged = header_bytes - kTagBytes;
  const bool full = (datagram[LACONIC_AT_FLAGS] & kFull) != 0;
  const uint64_t want =
      tag_of(datagram.first(tagged), full, datagram.subspan(header_bytes), 0, key, era);
  return load<uint64_t>(datagram.data() + tagged) == want;
}

void write_up(const UpHeader& header, const SipKey& key, uint64_t era, Bytes payload, uint8_t* out,
              uint64_t padding) noexcept {
  put_common(header, out);
  out[LACONIC_AT_WORKER] = header.worker;
  out[LACONIC_AT_ZERO] = 0;
  seal(out, kUpHeaderBytes, header.flags, payload, padding, key, era);
}

void write_down(const DownHeader& header, const SipKey& key, uint64_t era, Bytes payload,
                uint8_t* out) noexcept {
  put_common(header, out);
  out[LACONIC_AT_ADDED] = header.added;
  out[LACONIC_AT_DIVISOR] = header.divisor;
  store(out + LACONIC_AT_BITMAP, header.bitmap);
  seal(out, kDownHeaderBytes, header.flags, payload, 0, key, era);
}

}  // namespace laconic::aggregation::protocol

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/protocol/enrolment.h"

#include <algorithm>

namespace laconic::aggregation::protocol {
namespace {

// The same in every version up to here: a refusal has to be read by any.
constexpr std::size_t kNumberAt = 8, kInstanceAt = 16, kAttemptAt = 24, kWorkerAt = 28;
constexpr std::size_t kReasonAt = 29, kExpectedAt = 32, kFoundAt = 40;       // refusal
constexpr std::size_t kRegisteredAt = 29, kGroupPortAt = 30, kGroupAt = 40;  // welcome
constexpr std::size_t kEpochAt = 32, kNonceAt = 40;                          // and enrolment
constexpr std::size_t kWorldAt = 29, kNeededAt = 30, kCodeBitsAt = 31, kSpecAt = 48;
constexpr std::size_t kDeadlineAt = 56, kTimeoutAt = 60, kLanesAt = 64, kRingAt = 68;
constexpr std::size_t kValuesAt = 70, kLaneBitsAt = 72, kTableSizeAt = 73, kTableAt = 76;
constexpr std::size_t kAckAt = 112, kKeptAt = 120, kHeldAt = kEnrolmentFrontBytes;
static_assert(kTableAt + 2 * kMaxTable + 4 == kAckAt);

constexpr uint32_t kMaxLanes = 8192;
constexpr uint64_t kMaxAck = uint64_t{1} << 62;

bool is_zero(Bytes bytes) noexcept {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b == 0; });
}

DatagramFault parse_applicant(Bytes in, DatagramType type, uint64_t least, uint8_t flags,
                              Applicant* who) noexcept {
  DatagramStart start;
  if (const auto fault = parse_start(in, &start); fault != DatagramFault::none) return fault;
  // A refusal that names our version as one the server does not know comes in another.
  if (start.version != kDatagramVersion && type != DatagramType::refusal) {
    return DatagramFault::version;
  }
  if (start.type != type) return DatagramFault::type;
  if (in.size() < least) return DatagramFault::size;
  *who = applicant_of(in);
  const bool fits = (start.flags & ~flags) == 0 && start.job == static_cast<uint32_t>(who->job) &&
                    who->worker < kMaxWorkers;
  return fits ? DatagramFault::none : DatagramFault::field;
}

DatagramFault parse_short(Bytes in, DatagramType type, uint8_t flags, Applicant* who) noexcept {
  const auto fault = parse_applicant(in, type, kHelloBytes, flags, who);
  if (fault != DatagramFault::none) return fault;
  return in.size() == kHelloBytes ? DatagramFault::none : DatagramFault::size;
}

void put_start(DatagramType type, uint8_t flags, uint32_t job, uint8_t* out) noexcept {
  store(out, kDatagramMagic);
  out[2] = static_cast<uint8_t>(kDatagramVersion << 4U | static_cast<uint8_t>(type));
  out[3] = flags;
  store(out + 4, job);
}

void put_applicant(const Applicant& who, DatagramType type, uint8_t flags, uint64_t bytes,
                   uint8_t* out) noexcept {
  std::fill(out, out + bytes, uint8_t{0});
  put_start(type, flags, static_cast<uint32_t>(who.job), out);
  store(out + kNumberAt, who.job);
  store(out + kInstanceAt, who.instance);
  store(out + kAttemptAt, who.attempt);
  out[kWorkerAt] = who.worker;
}

uint64_t seal(uint8_t* out, uint64_t bytes, const SipKey& key) noexcept {
  store(out + bytes - kTagBytes, laconic_siphash(&key, out, bytes - kTagBytes));
  return bytes;
}

JobSettings get_settings(Bytes in, bool full) noexcept {
  const uint8_t* p = in.data();
  JobSettings s;
  s.world = p[kWorldAt];
  s.needed = p[kNeededAt];
  s.code_bits = p[kCodeBitsAt];
  s.lane_bits = p[kLaneBitsAt];
  s.table_size = p[kTableSizeAt];
  s.full_tags = full;
  s.ring = load<uint16_t>(p + kRingAt);
  s.values = load<uint16_t>(p + kValuesAt);
  s.lanes = load<uint32_t>(p + kLanesAt);
  s.deadline_us = load<uint32_t>(p + kDeadlineAt);
  s.timeout_ms = load<uint32_t>(p + kTimeoutAt);
  s.spec = load<uint64_t>(p + kSpecAt);
  for (std::size_t i = 0; i < kMaxTable; ++i) s.table[i] = load<uint16_t>(p + kTableAt + 2 * i);
  return s;
}

void put_settings(const JobSettings& s, uint8_t* out) noexcept {
  out[kWorldAt] = s.world;
  out[kNeededAt] = s.needed;
  out[kCodeBitsAt] = s.code_bits;
  out[kLaneBitsAt] = s.lane_bits;
  out[kTableSizeAt] = s.table_size;
  store(out + kRingAt, s.ring);
  store(out + kValuesAt, s.values);
  store(out + kLanesAt, s.lanes);
  store(out + kDeadlineAt, s.deadline_us);
  store(out + kTimeoutAt, s.timeout_ms);
  store(out + kSpecAt, s.spec);
  for (std::size_t i = 0; i < kMaxTable; ++i) store(out + kTableAt + 2 * i, s.table[i]);
}

bool codes_fit(const JobSettings& s) noexcept {
  const bool by_table = s.code_bits >= 2 && s.code_bits <= 4 && s.table_size == 1U << s.code_bits;
  const bool as_they_are = s.code_bits == 8 && s.table_size == 0;
  const auto unused = std::span(s.table).subspan(std::min<std::size_t>(s.table_size, kMaxTable));
  return (by_table || as_they_are) && (s.lane_bits == 8 || s.lane_bits == 16) &&
         std::all_of(unused.begin(), unused.end(), [](uint16_t entry) { return entry == 0; });
}

}  // namespace

std::string_view reason_text(Reason reason) noexcept {
  switch (reason) {
    case Reason::none:
      return "no error";
    case Reason::version:
      return "the server uses another version of the protocol";
    case Reason::token:
      return "the token differs from the server's";
    case Reason::world:
      return "the workers of this job have different world sizes";
    case Reason::quorum:
      return "the workers of this job have different quorums";
    case Reason::spec:
      return "the workers of this job have different specs or models";
    case Reason::settings:
      return "the workers of this job have different deadlines or block sizes";
    case Reason::malformed:
      return "the server does not accept these blocks";
    case Reason::lane_overflow:
      return "the sum of this number of workers overflows its elements";
    case Reason::memory:
      return "the server has no memory left for this job";
    case Reason::jobs:
      return "the server has reached its limit of jobs";
    case Reason::lost_worker:
      return "the worker does not respond";
    case Reason::lost_results:
      return "the worker reconnected without the results that it had";
    case Reason::left:
      return "the worker left while others were waiting for it";
    case Reason::sums_differ:
      return "the worker's settings for a block differ from the others'";
    case Reason::auth:
      return "the server requires tags over payloads, this job's tags cover headers only";
  }
  return "the server gave a reason unknown to this release";
}

uint32_t largest_code(const JobSettings& settings) noexcept {
  if (settings.code_bits == 8) return 255;
  return *std::max_element(settings.table.begin(), settings.table.end());
}

Reason judge_settings(const JobSettings& s) noexcept {
  const bool counts =
      s.world >= 1 && s.world <= kMaxWorkers && s.needed >= 1 && s.needed <= s.world;
  const bool sizes = s.ring >= 8 && s.ring <= kMaxRing && s.ring % 8 == 0 && s.lanes >= 8 &&
                     s.lanes <= kMaxLanes && s.lanes % 8 == 0 && s.values <= kMaxLanes &&
                     s.timeout_ms >= 1;
  if (!counts || !sizes || !codes_fit(s)) return Reason::malformed;
  const uint32_t most = (1U << s.lane_bits) - 1;
  return largest_code(s) * s.world <= most ? Reason::none : Reason::lane_overflow;
}

Reason compare_settings(const JobSettings& job, const JobSettings& found) noexcept {
  if (job.world != found.world) return Reason::world;
  if (job.needed != found.needed) return Reason::quorum;
  if (job.spec != found.spec) return Reason::spec;
  return job == found ? Reason::none : Reason::settings;
}

bool is_multicast(const Group& group) noexcept {
  constexpr std::array<uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  const auto& a = group.address;
  const bool four = std::equal(kMapped.begin(), kMapped.end(), a.begin());
  return group.exists() && (four ? a[12] >> 4U == 14 : a[0] == 0xFF);
}

Applicant applicant_of(Bytes hello) noexcept {
  return {load<uint64_t>(hello.data() + kNumberAt), load<uint64_t>(hello.data() + kInstanceAt),
          load<uint32_t>(hello.data() + kAttemptAt), hello[kWorkerAt]};
}

DatagramFault parse_hello(Bytes in, Applicant* from, bool* tagged) noexcept {
  const auto fault = parse_short(in, DatagramType::hello, kTagged, from);
  if (fault != DatagramFault::none) return fault;
  *tagged = (in[3] & kTagged) != 0;
  const Bytes unnamed = in.first(*tagged ? kHelloBytes - kTagBytes : kHelloBytes);
  return is_zero(unnamed.subspan(kReasonAt)) ? DatagramFault::none : DatagramFault::field;
}

DatagramFault parse_challenge(Bytes in, Challenge* challenge) noexcept {
  const auto fault = parse_short(in, DatagramType::challenge, kPad, &challenge->to);
  if (fault != DatagramFault::none) return fault;
  challenge->pad = (in[3] & kPad) != 0;
  challenge->epoch = load<uint64_t>(in.data() + kEpochAt);
  challenge->nonce = load<uint64_t>(in.data() + kNonceAt);
  return DatagramFault::none;
}

DatagramFault parse_welcome(Bytes in, Welcome* welcome) noexcept {
  const auto fault = parse_short(in, DatagramType::welcome, kComplete | kGroup, &welcome->to);
  if (fault != DatagramFault::none) return fault;
  welcome->group = {};
  if ((in[3] & kGroup) != 0) {
    std::copy_n(in.data() + kGroupAt, welcome->group.address.size(),
                welcome->group.address.begin());
    welcome->group.port = load<uint16_t>(in.data() + kGroupPortAt);
    if (!is_multicast(welcome->group)) return DatagramFault::field;
  }
  welcome->registered = in[kRegisteredAt];
  welcome->complete = (in[3] & kComplete) != 0;
  welcome->epoch = load<uint64_t>(in.data() + kEpochAt);
  return DatagramFault::none;
}

DatagramFault parse_refusal(Bytes in, Refusal* refusal) noexcept {
  const auto fault = parse_short(in, DatagramType::refusal, 0, &refusal->to);
  if (fault != DatagramFault::none) return fault;
  refusal->reason = static_cast<Reason>(in[kReasonAt]);
  refusal->expected = load<uint64_t>(in.data() + kExpectedAt);
  refusal->found = load<uint64_t>(in.data() + kFoundAt);
  return refusal->reason == Reason::none ? DatagramFault::field : DatagramFault::none;
}

DatagramFault parse_enrolment(Bytes in, Enrolment* e) noexcept {
  const auto fault = parse_applicant(in, DatagramType::enrol, kEnrolmentFrontBytes + kTagBytes,
                                     kFull | kGroup, &e->from);
  if (fault != DatagramFault::none) return fault;
  const uint8_t* p = in.data();
  e->epoch = load<uint64_t>(p + kEpochAt);
  e->nonce = load<uint64_t>(p + kNonceAt);
  e->settings = get_settings(in, (in[3] & kFull) != 0);
  e->wants_group = (in[3] & kGroup) != 0;
  e->ack = load<uint64_t>(p + kAckAt);
  e->kept = load<uint64_t>(p + kKeptAt);
  if (e->ack > kMaxAck || e->kept > e->ack || e->settings.ring > kMaxRing ||
      e->settings.ring % 8 != 0) {
    return DatagramFault::field;
  }
  const uint64_t held = e->settings.ring / 8U;
  if (in.size() != kEnrolmentFrontBytes + held + kTagBytes) return DatagramFault::size;
  e->held = in.subspan(kHeldAt, held);
  return DatagramFault::none;
}

bool message_tag_is_right(Bytes in, const SipKey& key) noexcept {
  const uint64_t tagged = in.size() - kTagBytes;
  return load<uint64_t>(in.data() + tagged) == laconic_siphash(&key, in.data(), tagged);
}

uint64_t write_hello(const Applicant& from, const SipKey* key, uint8_t* out) noexcept {
  put_applicant(from, DatagramType::hello, key != nullptr ? kTagged : 0, kHelloBytes, out);
  return key != nullptr ? seal(out, kHelloBytes, *key) : kHelloBytes;
}

uint64_t write_challenge(const Challenge& c, const SipKey& key, uint8_t* out) noexcept {
  put_applicant(c.to, DatagramType::challenge, c.pad ? kPad : 0, kHelloBytes, out);
  store(out + kEpochAt, c.epoch);
  store(out + kNonceAt, c.nonce);
  return seal(out, kHelloBytes, key);
}

uint64_t write_welcome(const Welcome& w, const SipKey& key, uint8_t* out) noexcept {
  const int flags = (w.complete ? kComplete : 0) | (w.group.exists() ? kGroup : 0);
  put_applicant(w.to, DatagramType::welcome, static_cast<uint8_t>(flags), kHelloBytes, out);
  out[kRegisteredAt] = w.registered;
  store(out + kGroupPortAt, w.group.port);
  std::copy(w.group.address.begin(), w.group.address.end(), out + kGroupAt);
  store(out + kEpochAt, w.epoch);
  return seal(out, kHelloBytes, key);
}

uint64_t write_refusal(const Refusal& r, const SipKey& key, uint8_t* out) noexcept {
  put_applicant(r.to, DatagramType::refusal, 0, kHelloBytes, out);
  out[kReasonAt] = static_cast<uint8_t>(r.reason);
  store(out + kExpectedAt, r.expected);
  store(out + kFoundAt, r.found);
  return seal(out, kHelloBytes, key);
}

uint64_t write_enrolment(const Enrolment& e, const SipKey& key, uint8_t* out) noexcept {
  const uint64_t bytes = kEnrolmentFrontBytes + e.held.size() + kTagBytes;
  const int flags = (e.settings.full_tags ? kFull : 0) | (e.wants_group ? kGroup : 0);
  put_applicant(e.from, DatagramType::enrol, static_cast<uint8_t>(flags), bytes, out);
  put_settings(e.settings, out);
  store(out + kEpochAt, e.epoch);
  store(out + kNonceAt, e.nonce);
  store(out + kAckAt, e.ack);
  store(out + kKeptAt, e.kept);
  std::copy(e.held.begin(), e.held.end(), out + kHeldAt);
  return seal(out, bytes, key);
}

void write_stranger(uint32_t job, uint8_t* out) noexcept {
  std::fill(out, out + kUpHeaderBytes, uint8_t{0});
  put_start(DatagramType::stranger, 0, job, out);
}

DatagramFault parse_stranger(Bytes in, uint32_t* job) noexcept {
  DatagramStart start;
  if (const auto fault = parse_start(in, &start); fault != DatagramFault::none) return fault;
  if (start.version != kDatagramVersion) return DatagramFault::version;
  if (start.type != DatagramType::stranger) return DatagramFault::type;
  if (in.size() != kUpHeaderBytes) return DatagramFault::size;
  *job = start.job;
  return DatagramFault::none;
}

SipKey hello_key(const Token& token) noexcept { return derive_key(token, KeyUse::hello, {}); }

SipKey challenge_key(const Token& token, const Applicant& who) noexcept {
  const uint64_t nonces[] = {who.job, who.instance};
  return derive_key(token, KeyUse::challenge, nonces);
}

SipKey enrolment_key(const Token& token, const Applicant& who, uint64_t epoch,
                     uint64_t nonce) noexcept {
  const uint64_t nonces[] = {who.job, who.instance, epoch, nonce};
  return derive_key(token, KeyUse::enrol, nonces);
}

}  // namespace laconic::aggregation::protocol

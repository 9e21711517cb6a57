// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How a worker gets into a job of an aggregation server: hello, challenge, enrolment, welcome or
// refusal. docs/format/DATAGRAM.md section 4.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "aggregation/protocol/datagram.h"
#include "aggregation/protocol/token.h"

namespace laconic::aggregation::protocol {

/// Length of hello and of each answer to it: an answer is never longer than its request.
inline constexpr uint64_t kHelloBytes = 64;
inline constexpr uint64_t kEnrolmentFrontBytes = 128;
inline constexpr uint64_t kMaxEnrolmentBytes = kEnrolmentFrontBytes + kMaxRing / 8 + kTagBytes;
inline constexpr uint32_t kMaxTable = 16;

/// Why a server refuses a worker, or gives a job up. Numbers are part of the format.
enum class Reason : uint8_t {
  none = 0,
  version = 1,        ///< expected, found: versions of datagrams
  token = 2,          ///< the tag of the enrolment is wrong
  world = 3,          ///< expected, found
  quorum = 4,         ///< expected, found: contributors that are enough
  spec = 5,           ///< hashes
  settings = 6,       ///< deadline, timeout, ring, lanes, table: not as the first worker's
  malformed = 7,      ///< settings that no job can have
  lane_overflow = 8,  ///< the largest world that this table allows, and the world
  memory = 9,         ///< bytes that are left, bytes that are needed
  jobs = 10,          ///< jobs that are allowed
  lost_worker = 11,   ///< silent, or its port is closed
  lost_results = 12,  ///< it registered again and no longer has results that others wait for
  left = 13,          ///< it left while others wait for it
  sums_differ = 14,   ///< it sent other settings or another length for a granule than the others
  auth = 15,          ///< this server wants tags that cover payloads
};
inline constexpr uint8_t kLastReason = 15;
/// A message without a full stop, e.g. "the token is another one than the server's".
std::string_view reason_text(Reason reason) noexcept;

/// Every message of registration names them.
struct Applicant {
  uint64_t job = 0;       ///< random, the same on all workers; headers carry the low 32 bits
  uint64_t instance = 0;  ///< random, of this worker's process
  uint32_t attempt = 0;   ///< counts hellos; answers repeat it
  uint8_t worker = 0;
  friend bool operator==(const Applicant&, const Applicant&) = default;
};

struct Challenge {
  Applicant to;
  bool pad = false;  ///< this server turns contributions into results where they lie
  uint64_t epoch = 0;
  uint64_t nonce = 0;
  friend bool operator==(const Challenge&, const Challenge&) = default;
};

/// The multicast group for sums.
struct Group {
  std::array<uint8_t, 16> address{};  ///< IPv6, or ::ffff:a.b.c.d for IPv4, big-endian
  uint16_t port = 0;                  ///< 0: there is none
  [[nodiscard]] bool exists() const noexcept { return port != 0; }
  friend bool operator==(const Group&, const Group&) = default;
};
[[nodiscard]] bool is_multicast(const Group& group) noexcept;

struct Welcome {
  Applicant to;
  uint8_t registered = 0;  ///< workers
  bool complete = false;   ///< all are
  uint64_t epoch = 0;
  Group group{};  ///< for a worker that requested it
  friend bool operator==(const Welcome&, const Welcome&) = default;
};

struct Refusal {
  Applicant to;
  Reason reason = Reason::none;
  uint64_t expected = 0;
  uint64_t found = 0;
  friend bool operator==(const Refusal&, const Refusal&) = default;
};

/// The values of a job and the rule that closes its sums. The server does not interpret the values.
struct JobSettings {
  uint8_t world = 1;
  uint8_t needed = 1;        ///< contributors that are enough after the deadline
  uint8_t code_bits = 4;     ///< 2, 3, 4 by table; 8 as they are
  uint8_t lane_bits = 8;     ///< 8 or 16
  uint8_t table_size = 0;    ///< 2^code_bits; 0 with 8 bits
  bool full_tags = false;    ///< tags cover payloads
  uint16_t ring = 0;         ///< slots: a multiple of 8
  uint16_t values = 0;       ///< 32-bit lanes of one granule, at most
  uint32_t lanes = 0;        ///< of every granule of codes: a multiple of 8
  uint32_t deadline_us = 0;  ///< of an exchange, since the first contribution
  uint32_t timeout_ms = 0;   ///< silence after which a worker is lost
  uint64_t spec = 0;         ///< hash: the same on all workers
  std::array<uint16_t, kMaxTable> table{};

  [[nodiscard]] uint64_t code_bytes() const noexcept { return uint64_t{lanes} * code_bits / 8; }
  [[nodiscard]] uint64_t lane_bytes() const noexcept { return uint64_t{lanes} * lane_bits / 8; }
  /// Bytes of quantized values after a header of 32 bytes, padded to the size of a result after one
  /// of 40.
  [[nodiscard]] uint64_t padded_bytes() const noexcept {
    const uint64_t result = lane_bytes() + kDownHeaderBytes - kUpHeaderBytes;
    return result > code_bytes() ? result : code_bytes();
  }
  /// Bytes of the longest result.
  [[nodiscard]] uint64_t slot_bytes() const noexcept {
    return lane_bytes() > 4U * values ? lane_bytes() : uint64_t{4} * values;
  }
  friend bool operator==(const JobSettings&, const JobSettings&) = default;
};

/// none, malformed or lane_overflow. Every number is bounded here, before anything is made of it.
[[nodiscard]] Reason judge_settings(const JobSettings& settings) noexcept;
/// The first difference.
[[nodiscard]] Reason compare_settings(const JobSettings& job, const JobSettings& found) noexcept;
/// The largest lane that one worker can send.
[[nodiscard]] uint32_t largest_code(const JobSettings& settings) noexcept;

struct Enrolment {
  Applicant from;
  uint64_t epoch = 0;
  uint64_t nonce = 0;  ///< the challenge's
  JobSettings settings;
  uint64_t ack = 0;   ///< all results below are here
  uint64_t kept = 0;  ///< those from here on are still held; at most ack
  Bytes held{};       ///< bit i: result ack + i is held; ring / 8 bytes
  bool wants_group = false;
};

/// `tagged`: the tag is there; message_tag_is_right() with hello_key() says whether it is right.
DatagramFault parse_hello(Bytes datagram, Applicant* from, bool* tagged) noexcept;
/// The sender of a hello of another version, of at least kHelloBytes: applicants have the same
/// place in all of them.
[[nodiscard]] Applicant applicant_of(Bytes hello) noexcept;
DatagramFault parse_challenge(Bytes datagram, Challenge* challenge) noexcept;
DatagramFault parse_enrolment(Bytes datagram, Enrolment* enrolment) noexcept;
DatagramFault parse_welcome(Bytes datagram, Welcome* welcome) noexcept;
DatagramFault parse_refusal(Bytes datagram, Refusal* refusal) noexcept;

/// The last 8 bytes of every message are its tag, of a hello where its flag is set.
[[nodiscard]] bool message_tag_is_right(Bytes datagram, const SipKey& key) noexcept;

/// Writers return the length.
/// `key`: null, and there is no tag.
uint64_t write_hello(const Applicant& from, const SipKey* key, uint8_t* out) noexcept;
uint64_t write_challenge(const Challenge& challenge, const SipKey& key, uint8_t* out) noexcept;
uint64_t write_enrolment(const Enrolment& enrolment, const SipKey& key, uint8_t* out) noexcept;
uint64_t write_welcome(const Welcome& welcome, const SipKey& key, uint8_t* out) noexcept;
uint64_t write_refusal(const Refusal& refusal, const SipKey& key, uint8_t* out) noexcept;

/// The answer to a header of a job or epoch that the server does not know: the header itself, with
/// type `stranger` and without a tag. kUpHeaderBytes.
void write_stranger(uint32_t job, uint8_t* out) noexcept;
DatagramFault parse_stranger(Bytes datagram, uint32_t* job) noexcept;

/// Known to all that have the token, before anything else is.
SipKey hello_key(const Token& token) noexcept;
SipKey challenge_key(const Token& token, const Applicant& who) noexcept;
SipKey enrolment_key(const Token& token, const Applicant& who, uint64_t epoch,
                     uint64_t nonce) noexcept;

}  // namespace laconic::aggregation::protocol

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Datagrams between workers and an aggregation server: docs/format/DATAGRAM.md. Parsers are total,
// allocate nothing and build no text: they run once per datagram.
#pragma once

#include <cstdint>
#include <string_view>

#include "aggregation/protocol/datagram_layout.h"
#include "aggregation/protocol/siphash.h"
#include "laconic/bytes.h"

namespace laconic::aggregation::protocol {

inline constexpr uint16_t kDatagramMagic = LACONIC_DATAGRAM_MAGIC;
inline constexpr uint8_t kDatagramVersion = LACONIC_DATAGRAM_VERSION;
inline constexpr uint64_t kUpHeaderBytes = LACONIC_UP_BYTES;
inline constexpr uint64_t kDownHeaderBytes = LACONIC_DOWN_BYTES;
inline constexpr uint64_t kTagBytes = 8;
/// Contributors are bits of 64.
inline constexpr uint32_t kMaxWorkers = 64;
/// Slots of a job: what a worker holds has to fit into one datagram of registration.
inline constexpr uint32_t kMaxRing = 4096;
/// Maximum bytes after a header in one UDP datagram.
inline constexpr uint64_t kMaxDatagramPayload = 65000;

enum class DatagramType : uint8_t {
  // Registration: fixed layouts (aggregation/protocol/enrolment.h).
  hello = 0,      ///< worker: which server are you, and may I
  challenge = 1,  ///< server: epoch and nonce; it remembers nothing
  enrol = 2,      ///< worker: the job's settings and what this worker holds
  welcome = 3,    ///< server: registered; with the flag `complete`, all are
  refusal = 4,    ///< server: no, with a reason
  stranger = 5,   ///< server: I know no such job or epoch; the header comes back
  // Up: 32 bytes of header.
  data = LACONIC_TYPE_DATA,  ///< a contribution
  pull = 7,                  ///< the header alone: send me this result
  ack = LACONIC_TYPE_ACK,    ///< the header alone: see `ahead`
  leave = 9,                 ///< the header alone: this worker has all it wants
  // Down: 40 bytes of header, also when a worker sends what it holds.
  held = 10,                     ///< worker: a result of an earlier epoch, requested by the server
  result = LACONIC_TYPE_RESULT,  ///< a closed sum
  status = 12,                   ///< no sum: see `ahead`
  open = 13,                     ///< to a pull: the sum is open, send data
  fetch = 14,                    ///< send me the result that you hold
  failed = 15,                   ///< the job is over: `divisor` is the Reason, `added` the worker
};

/// Bits of the header's flags.
enum DatagramFlag : uint8_t {
  kEmpty = LACONIC_FLAG_EMPTY,      ///< nothing to add: counts in the divisor only
  kTrouble = LACONIC_FLAG_TROUBLE,  ///< the sum is of no use; OR-ed into the result
  kValues = LACONIC_FLAG_VALUES,    ///< 32-bit lanes in place of codes
  kFirst = LACONIC_FLAG_FIRST,      ///< the first granule of an exchange on this server
  kFull = LACONIC_FLAG_FULL,        ///< the tag covers the payload
  kGroup = LACONIC_FLAG_GROUP,      ///< up: the job's multicast group reaches this worker
  kTry = LACONIC_FLAG_TRY,          ///< of an ack: send something to the group
  kComplete = 1,                    ///< of a welcome: all workers are registered
  kPad = 2,                         ///< of a challenge: data of codes are as long as their results
  kTagged = 32,                     ///< of a hello: its last bytes are a tag
};

enum class DatagramFault : uint8_t { none, size, magic, version, type, field, tag };
std::string_view datagram_fault_name(DatagramFault fault) noexcept;

/// The start of every datagram, in every version.
struct DatagramStart {
  DatagramType type = DatagramType::hello;
  uint8_t version = kDatagramVersion;
  uint8_t flags = 0;
  uint32_t job = 0;
};
/// `version` is not judged: an answer to another version has to be possible.
DatagramFault parse_start(Bytes datagram, DatagramStart* start) noexcept;

/// The low 16 bits of the epoch that a datagram of at least kUpHeaderBytes names, up or down: which
/// job's it is, before anything else of it is looked at.
[[nodiscard]] inline uint16_t epoch_of(Bytes datagram) noexcept {
  return load<uint16_t>(datagram.data() + LACONIC_AT_EPOCH);
}

struct UpHeader {
  DatagramType type = DatagramType::data;
  uint8_t flags = 0;
  uint32_t job = 0;
  uint32_t granule = 0;   ///< low 32 bits of its number
  uint32_t settings = 0;  ///< hash of what the lanes mean; the same on all workers
  uint16_t epoch = 0;     ///< low 16 bits
  uint16_t ahead = 0;     ///< granule - ack: the worker has all results below its ack
  uint16_t norm = 0;
  uint8_t worker = 0;
  friend bool operator==(const UpHeader&, const UpHeader&) = default;
};

struct DownHeader {
  DatagramType type = DatagramType::result;
  uint8_t flags = 0;
  uint32_t job = 0;
  uint32_t granule = 0;
  uint32_t settings = 0;
  uint16_t epoch = 0;
  uint16_t ahead = 0;   ///< granule - floor: all workers have all below the floor; held: the worker
  uint16_t norm = 0;    ///< the largest
  uint8_t added = 0;    ///< contributions in the sum; failed: the worker
  uint8_t divisor = 0;  ///< contributors, the empty ones too: bits in the bitmap; failed: reason
  uint64_t bitmap = 0;  ///< bit w: worker w contributed; failed: is lost, if several are
  friend bool operator==(const DownHeader&, const DownHeader&) = default;
};

/// `tag` is not judged here. `payload` is what follows the header.
DatagramFault parse_up(Bytes datagram, UpHeader* header) noexcept;
DatagramFault parse_down(Bytes datagram, DownHeader* header) noexcept;

using SipKey = laconic_sip_key;

/// True if a parsed datagram was sent by a holder of the key. `header_bytes`: 32 or 40; `era`:
/// upper half of the granule's number.
[[nodiscard]] bool tag_is_right(Bytes datagram, uint64_t header_bytes, const SipKey& key,
                                uint64_t era) noexcept;

/// Writes the header with its tag, which covers the payload's length, too; its bytes are read with
/// kFull only. `padding` zeros follow it.
void write_up(const UpHeader& header, const SipKey& key, uint64_t era, Bytes payload, uint8_t* out,
              uint64_t padding = 0) noexcept;
void write_down(const DownHeader& header, const SipKey& key, uint64_t era, Bytes payload,
                uint8_t* out) noexcept;

/// The number with these low bits that is nearest to `near`; of two, the larger.
[[nodiscard]] constexpr uint64_t nearest_number(uint32_t low, uint64_t near) noexcept {
  const auto distance = static_cast<int32_t>(low - static_cast<uint32_t>(near));
  const uint64_t number = near + static_cast<uint64_t>(static_cast<int64_t>(distance));
  // Below zero there is nothing.
  return distance < 0 && number > near ? number + (uint64_t{1} << 32) : number;
}
[[nodiscard]] constexpr uint64_t era_of(uint64_t number) noexcept { return number >> 32; }

}  // namespace laconic::aggregation::protocol

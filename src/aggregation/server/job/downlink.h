// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Writes what a job sends.
#pragma once

#include <array>
#include <cstdint>

#include "aggregation/protocol/sender.h"
#include "aggregation/server/job/members.h"
#include "aggregation/server/job/terms.h"
#include "aggregation/server/slots/ring.h"

namespace laconic::aggregation {

class Downlink {
 public:
  /// All of them outlive it.
  Downlink(const Terms& terms, const SlotRing& ring, Sender& out) noexcept
      : terms_(terms), ring_(ring), out_(out) {}

  /// About granule `number`, without a sum.
  void status(const Address& to, protocol::DatagramType type, uint64_t number);
  /// Sends the position of the floor.
  void floor(const Address& to) { status(to, protocol::DatagramType::status, ring_.floor()); }
  void failure(const Address& to, const Course& course);
  void welcome(const Members& members, uint32_t worker, bool complete);

 private:
  const Terms& terms_;
  const SlotRing& ring_;
  Sender& out_;
};

/// A closed sum, which goes to any worker as it is.
class SumDatagram {
 public:
  SumDatagram(const Terms& terms, SlotRing& ring, uint64_t number) noexcept;
  void send(const Address& to, Sender& out) const;

 private:
  std::array<uint8_t, protocol::kDownHeaderBytes> beside_;  ///< a header that is not before its sum
  Bytes datagram_;                                          ///< empty: it is not
  Bytes sum_;
};

}  // namespace laconic::aggregation

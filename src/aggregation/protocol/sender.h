// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "aggregation/protocol/address.h"
#include "laconic/bytes.h"

namespace laconic::aggregation {

/// The peer that a socket is connected to. A link knows no other: its server.
inline constexpr Address kPeer{};

/// Sends datagrams: a link's, or those of a server.
class Sender {
 public:
  virtual ~Sender() = default;
  /// Sends `header`, `payload` and `padding` zeros as one datagram. The header is copied during the
  /// call; the payload may be read until flush(). A payload without a header is a whole datagram:
  /// consecutive ones are often contiguous.
  virtual void send(const Address& to, Bytes header, Bytes payload, std::size_t padding) = 0;
  /// Returns when no payload will be read any more.
  virtual void flush() = 0;
};

}  // namespace laconic::aggregation

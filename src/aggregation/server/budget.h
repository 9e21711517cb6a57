// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Limits replies to unauthenticated senders: few to each, and few in all.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "aggregation/protocol/address.h"
#include "aggregation/protocol/clock.h"
#include "aggregation/protocol/datagram.h"

namespace laconic::aggregation {

class Budget {
 public:
  static constexpr uint32_t kOfAll = 100;  ///< in a second, and at once
  static constexpr uint32_t kOfOne = 10;

  /// `key`: secret, so that senders cannot choose the bucket of an address.
  explicit Budget(const protocol::SipKey& key) noexcept : key_(key) {}

  /// Takes an answer, if there is one for this address and more than `kept` for all.
  bool take(Time now, const Address& to, uint32_t kept = 0) noexcept {
    auto& own = of_one_[place_of(to)];
    own.refill(now);
    of_all_.refill(now);
    if (own.left == 0 || of_all_.left <= kept) return false;
    --own.left;
    --of_all_.left;
    return true;
  }

 private:
  static constexpr std::size_t kPlaces = 1024;
  template <uint32_t kMost>
  struct Share {
    Time refilled = 0;
    uint32_t left = kMost;
    void refill(Time now) noexcept {
      constexpr Time each = 1000000000U / kMost;
      const Time passed = now - refilled;
      if (passed < each) return;
      left = static_cast<uint32_t>(std::min<Time>(kMost, left + passed / each));
      refilled = now - passed % each;
    }
  };
  [[nodiscard]] std::size_t place_of(const Address& to) const noexcept {
    return laconic_siphash(&key_, to.bytes.data(), to.bytes.size()) % kPlaces;
  }

  protocol::SipKey key_;
  std::array<Share<kOfOne>, kPlaces> of_one_{};
  Share<kOfAll> of_all_;
};

}  // namespace laconic::aggregation

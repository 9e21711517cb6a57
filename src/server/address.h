// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

namespace laconic::server {

/// Where a datagram comes from and goes to. Only what drives the server knows what the bytes mean.
struct Address {
  std::array<uint8_t, 24> bytes{};
  friend bool operator==(const Address&, const Address&) = default;
};

/// Nanoseconds on a clock that never goes back.
using Time = uint64_t;
inline constexpr Time kNever = ~Time{0};

}  // namespace laconic::server

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>

#include "laconic/bytes.h"

namespace laconic::aggregation {

/// Source or destination of a datagram. Only the server's driver interprets its bytes.
struct Address {
  std::array<uint8_t, 24> bytes{};
  friend bool operator==(const Address& a, const Address& b) noexcept {
    return a.word(0) == b.word(0) && a.word(1) == b.word(1) && a.word(2) == b.word(2);
  }
  [[nodiscard]] uint64_t word(std::size_t i) const noexcept {
    return load<uint64_t>(bytes.data() + 8 * i);
  }
};

}  // namespace laconic::aggregation

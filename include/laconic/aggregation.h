// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// In-network sums: contributions that a rank sends to a server or switch, and the sums that it
// returns, each for a granule (a block of values). The aggregator adds small integers without
// interpreting them. docs/guide/engines.md.
#pragma once

#include <cstdint>
#include <span>

#include "laconic/bytes.h"

namespace laconic {

/// Flags of contributions and of their sums.
enum GranuleFlag : uint8_t {
  kGranuleEmpty = 1,    ///< nothing to add: counts in the divisor only
  kGranuleTrouble = 2,  ///< the sum is invalid; OR-ed over contributions
  kGranuleValues = 4,   ///< 32-bit values instead of packed quantized values
};

/// A rank's contribution to one sum.
struct Contribution {
  Bytes payload{};        ///< packed quantized values, or 32-bit values; empty with kGranuleEmpty
  uint32_t settings = 0;  ///< hash of the meaning of the values: the same on all ranks
  uint16_t norm = 0;      ///< the maximum over all ranks is returned
  uint8_t flags = 0;      ///< GranuleFlag
};

/// A sum, the same bytes on all ranks. The server decides which ranks contribute.
struct Aggregate {
  MutBytes lanes{};     ///< buffer, provided by the caller
  uint64_t bitmap = 0;  ///< contributors, a bit per rank
  uint32_t length = 0;  ///< bytes of the sum; 0: no contribution had values
  uint16_t norm = 0;
  uint8_t flags = 0;    ///< GranuleFlag
  uint8_t added = 0;    ///< contributions in the sum
  uint8_t divisor = 0;  ///< contributors, including empty ones
};

/// The sums that a session requests.
struct AggregationJob {
  uint32_t code_bits = 0;            ///< bits of a quantized value: 2 to 4
  uint32_t lane_bits = 0;            ///< bits of its sum: 8 or 16
  uint32_t lanes = 0;                ///< quantized values per granule
  uint32_t values = 0;               ///< maximum 32-bit values of other granules
  uint64_t agreement = 0;            ///< hash of model and spec: ranks with another are refused
  std::span<const uint8_t> table{};  ///< value of each quantized value in a sum
};

/// Maximum number of ranks in a sum.
inline constexpr uint32_t kMaxAggregated = 64;

}  // namespace laconic

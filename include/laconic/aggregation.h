// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Sums in the middle: what a rank sends to a server or switch that adds for all, granule by
// granule, and what comes back. It adds small integers and never knows what they mean.
// docs/guide/engines.md.
#pragma once

#include <cstdint>
#include <span>

#include "laconic/bytes.h"

namespace laconic {

/// Of contributions and, but for the last two, of their sums.
enum GranuleFlag : uint8_t {
  kGranuleEmpty = 1,    ///< nothing to add: counts in the divisor alone
  kGranuleTrouble = 2,  ///< the sum is of no use; OR-ed into it
  kGranuleValues = 4,   ///< 32-bit lanes in place of codes
};

/// A rank's contribution to one sum.
struct Contribution {
  Bytes payload{};        ///< packed codes, or 32-bit lanes; none with kGranuleEmpty
  uint32_t settings = 0;  ///< hash of what the lanes mean: the same on all ranks
  uint16_t norm = 0;      ///< the largest comes back
  uint8_t flags = 0;      ///< GranuleFlag
};

/// A sum, the same bytes on all ranks. The server decides who is in it.
struct Aggregate {
  MutBytes lanes{};     ///< room, given by the caller
  uint64_t bitmap = 0;  ///< contributors, by rank
  uint32_t length = 0;  ///< bytes of the sum; 0: nobody had anything to add
  uint16_t norm = 0;    ///< the largest
  uint8_t flags = 0;    ///< GranuleFlag
  uint8_t added = 0;    ///< contributions in the sum
  uint8_t divisor = 0;  ///< contributors, empty ones too
};

/// What a session wants added.
struct AggregationJob {
  uint32_t code_bits = 0;            ///< of a code: 2 to 4
  uint32_t lane_bits = 0;            ///< of its sum: 8 or 16
  uint32_t lanes = 0;                ///< of a granule of codes
  uint32_t values = 0;               ///< 32-bit lanes of another granule, at most
  uint64_t agreement = 0;            ///< hash of model and spec: other jobs are refused
  std::span<const uint8_t> table{};  ///< what a code adds, by code
};

/// Ranks that can be in one sum.
inline constexpr uint32_t kMaxAggregated = 64;

}  // namespace laconic

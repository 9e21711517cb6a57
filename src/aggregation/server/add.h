// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The additions of a server; it knows nothing else about the values.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "aggregation/protocol/enrolment.h"
#include "kernels/rotate/grid.h"
#include "laconic/isa.h"

namespace laconic::aggregation {

/// Adds contributions of one job to lanes.
class Adder {
 public:
  explicit Adder(const protocol::JobSettings& settings, Isa isa = best_isa()) noexcept;

  /// lanes[i] += table[code i] for all lanes of a granule, codes being packed most significant bit
  /// first; codes of 8 bits are added as they are. Lanes do not overflow (judge_settings).
  void add_codes(const uint8_t* codes, uint8_t* lanes) const noexcept;
  /// lanes[i] = table[code i]: the first contribution.
  void set_codes(const uint8_t* codes, uint8_t* lanes) const noexcept;
  /// The same of several contributions at once, 1 at least: each lane is written once. `first`: the
  /// lanes hold nothing yet.
  void add_all(std::span<const uint8_t* const> codes, bool first, uint8_t* lanes) const noexcept;
  /// lanes[i] += values[i] for `count` lanes of 32 bits, modulo 2^32.
  static void add_values(const uint8_t* values, uint8_t* lanes, uint64_t count) noexcept;

 private:
  using Kernel = decltype(kernels::GridKernels::add8);
  protocol::JobSettings settings_;
  alignas(16) std::array<uint8_t, protocol::kMaxTable> bytes_{};  ///< the table, if it fits
  Kernel add_ = nullptr, set_ = nullptr;  ///< null: a table of more than bytes, or no table
  using Together = decltype(kernels::GridKernels::sum8);
  Together add_all_ = nullptr, sum_ = nullptr;  ///< null: not these lanes
};

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The setting of one rule that a policy moves, and the moves.
#pragma once

#include <cstdint>
#include <string>

#include "laconic/fields.h"

namespace laconic::control {

struct Range {
  std::string name;  ///< of the field: "ratio"
  double start = 0;  ///< the spec's
  double min = 0;    ///< a policy stays within these, unless its text says others
  double max = 0;
  double lowest = 0;  ///< what the field accepts
  double highest = 0;
  Sends sends = Sends::more;
  Growth growth = Growth::log;
  bool whole = false;        ///< integers only
  uint64_t most_bytes = 0;   ///< a rank receives per step at the end that sends most; 0: unknown
  uint64_t dense_bytes = 0;  ///< uncompressed, by an all-reduce; 0: that way is closed

  bool operator==(const Range&) const = default;
};

/// The range of a field that is marked, from where its spec starts. `gathered`: ranks whose
/// payloads a rank receives, 1 where they are summed on the way. Beyond a share of 1 / gathered
/// gathering costs more than an all-reduce, so no policy goes there by itself.
[[nodiscard]] Range range_of(const Field& field, double start, uint32_t gathered);

/// The amount sent with this value, up to a factor.
[[nodiscard]] double amount(const Range& range, double value) noexcept;
/// The value that sends `amount`, rounded to send no less, within the bounds.
[[nodiscard]] double value_of(const Range& range, double amount) noexcept;
/// The ends of the bounds by what they send.
[[nodiscard]] double least(const Range& range) noexcept;
[[nodiscard]] double most(const Range& range) noexcept;
/// The next values: `factor` (below 1) of the amount, and `share` of it more. Integers move by one
/// at least; growth `step` grows by one.
[[nodiscard]] double shrunk(const Range& range, double value, double factor) noexcept;
[[nodiscard]] double grown(const Range& range, double value, double share) noexcept;

}  // namespace laconic::control

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace laconic::aggregation {

/// Nanoseconds on a clock that never goes back.
using Time = uint64_t;
inline constexpr Time kNever = ~Time{0};
inline constexpr Time kMillisecond = 1000000;

}  // namespace laconic::aggregation

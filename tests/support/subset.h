// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
/// \file
/// What sanitized builds leave out: they look for misused memory and for races, which other numbers
/// of ranks and the middle of a setting's range hardly change, and races not a second codec of a
/// kind, other settings of a codec or every call that can fail.
#ifndef LACONIC_TESTS_SUPPORT_SUBSET_H
#define LACONIC_TESTS_SUPPORT_SUBSET_H

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string_view>

#include "support/sanitizer.h"

namespace laconic::test {

#if defined(LACONIC_TSAN)
inline constexpr bool kOneWorld = true;
inline constexpr bool kOnlyDefaults = true;
inline constexpr int kFailureStride = 3;
#elif defined(LACONIC_ASAN)
inline constexpr bool kOneWorld = true;
inline constexpr bool kOnlyDefaults = false;
inline constexpr int kFailureStride = 1;
#else
inline constexpr bool kOneWorld = false;
inline constexpr bool kOnlyDefaults = false;
inline constexpr int kFailureStride = 1;
#endif

inline constexpr bool kSanitized = kOneWorld;

/// One codec for each way through an exchange: dense frames and lanes, fused feedback, a set, the
/// same places on every rank, several rounds, codec state, a vote, frames of their true length.
/// What sanitizers see of the others in an exchange they see of these.
inline constexpr std::array<std::string_view, 10> kWays{
    "none", "fp16", "int8", "3lc", "topk", "randomk", "powersgd", "sidco", "signsgd", "inceptionn"};

inline bool is_way(std::string_view spec) {
  return std::find(kWays.begin(), kWays.end(), spec) != kWays.end();
}

/// Whether the weekly tier runs, and with it what `make test` leaves out.
inline bool weekly() {
  const char* const tier = std::getenv("TEST_TIER");
  return tier != nullptr && std::string_view(tier) == "weekly";
}

/// Whether a codec's default settings meet exchanges in this build; in 16-bit buckets, too.
inline bool in_exchanges(std::string_view codec, bool narrow = false) {
  if (!(kOnlyDefaults || (kSanitized && narrow))) return true;
  return is_way(codec);
}

}  // namespace laconic::test

#endif  // LACONIC_TESTS_SUPPORT_SUBSET_H

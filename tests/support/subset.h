// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
/// \file
/// What sanitized builds leave out: they look for misused memory and for races, which other numbers
/// of ranks hardly change, and races not other settings of a codec or every call that can fail.
#ifndef LACONIC_TESTS_SUPPORT_SUBSET_H
#define LACONIC_TESTS_SUPPORT_SUBSET_H

namespace laconic::test {

#if defined(__SANITIZE_THREAD__)
inline constexpr bool kOneWorld = true;
inline constexpr bool kOnlyDefaults = true;
inline constexpr int kFailureStride = 3;
#elif defined(__SANITIZE_ADDRESS__)
inline constexpr bool kOneWorld = true;
inline constexpr bool kOnlyDefaults = false;
inline constexpr int kFailureStride = 1;
#else
inline constexpr bool kOneWorld = false;
inline constexpr bool kOnlyDefaults = false;
inline constexpr int kFailureStride = 1;
#endif

}  // namespace laconic::test

#endif  // LACONIC_TESTS_SUPPORT_SUBSET_H

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
/// \file
/// Defines LACONIC_ASAN or LACONIC_TSAN under that sanitizer, of g++ or of clang.
#ifndef LACONIC_TESTS_SUPPORT_SANITIZER_H
#define LACONIC_TESTS_SUPPORT_SANITIZER_H

#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer)
#define LACONIC_ASAN
#elif __has_feature(thread_sanitizer)
#define LACONIC_TSAN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define LACONIC_ASAN
#elif defined(__SANITIZE_THREAD__)
#define LACONIC_TSAN
#endif

#endif  // LACONIC_TESTS_SUPPORT_SANITIZER_H

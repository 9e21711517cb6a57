// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Handles failed assertions inside Highway's headers, which assert only in debug and sanitizer
// builds. It is the only symbol that they need from libhwy, which we do not link. Weak, so that a
// program that also links libhwy keeps its own.
#ifdef LACONIC_WITH_HWY

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "hwy/base.h"

namespace hwy {

__attribute__((weak)) void Abort(const char* file, int line, const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::abort();
}

}  // namespace hwy

#endif  // LACONIC_WITH_HWY

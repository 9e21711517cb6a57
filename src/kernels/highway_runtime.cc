// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The few functions that Highway's headers expect from libhwy. Distributions ship libhwy only as a
// shared library, and liblaconic.so must not need one at run time; with these, Highway is used from
// its headers alone. Weak, so that a program which links libhwy itself keeps that one.
#if LACONIC_WITH_HWY

#include <atomic>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "hwy/highway.h"

#define LACONIC_WEAK __attribute__((weak))

namespace hwy {
namespace {

std::atomic<int64_t> mocked_targets{0};
std::atomic<int64_t> disabled_targets{0};

#if HWY_ARCH_X86
// The names that g++ 12 and clang 14 both know. Of what Highway also asks for, LZCNT and F16C come
// with every AVX2, FMA and BMI2, and VAES and VPCLMULQDQ with every VNNI and VBMI2. The check of
// the operating system's register state is part of the builtin.
int64_t detect_targets() {
  __builtin_cpu_init();
  int64_t targets = 0;
  if (!__builtin_cpu_supports("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul") ||
      !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma") ||
      !__builtin_cpu_supports("bmi") || !__builtin_cpu_supports("bmi2")) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512vl") ||
      !__builtin_cpu_supports("avx512dq") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd")) {
    return targets;
  }
  targets |= HWY_AVX3;
  if (!__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512vbmi") ||
      !__builtin_cpu_supports("avx512vbmi2") || !__builtin_cpu_supports("avx512bitalg") ||
      !__builtin_cpu_supports("avx512vpopcntdq")) {
    return targets;
  }
  return targets | HWY_AVX3_DL;
}
#else
// Elsewhere the compiler's baseline is what is used (NEON on 64-bit Arm).
int64_t detect_targets() { return 0; }
#endif

int64_t cpu_targets() {
  static const int64_t targets = detect_targets() | HWY_STATIC_TARGET | HWY_EMU128 | HWY_SCALAR;
  return targets;
}

}  // namespace

LACONIC_WEAK int64_t SupportedTargets() {
  const int64_t mocked = mocked_targets.load();
  const int64_t targets = (mocked != 0 ? mocked : cpu_targets()) & ~disabled_targets.load();
  return targets != 0 ? targets : int64_t{HWY_STATIC_TARGET};
}

LACONIC_WEAK ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

LACONIC_WEAK void DisableTargets(int64_t targets) {
  disabled_targets.store(targets);
  GetChosenTarget().DeInit();
}

LACONIC_WEAK void SetSupportedTargetsForTest(int64_t targets) {
  mocked_targets.store(targets);
  GetChosenTarget().DeInit();
}

// Only a failed assertion inside Highway's headers comes here.
LACONIC_WEAK void Abort(const char* file, int line, const char* format, ...) {
  std::va_list args;
  va_start(args, format);
  std::fprintf(stderr, "%s:%d: ", file, line);
  std::vfprintf(stderr, format, args);
  va_end(args);
  std::abort();
}

}  // namespace hwy

#endif  // LACONIC_WITH_HWY

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "kernels/core/simd.h"

#include <unistd.h>

#include <array>

namespace laconic {
namespace {

#if defined(LACONIC_WITH_HWY) && HWY_ARCH_X86
// The names that g++ 12 and clang 14 both know. LZCNT, F16C and VAES are not among them, but no
// processor with the others of their group lacks them. The check of the operating system's register
// state is part of the builtin.
#define LACONIC_CPU(feature) (__builtin_cpu_supports(feature) != 0)

int64_t detect_targets() noexcept {
  __builtin_cpu_init();
  int64_t targets = 0;
  if (!LACONIC_CPU("sse4.2") || !LACONIC_CPU("pclmul") || !LACONIC_CPU("aes")) return targets;
  targets |= HWY_SSE4;
  if (!LACONIC_CPU("avx2") || !LACONIC_CPU("fma") || !LACONIC_CPU("bmi") || !LACONIC_CPU("bmi2")) {
    return targets;
  }
  targets |= HWY_AVX2;
  if (!LACONIC_CPU("avx512f") || !LACONIC_CPU("avx512vl") || !LACONIC_CPU("avx512dq") ||
      !LACONIC_CPU("avx512bw") || !LACONIC_CPU("avx512cd")) {
    return targets;
  }
  targets |= HWY_AVX3;
  if (LACONIC_CPU("avx512vbmi") && LACONIC_CPU("avx512vbmi2") && LACONIC_CPU("avx512vnni") &&
      LACONIC_CPU("avx512bitalg") && LACONIC_CPU("avx512vpopcntdq") && LACONIC_CPU("gfni") &&
      LACONIC_CPU("vpclmulqdq")) {
    targets |= HWY_AVX3_DL;
  }
  return targets;
}
#elif defined(LACONIC_WITH_HWY)
int64_t detect_targets() noexcept { return HWY_STATIC_TARGET; }
#else
int64_t detect_targets() noexcept { return 0; }
#endif

struct IsaList {
  std::array<Isa, 5> items{Isa::scalar};
  uint32_t count = 1;
  void add_if(bool there, Isa isa) noexcept {
    if (there) items[count++] = isa;
  }
};

IsaList detect() noexcept {
  IsaList list;
#ifdef LACONIC_WITH_HWY
  [[maybe_unused]] const int64_t usable = kernels::simd_targets() & HWY_TARGETS;
#if HWY_ARCH_X86
  list.add_if((usable & HWY_SSE4) != 0, Isa::sse4);
  list.add_if((usable & HWY_AVX2) != 0, Isa::avx2);
  list.add_if((usable & HWY_AVX3) != 0, Isa::avx512);
#elif HWY_ARCH_ARM_A64
  list.add_if(true, Isa::neon);
#endif
#endif
  return list;
}

}  // namespace

namespace kernels {

int64_t simd_targets() noexcept {
  static const int64_t targets = detect_targets();
  return targets;
}

uint64_t second_level_cache_bytes() noexcept {
#ifdef _SC_LEVEL2_CACHE_SIZE  // glibc
  static const long bytes = ::sysconf(_SC_LEVEL2_CACHE_SIZE);
  return bytes > 0 ? static_cast<uint64_t>(bytes) : 0;
#else
  return 0;
#endif
}

}  // namespace kernels

std::string_view isa_name(Isa isa) noexcept {
  switch (isa) {
    case Isa::scalar:
      return "scalar";
    case Isa::sse4:
      return "sse4";
    case Isa::avx2:
      return "avx2";
    case Isa::avx512:
      return "avx512";
    case Isa::neon:
      return "neon";
  }
  return "unknown";
}

std::span<const Isa> available_isas() noexcept {
  static const IsaList list = detect();
  return {list.items.data(), list.count};
}

Isa best_isa() noexcept { return available_isas().back(); }

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// How a family of kernels is compiled for every instruction set. Three files per family; `basic` is
// the model:
//
//   basic.h          struct BasicKernels of function pointers, its accessor basic_kernels(Isa), and
//                    `extern const BasicKernels kBasicScalar`
//   basic_scalar.cc  the reference in plain C++: defines kBasicScalar
//   basic_hwy.cc     one body in Highway, compiled once per target, each with its own `kTable`; and
//                    the accessor
//
// and a line in kernels/no_hwy.cc, the accessors of a build without Highway: it returns
// kBasicScalar.
//
// The Highway file includes, in this order:
//
//   basic.h
//   [#define HWY_WANT_AVX3_DL]
//   #define HWY_TARGET_INCLUDE "kernels/core/basic_hwy.cc"
//   this header
//   hwy/foreach_target.h
//   hwy/highway.h
//
// Its body stands inside `#if LACONIC_SIMD_BODY`, so that Highway's emulated target is not
// compiled: there our reference is used. Nothing is global and mutable: the accessor picks a
// constant table by Isa.
#pragma once

#include <cstdint>

#include "laconic/isa.h"

namespace laconic::kernels {

/// Highway's bit set of targets that this processor runs, detected once (each detection is a row of
/// slow CPUIDs). Zero in a build without Highway.
int64_t simd_targets() noexcept;

/// Bytes of one core's second-level cache as reported by the system; 0 if unknown.
uint64_t second_level_cache_bytes() noexcept;

/// Fetches the line 4 KiB ahead of p, the distance that paid on every streaming loop, or another
/// one; past the end: prefetch.h. Always inline: a function without visible effects g++ would drop
/// the call.
template <uintptr_t kBytes = 4096>
[[gnu::always_inline]] inline void prefetch_ahead(const void* p) noexcept {
  __builtin_prefetch(reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(p) + kBytes));
}

}  // namespace laconic::kernels

#ifdef LACONIC_WITH_HWY

// Not compiled: SSE2, SSSE3 (no gain over the reference worth the code), Zen 4 and Sapphire Rapids
// (newer Highway only; AVX3_DL covers them) and all SVE (this code is written for vectors of known
// size). As bits, because old versions of Highway do not have all the names.
#define LACONIC_SIMD_NEVER ((0xFFLL << 18) | (1LL << 27) | (1LL << 26) | 0x507FLL)

// Sanitizers take many times as long over a kernel. They see AVX2, whose tails go through memory as
// those of SSE4 do, and where addresses are looked at AVX-512, whose tails are masked.
#if defined(__has_feature)  // clang
#if __has_feature(address_sanitizer)
#define LACONIC_SIMD_ADDRESSES
#elif __has_feature(thread_sanitizer)
#define LACONIC_SIMD_RACES
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define LACONIC_SIMD_ADDRESSES
#elif defined(__SANITIZE_THREAD__)
#define LACONIC_SIMD_RACES
#endif
#if defined(LACONIC_SIMD_RACES)
#define HWY_DISABLED_TARGETS (LACONIC_SIMD_NEVER | 0x980LL)  // SSE4, AVX3, AVX3_DL
#elif defined(LACONIC_SIMD_ADDRESSES)
#define HWY_DISABLED_TARGETS (LACONIC_SIMD_NEVER | 0x800LL)  // SSE4
#else
#define HWY_DISABLED_TARGETS LACONIC_SIMD_NEVER
#endif

#include "hwy/detect_targets.h"

/// True while a real instruction set is being compiled.
#define LACONIC_SIMD_BODY (HWY_TARGET != HWY_EMU128 && HWY_TARGET != HWY_SCALAR)

#if HWY_TARGETS & HWY_SSE4
#define LACONIC_SIMD_SSE4(table) \
  case Isa::sse4:                \
    return N_SSE4::table;
#else
#define LACONIC_SIMD_SSE4(table)
#endif

#if HWY_TARGETS & HWY_AVX2
#define LACONIC_SIMD_AVX2(table) \
  case Isa::avx2:                \
    return N_AVX2::table;
#else
#define LACONIC_SIMD_AVX2(table)
#endif

// AVX3_DL (Ice Lake and later: VBMI, VBMI2, VNNI) only in files that define HWY_WANT_AVX3_DL.
#if (HWY_TARGETS & HWY_AVX3_DL) && (HWY_TARGETS & HWY_AVX3)
#define LACONIC_SIMD_AVX512(table) \
  case Isa::avx512:                \
    return (simd_targets() & HWY_AVX3_DL) != 0 ? N_AVX3_DL::table : N_AVX3::table;
#elif HWY_TARGETS & HWY_AVX3_DL
#define LACONIC_SIMD_AVX512(table) \
  case Isa::avx512:                \
    return N_AVX3_DL::table;
#elif HWY_TARGETS & HWY_AVX3
#define LACONIC_SIMD_AVX512(table) \
  case Isa::avx512:                \
    return N_AVX3::table;
#else
#define LACONIC_SIMD_AVX512(table)
#endif

// On Arm the static target is NEON, with or without AES instructions, which no kernel uses.
#if HWY_ARCH_ARM_A64
#define LACONIC_SIMD_NEON(table) \
  case Isa::neon:                \
    return HWY_NAMESPACE::table;
#else
#define LACONIC_SIMD_NEON(table)
#endif

/// Body of an accessor, inside `#if HWY_ONCE`: returns `table` of `isa`'s target, else `scalar`.
#define LACONIC_SIMD_SELECT(isa, table, scalar) \
  switch (isa) {                                \
    LACONIC_SIMD_SSE4(table)                    \
    LACONIC_SIMD_AVX2(table)                    \
    LACONIC_SIMD_AVX512(table)                  \
    LACONIC_SIMD_NEON(table)                    \
    default:                                    \
      return scalar;                            \
  }

#endif  // LACONIC_WITH_HWY

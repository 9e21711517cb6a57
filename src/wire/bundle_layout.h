// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Byte map of FRAME.md, section 4: shared by writer and parser of bundles only.
#pragma once

#include <cstdint>

#include "base/hash.h"
#include "laconic/bytes.h"
#include "wire/bundle.h"

namespace laconic::wire {

enum BundleAt : uint64_t {
  kMagicAt = 0,        // u32
  kVersionAt = 4,      // u8
  kKindAt = 5,         // u8
  kFlagsAt = 6,        // u8
  kRoundAt = 7,        // u8
  kChecksumAt = 8,     // u64
  kHashedAt = 16,      // the checksum covers everything from here on; bytes 0 to 7 are its seed
  kStepAt = 16,        // u64
  kAgreementAt = 24,   // u64
  kBytesAt = 32,       // u64
  kSequenceAt = 40,    // u32
  kRankAt = 44,        // u16
  kWorldAt = 46,       // u16
  kSlotsAt = 48,       // u32
  kLaneBytesAt = 52,   // u32
  kFlushAt = 56,       // u32
  kReportAt = 60,      // 12 bytes
  kReportStepAt = 72,  // u32
  kBodyAt = 76,
};
static_assert(kBodyAt == kBundleHeaderBytes);

// Body of a failure.
enum FailureAt : uint64_t {
  kFailureCodeAt = 76,       // i32
  kFailureRankAt = 80,       // u32
  kFailureBucketAt = 84,     // u32
  kFailureParameterAt = 88,  // u32
  kFailureLengthAt = 92,     // u32
  kFailureTextAt = 96,
};
static_assert(round_up(kFailureTextAt + kMaxFailureText, kBundleAlign) <= kMinCapacity);

inline constexpr uint32_t kBundleMagic = 0x4243'414CU;  // "LACB"

inline constexpr uint8_t kNonFiniteFlag = 1;
inline constexpr uint8_t kOverflowFlag = 2;
inline constexpr uint8_t kFailedFlag = 4;
inline constexpr uint8_t kSeenFlag = 8;
inline constexpr uint8_t kIncompleteFlag = 16;
inline constexpr uint8_t kAllFlags = 31;

// Words of the slot table: a length, or one of these.
inline constexpr uint32_t kZeroSlot = 0;
inline constexpr uint32_t kNonFiniteSlot = 0xFFFFFFFFU;

inline uint64_t bundle_checksum(Bytes bundle) noexcept {
  return hash64(bundle.subspan(kHashedAt), load<uint64_t>(bundle.data()));
}

}  // namespace laconic::wire

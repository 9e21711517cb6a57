// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// 3LC's zero-run encoding (Lim, Andersen, Kaminsky, arXiv 1802.07389): bytes of ternary digits, in
// which two to fourteen bytes of five zeros in a row become one code above them. Any alignment;
// nothing outside the stated spans is touched.
#pragma once

#include <cstdint>

#include "kernels/threelc/threelc.h"
#include "laconic/isa.h"

namespace laconic::kernels {

/// A run of two zero bytes; 3^5: no byte of digits reaches it.
inline constexpr uint8_t kFirstRunCode = 243;
inline constexpr uint32_t kLongestRun = 14;    ///< code 255
inline constexpr uint32_t kRunBase = 241;      ///< code − kRunBase = length of the run
inline constexpr uint32_t kExpandSlack = 256;  ///< room that expand() needs beyond `want`

struct Expanded {
  uint64_t consumed = 0;  ///< coded bytes
  uint64_t produced = 0;  ///< digit bytes
};

struct ZeroRunKernels {
  /// Zero bytes before the first other byte; n when there is no other.
  uint64_t (*leading_zeros)(const uint8_t* bytes, uint64_t n);
  /// Number of zero bytes after the last non-zero byte; n if all are zero.
  uint64_t (*trailing_zeros)(const uint8_t* bytes, uint64_t n);
  /// Canonical run code of bytes that neither begin nor end with the zero byte. Returns its length,
  /// at most n.
  uint64_t (*run_encode)(const uint8_t* bytes, uint64_t n, uint8_t* coded);
  /// Expands from the start until at least `want` bytes came out or `coded` is used up. `bytes` has
  /// room for want + kExpandSlack; the rest of that room may be overwritten.
  Expanded (*expand)(const uint8_t* coded, uint64_t n, uint64_t want, uint8_t* bytes);
  /// How many bytes expand() would make of all of them.
  uint64_t (*expanded_size)(const uint8_t* coded, uint64_t n);
  /// True when no byte is a run code.
  bool (*no_run_codes)(const uint8_t* bytes, uint64_t n);
};

const ZeroRunKernels& zero_run_kernels(Isa isa) noexcept;
extern const ZeroRunKernels kZeroRunScalar;

}  // namespace laconic::kernels

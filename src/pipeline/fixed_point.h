// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Parameters that no codec takes, as 32-bit fixed point that a server adds (docs/format/DATAGRAM.md
// section 7). One number per parameter, its range, is state: a power of two, the same on all ranks,
// well above the largest magnitude of the last exchange. Units are powers of two, too: what a rank
// sent and what rounding left add up to the input without an error.
#pragma once

#include <cstdint>
#include <span>

#include "pipeline/unit_codec.h"

namespace laconic::pipeline::fixed {

/// Codes are smaller than 2^25: the sum of 64 fits 32 bits.
inline constexpr int kCodeBits = 25;
/// A range is 2^6 to 2^7 times the largest magnitude of all ranks.
inline constexpr int kHeadroomBits = 6;
/// The smallest range is that of a parameter which has been zero on all ranks so far.
inline constexpr int kLeastExponent = -100;
inline constexpr int kMostExponent = 126;

/// As the range of a float that is not 0: loss scales multiply it, and may be no powers of two.
[[nodiscard]] float nearest_range(float range) noexcept;
/// A magnitude in 16 bits, the upper half of the float rounded up: they order like the magnitudes.
[[nodiscard]] uint16_t short_magnitude(float magnitude) noexcept;
/// From the one before (0: none yet) and the largest magnitude of all ranks. It grows at once,
/// falls by half at most, and stays where there was nothing but zeros.
[[nodiscard]] float next_range(float range, uint16_t largest) noexcept;
[[nodiscard]] inline float unit_of(float range) noexcept { return range * 0x1p-25F; }

struct Measured {
  Outcome outcome = Outcome::zero;
  float largest = 0;  ///< of what encode would send; of a payload alone
  bool residual_reset = false;
};
/// Scans gradient and memory. Memory changes only where its values are of no use (not finite).
Measured measure(const UnitCodec& codec, const UnitSlot& slot, const float* gradient);
/// Encodes a gradient that was measured below `range`. Residual + gradient = decoded `codes` + new
/// residual.
void encode(const UnitCodec& codec, const UnitSlot& slot, const float* gradient, float range,
            int32_t* codes);
/// The residual takes codes [begin, begin + codes.size()) back: exactly what it was before.
void put_back(const UnitSlot& slot, float range, uint64_t begin, std::span<const int32_t> codes);
/// After put_back of all codes: memory without the gradient again, within a rounding of each of its
/// operations.
void take_gradient(const UnitCodec& codec, const UnitSlot& slot, const float* gradient);
/// sums · unit / divisor, each in double and then rounded to float.
void decode(std::span<const int32_t> sums, float range, uint32_t divisor, float* mean);

}  // namespace laconic::pipeline::fixed

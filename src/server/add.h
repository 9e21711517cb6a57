// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What a server adds, and all it knows about it.
#pragma once

#include <cstdint>

namespace laconic::server {

/// lanes[i] += table[code i] for `count` codes of 2, 3 or 4 bits, packed most significant bit
/// first; codes of 8 bits are added as they are and `table` is not read. Lanes are unsigned, of 8
/// or 16 bits, and do not overflow (JobSettings). `count` is a multiple of 8.
void add_codes(const uint8_t* codes, uint32_t code_bits, const uint16_t* table, uint8_t* lanes,
               uint32_t lane_bits, uint64_t count) noexcept;
using AddCodes = decltype(&add_codes);

/// The reference that every faster kernel is compared with.
void add_codes_scalar(const uint8_t* codes, uint32_t code_bits, const uint16_t* table,
                      uint8_t* lanes, uint32_t lane_bits, uint64_t count) noexcept;

/// lanes[i] += values[i] for `count` lanes of 32 bits, modulo 2^32.
void add_values(const uint8_t* values, uint8_t* lanes, uint64_t count) noexcept;

}  // namespace laconic::server

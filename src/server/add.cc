// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "server/add.h"

#include "laconic/bytes.h"

namespace laconic::server {
namespace {

/// Code `i` of a string of codes of at most 8 bits, most significant bit first.
uint32_t code_at(const uint8_t* codes, uint32_t bits, uint64_t i) noexcept {
  const uint64_t bit = i * bits, byte = bit / 8;
  const auto at = static_cast<uint32_t>(bit % 8);
  uint32_t word = uint32_t{codes[byte]} << 8U;
  if (at + bits > 8) word |= codes[byte + 1];
  return word >> (16 - at - bits) & ((1U << bits) - 1U);
}

template <class Lane>
void add(const uint8_t* codes, uint32_t bits, const uint16_t* table, uint8_t* lanes,
         uint64_t count) noexcept {
  for (uint64_t i = 0; i < count; ++i) {
    const uint32_t code = code_at(codes, bits, i);
    const uint32_t term = bits == 8 ? code : table[code];
    uint8_t* lane = lanes + i * sizeof(Lane);
    store(lane, static_cast<Lane>(load<Lane>(lane) + term));
  }
}

}  // namespace

void add_codes_scalar(const uint8_t* codes, uint32_t code_bits, const uint16_t* table,
                      uint8_t* lanes, uint32_t lane_bits, uint64_t count) noexcept {
  if (lane_bits == 8) return add<uint8_t>(codes, code_bits, table, lanes, count);
  add<uint16_t>(codes, code_bits, table, lanes, count);
}

void add_codes(const uint8_t* codes, uint32_t code_bits, const uint16_t* table, uint8_t* lanes,
               uint32_t lane_bits, uint64_t count) noexcept {
  add_codes_scalar(codes, code_bits, table, lanes, lane_bits, count);
}

void add_values(const uint8_t* values, uint8_t* lanes, uint64_t count) noexcept {
  for (uint64_t i = 0; i < count; ++i, values += 4, lanes += 4) {
    store(lanes, load<uint32_t>(lanes) + load<uint32_t>(values));
  }
}

}  // namespace laconic::server

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "aggregation/server/add.h"

#include <algorithm>

#include "laconic/bytes.h"

namespace laconic::aggregation {
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
void add_one_by_one(const protocol::JobSettings& s, const uint8_t* codes, uint8_t* lanes) noexcept {
  for (uint64_t i = 0; i < s.lanes; ++i) {
    const uint32_t code = code_at(codes, s.code_bits, i);
    const uint32_t term = s.table_size == 0 ? code : s.table[code];
    uint8_t* lane = lanes + i * sizeof(Lane);
    store(lane, static_cast<Lane>(load<Lane>(lane) + term));
  }
}

}  // namespace

Adder::Adder(const protocol::JobSettings& settings, Isa isa) noexcept : settings_(settings) {
  if (settings.table_size == 0 || protocol::largest_code(settings) > 255) return;
  std::transform(settings.table.begin(), settings.table.end(), bytes_.begin(),
                 [](uint16_t entry) { return static_cast<uint8_t>(entry); });
  const kernels::GridKernels& all = kernels::grid_kernels(isa);
  add_ = settings.lane_bits == 8 ? all.add8 : all.add16;
  set_ = settings.lane_bits == 8 ? all.expand8 : all.expand16;
  if (settings.lane_bits != 8) return;
  add_all_ = all.add_all8;
  sum_ = all.sum8;
}

void Adder::add_codes(const uint8_t* codes, uint8_t* lanes) const noexcept {
  if (add_ != nullptr) {
    return add_(codes, settings_.lanes, settings_.code_bits, bytes_.data(), lanes);
  }
  if (settings_.lane_bits == 8) return add_one_by_one<uint8_t>(settings_, codes, lanes);
  add_one_by_one<uint16_t>(settings_, codes, lanes);
}

void Adder::set_codes(const uint8_t* codes, uint8_t* lanes) const noexcept {
  if (set_ != nullptr) {
    return set_(codes, settings_.lanes, settings_.code_bits, bytes_.data(), lanes);
  }
  std::fill_n(lanes, settings_.lane_bytes(), uint8_t{0});
  add_codes(codes, lanes);
}

void Adder::add_all(std::span<const uint8_t* const> codes, bool first,
                    uint8_t* lanes) const noexcept {
  if (add_all_ != nullptr) {
    return (first ? sum_ : add_all_)(codes.data(), static_cast<uint32_t>(codes.size()),
                                     settings_.lanes, settings_.code_bits, bytes_.data(), lanes);
  }
  for (const uint8_t* one : codes) {
    first ? set_codes(one, lanes) : add_codes(one, lanes);
    first = false;
  }
}

void Adder::add_values(const uint8_t* values, uint8_t* lanes, uint64_t count) noexcept {
  for (uint64_t i = 0; i < count; ++i, values += 4, lanes += 4) {
    store(lanes, load<uint32_t>(lanes) + load<uint32_t>(values));
  }
}

}  // namespace laconic::aggregation

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ragged buffers for steps that move bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace laconic::test {

/// The message from rank `from` to rank `to`: length and bytes differ for all pairs, and some are
/// empty.
inline std::vector<uint8_t> letter(uint32_t from, uint32_t to, uint32_t turn) {
  std::vector<uint8_t> bytes((from * 7 + to * 13 + turn * 5) % 29);
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<uint8_t>(from * 64 + to * 8 + turn + i);
  return bytes;
}

/// Messages in sequence, with a gap before each.
struct Ragged {
  std::vector<uint64_t> counts, offsets;
  std::vector<uint8_t> memory;
  /// Buffer for a message.
  void add(uint64_t count) {
    counts.push_back(count);
    offsets.push_back(memory.size() + 3);
    memory.resize(memory.size() + 3 + count, 0xEE);
  }
  void add(const std::vector<uint8_t>& bytes) {
    add(bytes.size());
    std::copy(bytes.begin(), bytes.end(), memory.end() - static_cast<int64_t>(bytes.size()));
  }
};

}  // namespace laconic::test

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace laconic::control {

/// Words as finite floats, which saved state is made of: 16 bits in each, four for a word.
inline constexpr std::size_t kFloatsPerWord = 4;

inline void words_to_floats(std::span<const uint64_t> words, std::span<float> floats) noexcept {
  for (std::size_t i = 0; i < floats.size(); ++i) {
    const uint64_t word = words[i / kFloatsPerWord];
    floats[i] = static_cast<float>(word >> (16 * (i % kFloatsPerWord)) & 0xFFFFU);
  }
}

/// False, and words of anything, where a float is none of these.
[[nodiscard]] inline bool floats_to_words(std::span<const float> floats,
                                          std::span<uint64_t> words) noexcept {
  if (floats.size() != words.size() * kFloatsPerWord) return false;
  for (uint64_t& word : words) word = 0;
  for (std::size_t i = 0; i < floats.size(); ++i) {
    if (!(floats[i] >= 0 && floats[i] <= 65535.0F)) return false;
    const auto part = static_cast<uint64_t>(floats[i]);
    if (static_cast<float>(part) != floats[i]) return false;
    words[i / kFloatsPerWord] |= part << (16 * (i % kFloatsPerWord));
  }
  return true;
}

}  // namespace laconic::control

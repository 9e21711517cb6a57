// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "wire/utf8.h"

namespace laconic::wire {
namespace {

constexpr uint32_t sequence_length(uint8_t lead) noexcept {
  if (lead >= 0x20 && lead < 0x7F) return 1;
  if (lead >= 0xC2 && lead <= 0xDF) return 2;
  if (lead >= 0xE0 && lead <= 0xEF) return 3;
  return lead >= 0xF0 && lead <= 0xF4 ? 4 : 0;
}

// The second byte excludes what is overlong, a surrogate or too large; U+0080 to U+009F are
// controls.
constexpr bool second_byte_fits(uint8_t lead, uint8_t second) noexcept {
  const uint8_t low = lead == 0xE0 || lead == 0xC2 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  return second >= low && second <= high;
}

}  // namespace

uint32_t utf8_character(Bytes text) noexcept {
  const uint32_t length = sequence_length(text[0]);
  if (length <= 1 || text.size() < length) return length <= 1 ? length : 0;
  if (!second_byte_fits(text[0], text[1])) return 0;
  for (uint32_t i = 2; i < length; ++i) {
    if ((text[i] & 0xC0U) != 0x80U) return 0;
  }
  return length;
}

bool is_utf8(Bytes text) noexcept {
  while (!text.empty()) {
    const uint32_t length = utf8_character(text);
    if (length == 0) return false;
    text = text.subspan(length);
  }
  return true;
}

}  // namespace laconic::wire

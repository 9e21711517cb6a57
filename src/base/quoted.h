// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace laconic {

/// Text from elsewhere inside a message: short and printable.
inline std::string quoted(std::string_view text) {
  constexpr std::size_t kShown = 96;
  std::string shown(text.substr(0, kShown));
  for (char& c : shown) {
    if (c < ' ' || c > '~') c = '?';
  }
  return "'" + shown + (text.size() > kShown ? "...'" : "'");
}

}  // namespace laconic

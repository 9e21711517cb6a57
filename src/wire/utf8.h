// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "laconic/bytes.h"

namespace laconic::wire {

/// Length of the printable UTF-8 character that `text` (not empty) starts with; 0 for a control
/// character, a cut or overlong sequence, a surrogate, or a value above U+10FFFF (Unicode 15, table
/// 3-7).
[[nodiscard]] uint32_t utf8_character(Bytes text) noexcept;

/// Whether all of it is such characters.
[[nodiscard]] bool is_utf8(Bytes text) noexcept;

}  // namespace laconic::wire

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "laconic/bytes.h"

namespace laconic {

/// XXH3-64 (xxHash 0.8): checksums of frames, hashes of specs and parameter names. Part of the
/// format.
[[nodiscard]] uint64_t hash64(Bytes bytes, uint64_t seed = 0) noexcept;
[[nodiscard]] uint64_t hash64(std::string_view text) noexcept;

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <type_traits>

#include "laconic/bytes.h"

namespace laconic {

/// XXH3-64 (xxHash 0.8): checksums of frames, hashes of specs and parameter names. Part of the
/// format.
[[nodiscard]] uint64_t hash64(Bytes bytes, uint64_t seed = 0) noexcept;
[[nodiscard]] uint64_t hash64(std::string_view text) noexcept;
/// Hash of the bytes of the values, which must have no padding between them.
template <class T>
requires std::has_unique_object_representations_v<T> || std::is_floating_point_v<T>
[[nodiscard]] uint64_t hash64(std::span<const T> values, uint64_t seed = 0) noexcept {
  return hash64(Bytes(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()), seed);
}

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "base/hash.h"

#include <xxhash.h>

namespace laconic {

uint64_t hash64(Bytes bytes, uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t hash64(std::string_view text) noexcept { return XXH3_64bits(text.data(), text.size()); }

}  // namespace laconic

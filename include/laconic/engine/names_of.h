// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ranks as messages name them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace laconic {

/// "rank 2", "ranks 1, 2 and 4", or nothing.
std::string names_of(const std::vector<uint32_t>& ranks);

}  // namespace laconic

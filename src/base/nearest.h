// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

namespace laconic {

/// The candidate that `text` most likely meant, by edit distance and common beginnings; empty when
/// none is near.
std::string_view nearest(std::string_view text, const std::vector<std::string_view>& candidates);

}  // namespace laconic

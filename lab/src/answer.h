// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>
#include <vector>

#include "laconic/error.h"

namespace laconic::lab {

/// A line of the control socket: the cores that `enter` names, none in other answers; the error
/// that a refusal carries; engine_failed for a line that is no answer. Total.
Result<std::vector<int>> read_answer(std::string_view line);

}  // namespace laconic::lab

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Control texts: policy [ ":" key=value { "," key=value } ]; `schedule` and `replay` have options
// of their own.
#pragma once

#include <span>
#include <string_view>

#include "control/policy.h"

namespace laconic::control {

[[nodiscard]] std::span<const PolicyTable* const> all_policies() noexcept;

/// Errors name the nearest policy or key, and list keys with ranges.
Result<Control> parse_control(std::string_view text);

}  // namespace laconic::control

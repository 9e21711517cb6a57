// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Rules as users write them: a TOML file with a [[rule]] for each. Takes and refuses what
// python/laconic/exchange/rules.py does; tests/tools/test_rules_file.py feeds both the same files.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "laconic/error.h"
#include "laconic/rule.h"

namespace laconic::tools {

/// Specs, controls and globs are as they were written: what they mean, sessions decide. Errors
/// name `path`, and line and column or rule.
Result<std::vector<Rule>> parse_rules(const std::string& path, std::string_view text);
/// Reads a file of rules.
Result<std::vector<Rule>> read_rules(const std::string& path);

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "laconic/error.h"
#include "laconic/parameter.h"

namespace laconic::tools {

/// A model's parameters for a command: a path that ends in .json, of {"name": elements or shape},
/// or of what explain() gives; anything else is "name:elements,name:elements". Sizes are in `rows`.
Result<std::vector<Parameter>> read_parameters(const std::string& text);

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Which parameter gets what. docs/guide/control.md.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace laconic {

/// The first rule that matches a parameter is the parameter's.
struct Rule {
  std::string match = "*";  ///< glob on the full name: *, ?, [a-z], [!a-z]
  uint64_t min_elements = 0;
  uint64_t max_elements = std::numeric_limits<uint64_t>::max();
  std::string spec;       ///< empty: the call's
  std::string control;    ///< empty: the call's
  bool optional = false;  ///< may be without a parameter
};

}  // namespace laconic

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace laconic {

/// One parameter as the user's model lists it.
struct Parameter {
  std::string name;   ///< the same on all ranks
  uint64_t rows = 0;  ///< first dimension
  uint64_t cols = 1;  ///< product of the others; 1 for vectors
  [[nodiscard]] uint64_t count() const noexcept { return rows * cols; }
};

}  // namespace laconic

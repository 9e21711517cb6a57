// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "laconic/error.h"

namespace laconic::tools {

/// The whole file; invalid_argument names the path and the system's reason.
Result<std::vector<uint8_t>> read_file(const std::string& path);
/// A file of raw little-endian float32 values.
Result<std::vector<float>> read_floats(const std::string& path);
Result<void> write_file(const std::string& path, const void* data, uint64_t bytes);

}  // namespace laconic::tools

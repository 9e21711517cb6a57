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

/// A tensor of one or two dimensions; a vector has one column.
struct FileTensor {
  uint64_t rows = 0;
  uint64_t cols = 1;
  std::vector<float> values;
};
/// Raw little-endian float32 values (a vector), or a .npy file of them in C order with one or two
/// dimensions. invalid_argument names the path and what is wrong, no elements included.
Result<FileTensor> read_tensor(const std::string& path);

Result<void> write_file(const std::string& path, const void* data, uint64_t bytes);

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The header of NumPy's .npy files (numpy.lib.format, versions 1 to 3). Total: any bytes give an
// answer.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "laconic/bytes.h"
#include "laconic/error.h"

namespace laconic::tools {

struct NpyHeader {
  std::string descr;  ///< of the elements: "<f4"
  bool fortran_order = false;
  std::vector<uint64_t> shape;
  uint64_t data_offset = 0;
};

/// Whether the bytes begin as a .npy file does.
bool is_npy(Bytes bytes) noexcept;
/// invalid_argument, with what is wrong and no path, where is_npy or the rest does not hold.
Result<NpyHeader> parse_npy(Bytes bytes);

}  // namespace laconic::tools

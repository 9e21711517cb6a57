// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "laconic/dtype.h"

namespace laconic {

std::string_view dtype_name(DType t) noexcept {
  switch (t) {
    case DType::f32:
      return "f32";
    case DType::f16:
      return "f16";
    case DType::bf16:
      return "bf16";
    case DType::u8:
      return "u8";
    case DType::u16:
      return "u16";
    case DType::i32:
      return "i32";
  }
  return "unknown";
}

}  // namespace laconic

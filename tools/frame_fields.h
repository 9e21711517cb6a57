// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "json.h"
#include "laconic/frame.h"

namespace laconic::tools {

/// Raw bytes of the tensor / bytes of the frame.
double ratio_of(const FrameView& frame, uint64_t frame_bytes);
/// Everything that the header of a verified frame says.
Json describe(const FrameView& frame, uint64_t frame_bytes);
/// One "name value" line per field.
void print_fields(const Json& fields);

}  // namespace laconic::tools

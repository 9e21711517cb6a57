// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "aggregation/protocol/token.h"
#include "laconic/error.h"

namespace laconic::aggregation {

/// The secret of a job or server. A file of 32 bytes that are not all zero, or invalid_argument.
[[nodiscard]] Result<protocol::Token> read_token(const std::string& path);

}  // namespace laconic::aggregation

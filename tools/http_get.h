// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <string>

#include "laconic/error.h"

namespace laconic::tools {

/// The body of http://ADDRESS PATH. An answer that is too long or late is an error; any bytes may
/// come.
Result<std::string> http_get(const std::string& address, const std::string& path,
                             std::chrono::milliseconds timeout);

}  // namespace laconic::tools

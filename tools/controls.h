// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace laconic::tools {

enum class As : unsigned char { text, json, markdown };

/// What can be named in a control, and what of which codec it moves.
int list_controls(As as);

}  // namespace laconic::tools

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#pragma once

namespace laconic::tools {

enum class As : unsigned char { text, json, markdown };

/// The controls, and the settings of codecs that they change.
int list_controls(As as);

}  // namespace laconic::tools

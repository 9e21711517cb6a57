// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Other settings, as callers bring them.
#pragma once

#include <vector>

#include "capi/boundary.h"
#include "session/session.h"

namespace laconic::capi {

/// `change` views the caller's texts, and `rules`.
int32_t read_settings(const laconic_settings* theirs, std::vector<Rule>* rules,
                      session::Change* change);

}  // namespace laconic::capi

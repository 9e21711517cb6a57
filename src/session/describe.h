// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// What the library says about itself, as JSON text.
#pragma once

#include <string>

#include "laconic/spec.h"
#include "session/session.h"

namespace laconic::session {

/// {"codecs": [{"name", "summary", "source", "params": [...], "contract": {...}}]}: what `laconic
/// list --json` prints.
std::string describe_codecs();
/// {"spec", "name", "feedback", "contract"}
std::string describe_spec(const Spec& spec);
/// What was picked for the model and why, per parameter.
std::string explain(const Session& session);
std::string describe_stats(const Session& session);
/// Version, ABI, compiler, instruction sets.
std::string describe_build();

}  // namespace laconic::session

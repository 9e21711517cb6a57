// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Descriptions of a session as JSON text.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "laconic/spec.h"
#include "session/session.h"

namespace laconic::session {

/// The class of GRACE's survey: "none", "cast", "quantization", "sparsification", "hybrid" or
/// "low-rank".
std::string_view method_name(Method method) noexcept;
/// "none", "linear", "set_union" or "vote".
std::string_view merge_name(Merge merge) noexcept;
/// {"codecs": [{"name", "id", "version", "class", "summary", "source", "params": [...],
/// "contract": {...}}]}: what `laconic list --json` prints and laconic_codecs_json() gives.
std::string describe_codecs(std::span<const CodecTable* const> codecs);
/// {"spec", "name", "feedback", "contract"}
std::string describe_spec(const Spec& spec);
/// The plan and its reasons, per parameter, and its current memory. Thread-safe.
std::string explain(const Session& session);
std::string describe_stats(const Session& session);
/// Version, ABI, compiler, instruction sets.
std::string describe_build();
/// As laconic_device_info. `driver`: its library; empty: the loader's.
std::string describe_device(const std::string& driver);

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A session's state as bytes: docs/format/STATE.md.
#pragma once

#include <vector>

#include "laconic/bytes.h"
#include "session/session.h"

namespace laconic::session {

/// Why nothing is saved or loaded while buckets are in flight, or wait for others.
Error in_flight_error() noexcept;
/// Saves a session with nothing in flight. `version`: see feedback::kStateVersion; the entries are
/// the same.
Result<std::vector<uint8_t>> save_state(const Session& session,
                                        uint32_t version = feedback::kStateVersion);
/// All of it or nothing: everything is checked before the first value is copied. Gives its version.
Result<uint32_t> load_state(Session& session, Bytes state);

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// A session's state as bytes: docs/format/STATE.md.
#pragma once

#include <vector>

#include "laconic/bytes.h"
#include "session/session.h"

namespace laconic::session {

/// Of a session with nothing in flight.
Result<std::vector<uint8_t>> save_state(const Session& session);
/// All of it or nothing: everything is checked before the first value is copied.
Result<void> load_state(Session& session, Bytes state);

}  // namespace laconic::session

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every law: one #include and one line each. Texts, errors, `laconic list --controls` and the
// tests' tables follow from it.
#pragma once

#include "control/laws/aimd.h"
#include "control/laws/bdp.h"
#include "control/laws/dc2.h"
#include "control/laws/fixed.h"
#include "control/laws/replay.h"
#include "control/laws/schedule.h"

namespace laconic::control {

template <class... L>
struct LawTypes {};

using LawList = LawTypes<Fixed, Dc2, Aimd, Bdp, Schedule, Replay>;

}  // namespace laconic::control

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Every policy: one #include and one line each. Texts, errors, `laconic list --controls` and the
// tests' tables follow from it.
#pragma once

#include "control/policies/aimd.h"
#include "control/policies/bdp.h"
#include "control/policies/dc2.h"
#include "control/policies/fixed.h"
#include "control/policies/replay.h"
#include "control/policies/schedule.h"

namespace laconic::control {

template <class... L>
struct PolicyTypes {};

using PolicyList = PolicyTypes<Fixed, Dc2, Aimd, Bdp, Schedule, Replay>;

}  // namespace laconic::control

// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ending what COMMANDs left behind.
#pragma once

namespace laconic::lab {

/// Kills every descendant of this process, including those that went into the background. In a
/// sandbox the kernel does it as well; with --emulate nobody else would. Needs
/// PR_SET_CHILD_SUBREAPER to see orphans.
void kill_descendants();

}  // namespace laconic::lab

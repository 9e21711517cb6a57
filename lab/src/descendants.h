// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// Ending the processes that COMMANDs left running.
#pragma once

#include <sys/types.h>

#include <vector>

namespace laconic::lab {

/// The children of this process, including adopted orphans and dead ones that were not waited for.
std::vector<pid_t> children();

/// Kills every descendant of this process, including those that went into the background, but for
/// the `spared` children. In a sandbox the kernel does it as well; with --emulate it does not.
/// Needs PR_SET_CHILD_SUBREAPER to see orphans.
void kill_descendants(const std::vector<pid_t>& spared = {});

}  // namespace laconic::lab

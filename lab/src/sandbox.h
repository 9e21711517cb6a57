// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The process in which a lab lives. Everything the lab makes (interfaces, mounts, processes)
// belongs to namespaces whose first process is ours: when that one ends, however it ends, the
// kernel removes the rest. With --emulate there are no namespaces, and guards take their place.
#pragma once

#include <functional>
#include <string_view>

#include "laconic/error.h"

namespace laconic::lab {

enum class Isolation {
  root,  ///< network, mount, process, name and IPC namespaces, made with root's rights
  user,  ///< the same inside a user namespace, where the caller is mapped to root
  none,  ///< a plain child process (--emulate)
};

std::string_view isolation_name(Isolation isolation);

/// Body of a child; its result is the exit status. `lifeline` can be read (end of file) as soon as
/// the process that waits for the child is gone. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on
/// to the child, which finds them blocked and must read them from a signalfd.
using Body = std::function<int(int lifeline)>;

constexpr int kNoLifeline = -1;

/// Runs `body` in a child that is process 1 of its own namespaces and returns its exit status, or
/// an error if a signal ended it.
Result<int> run_sandboxed(Isolation isolation, const Body& body);

/// The same without namespaces: when the child or `lifeline` has ended, this process ends all
/// descendants of the child and calls `tidy`. A guard that is killed cannot do that: hence two of
/// them, one around the other, and a `body` that watches its lifeline. When any two of the three
/// processes are killed, the third one cleans up.
Result<int> run_guarded(int lifeline, const std::function<void()>& tidy, const Body& body);

/// Root's own namespaces if permitted, else a user namespace; an error when neither works.
Result<Isolation> choose_isolation();

}  // namespace laconic::lab

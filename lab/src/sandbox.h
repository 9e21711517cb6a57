// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// The process in which a lab lives. Everything the lab makes (interfaces, mounts, processes)
// belongs to namespaces whose first process is ours: when that one ends, however it ends, the
// kernel removes the rest.
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

/// Runs `body` in a child that is process 1 of its own namespaces and returns its exit status.
/// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to the child, which finds them blocked and
/// must read them from a signalfd. `lifeline` is readable (end of file) as soon as the calling
/// process is gone.
Result<int> run_sandboxed(Isolation isolation, const std::function<int(int lifeline)>& body);

/// Root's own namespaces if permitted, else a user namespace; an error in words when neither works.
Result<Isolation> choose_isolation();

}  // namespace laconic::lab

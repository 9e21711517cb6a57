// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "descendants.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <vector>

namespace laconic::lab {
namespace {

std::vector<pid_t> children() {
  std::ifstream list("/proc/thread-self/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

}  // namespace

void kill_descendants() {
  // Killing a child hands its children to us: repeat until there are none.
  for (std::vector<pid_t> pids = children(); !pids.empty(); pids = children()) {
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  }
}

}  // namespace laconic::lab

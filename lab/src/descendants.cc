// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
#include "descendants.h"

#include <signal.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace laconic::lab {

std::vector<pid_t> children() {
  std::ifstream list("/proc/thread-self/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; list >> pid;) pids.push_back(pid);
  return pids;
}

void kill_descendants(const std::vector<pid_t>& spared) {
  const auto is_spared = [&](pid_t pid) {
    return std::find(spared.begin(), spared.end(), pid) != spared.end();
  };
  // Killing a child hands its children to us: repeat until there are none.
  for (;;) {
    std::vector<pid_t> pids = children();
    std::erase_if(pids, is_spared);
    if (pids.empty()) return;
    for (const pid_t pid : pids) kill(pid, SIGKILL);
    for (const pid_t pid : pids) waitpid(pid, nullptr, 0);
  }
}

}  // namespace laconic::lab

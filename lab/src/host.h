// Copyright the Laconic authors. SPDX-License-Identifier: Apache-2.0
//
// One COMMAND on one host.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "link.h"
#include "options.h"
#include "process.h"

namespace laconic::lab {

/// How a COMMAND ended.
struct Ending {
  int code = 0;    ///< exit status, if no signal
  int signal = 0;  ///< 0 if it ended by itself
  [[nodiscard]] bool good() const { return code == 0 && signal == 0; }
};

Ending ending_from(int wait_status);

/// "exit 3", "SIGKILL".
std::string describe(const Ending& ending);

struct Host {
  int rank = 0;
  int core = -1;  ///< -1: not pinned
  pid_t pid = 0;
  std::optional<Ending> ending;
  Fd out, err;  ///< our ends of its pipes; none with --raw
};

/// The processors that we may use, in order.
std::vector<int> usable_cores();

/// Starts the COMMAND of `host.rank` and fills in the rest of `host`.
Result<void> start_host(const Options& options, Link& link, Host& host);

}  // namespace laconic::lab
